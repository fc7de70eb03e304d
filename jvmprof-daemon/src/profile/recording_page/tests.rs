use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::profile::call_tree::NodeKind;
use crate::profile::jvm_activity::JvmActivity;
use crate::profile::model::{Frame, FrameKind, Line, Sample, SampleLabel, SampleLabels, Series};

fn batch(names: &[&str], processes: &[(&str, &str)]) -> Batch {
    let frames: Vec<_> = names
        .iter()
        .map(|&name| {
            let lines = vec![Line::named(name)];
            Arc::new(Frame { kind: FrameKind::Native, address: None, mapping: None, lines })
        })
        .collect();
    let series = processes.iter().map(|(comm, pid)| Series {
        labels: [("comm", comm), ("pid", pid)].map(|(k, v)| (k.to_owned(), (*v).to_owned())).into(),
        samples: vec![Sample::of_events(frames.clone().into(), 3, 3 * 10_101_010)],
    });
    Batch {
        event: EventType::Cpu,
        start: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        duration: Duration::from_secs(10),
        period: 10_101_010,
        series: series.collect(),
    }
}

fn page(batch: &Batch, title: &str) -> String {
    let title = RecordingTitle { title: title.to_owned(), host: "worker-1".to_owned() };
    let mut out = Vec::new();
    write_html(std::slice::from_ref(batch), &[], StackGroups::Programs, &title, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn hostile_names_stay_data() {
    let hostile =
        ["</script><script>alert(1)</script>", "<!--<script>", "{{scripts}}", "\u{2028}'\"\\&amp;", "]]>"];
    let page = page(&batch(&hostile, &[("java", "1")]), "</title></script><img src=x onerror=alert(1)>");
    assert_eq!(page.matches("<script").count(), 3, "the data, the scripts, the loader");
    assert_eq!(page.matches("</script").count(), 3);
    assert!(!page.contains("<img") && !page.contains("<!--"));
    let data = data(&page);
    assert_eq!(data["title"], "</title></script><img src=x onerror=alert(1)>");
    for name in hostile {
        assert!(data["trees"][0]["strings"].as_array().unwrap().contains(&name.into()), "{name}");
    }
}

#[test]
fn every_script_has_the_nonce_of_its_file() {
    let (one, two) = (page(&batch(&["main"], &[("a", "1")]), "t"), page(&batch(&["main"], &[]), "t"));
    let nonce = |page: &str| page.split_once("'nonce-").unwrap().1.split_once('\'').unwrap().0.to_owned();
    assert_ne!(nonce(&one), nonce(&two), "a known nonce would let injected scripts run");
    assert_eq!(one.matches("<script").count(), one.matches(&format!("nonce=\"{}\"", nonce(&one))).count());
    assert!(!one.contains("{{nonce}}"));
}

/// The names of the groups of a page's first tree.
fn groups(data: &Value) -> BTreeSet<&str> {
    let tree = &data["trees"][0];
    let label = Value::from(NodeKind::Label as u8);
    let kinds = tree["functions"]["kind"].as_array().unwrap().iter();
    let names = tree["functions"]["name"].as_array().unwrap().iter();
    let labels = kinds.zip(names).filter(|(kind, _)| **kind == label);
    let name = |index: &Value| tree["strings"][index.as_u64().unwrap() as usize].as_str().unwrap();
    labels.map(|(_, index)| name(index)).collect()
}

#[test]
fn several_programs_have_a_node_each_and_one_has_none() {
    let mut build = batch(&["main"], &[("cc1plus", "1"), ("cc1plus", "2"), ("java", "3"), ("java", "4")]);
    build.series[3].labels.insert(label_names::MAIN_CLASS.to_owned(), "com.acme.Shop".to_owned());
    assert_eq!(groups(&data(&page(&build, "t"))), BTreeSet::from(["cc1plus", "com.acme.Shop", "java"]));
    build.series[2].labels.remove("comm");
    assert!(groups(&data(&page(&build, "t"))).contains(NO_PROGRAM));
    let two_processes = data(&page(&batch(&["main"], &[("java", "1"), ("java", "2")]), "t"));
    assert_eq!(groups(&two_processes), BTreeSet::new());
}

#[test]
fn samples_say_of_which_process_they_are_unless_there_are_too_many() {
    let of = |processes: &[(&str, &str)]| data(&page(&batch(&["main", "run"], processes), "t"));
    let two = of(&[("java", "1"), ("java", "2"), ("java", "2")]);
    assert_eq!((&two["processes"], &two["process_count"]), (&json!(["java (1)", "java (2)"]), &json!(2)));
    // By the node: number of the process with that of other programs, and its samples.
    let [first, second] = [1_u64, 2].map(|process| (process << 8) | JvmActivity::OtherProcess as u64);
    assert_eq!(two["trees"][0]["nodes"]["process"], json!([[], [], [first, 3, second, 6]]));
    assert_eq!(two["trees"][0]["nodes"]["activity"], Value::Null, "of JVMs nothing is known");

    let one = of(&[("java", "1"), ("java", "1")]);
    assert_eq!((&one["processes"], &one["process_count"]), (&json!([]), &json!(1)));
    assert_eq!(one["trees"][0]["nodes"]["process"], Value::Null);
    let pids: Vec<String> = (0..51).map(|pid| pid.to_string()).collect();
    let compilers: Vec<_> = pids.iter().map(|pid| ("cc1plus", pid.as_str())).collect();
    assert_eq!(of(&compilers[1..])["processes"].as_array().unwrap().len(), 50);
    let too_many = of(&compilers);
    assert_eq!((&too_many["processes"], &too_many["process_count"]), (&json!([]), &json!(51)));
    assert_eq!(too_many["trees"][0]["nodes"]["process"], Value::Null);
}

#[test]
fn the_times_of_samples_and_other_events_know_the_process_too() {
    let mut cpu = batch(&["main"], &[("java", "1"), ("java", "2")]);
    for series in &mut cpu.series {
        series.samples[0].times = vec![7, 8, 9];
        series.labels.insert("runtime".to_owned(), "jvm".to_owned());
    }
    let mut allocation = cpu.clone();
    allocation.event = EventType::Allocation;
    let title = RecordingTitle { title: "java".to_owned(), host: String::new() };
    let mut out = Vec::new();
    write_html(&[cpu, allocation], &[], StackGroups::Programs, &title, &mut out).unwrap();
    let data = data(&String::from_utf8(out).unwrap());
    let numbers = |activity: JvmActivity| [1_u64, 2].map(|process| (process << 8) | activity as u64);
    let [unknown, other] = [JvmActivity::Unknown, JvmActivity::OtherProcess].map(numbers);
    assert_eq!(data["trees"][0]["nodes"]["activity"][1], json!([unknown[0], 3, unknown[1], 3]));
    assert_eq!(data["times"][0]["activities"], json!(unknown));
    let bytes = 3 * 10_101_010;
    assert_eq!(data["trees"][1]["nodes"]["process"][1], json!([other[0], bytes, other[1], bytes]));
    assert_eq!(data["trees"][1]["nodes"]["activity"], Value::Null);
    assert_eq!(data["times"][1]["processes"], json!(other));
    assert_eq!(data["times"][1]["activities"], Value::Null);
}

#[test]
fn wall_clock_time_has_no_parts_since_its_waits_have_no_times() {
    let mut batch = batch(&["main"], &[("java", "1")]);
    batch.series[0].samples[0].times = vec![7, 8, 9];
    let times = |event| {
        let of_event = Batch { event, ..batch.clone() };
        data(&page(&of_event, "t"))["times"][0]["nodes"].clone()
    };
    assert_eq!([EventType::Cpu, EventType::Wall].map(times), [json!([1]), json!([])]);
}

#[test]
fn threads_have_a_node_each_where_they_are_to_be_apart() {
    let mut batch = batch(&["main"], &[("java", "1"), ("java", "2"), ("java", "2")]);
    for (series, thread) in batch.series.iter_mut().zip(["a", "b", "c"]) {
        series.labels.insert("thread_name".to_owned(), thread.to_owned());
        series.labels.insert("thread_id".to_owned(), "7".to_owned());
    }
    assert_eq!(serde_json::to_value(StackGroups::Threads).unwrap(), "threads", "record.js asks for it");
    let title = RecordingTitle { title: "java".to_owned(), host: String::new() };
    let mut out = Vec::new();
    write_html(std::slice::from_ref(&batch), &[], StackGroups::Threads, &title, &mut out).unwrap();
    let by_thread = data(&String::from_utf8(out).unwrap());
    let expected = ["java (1): a (7)", "java (2): b (7)", "java (2): c (7)"];
    assert_eq!(groups(&by_thread), BTreeSet::from(expected));
    assert_eq!(groups(&data(&page(&batch, "t"))), BTreeSet::new());
}

#[test]
fn a_page_of_two_events_has_what_each_counts() {
    let cpu = batch(&["main"], &[("java", "1"), ("java", "1")]);
    let mut allocation = batch(&["byte[]"], &[("java", "1")]);
    allocation.event = EventType::Allocation;
    let title = RecordingTitle { title: "java".to_owned(), host: String::new() };
    let mut out = Vec::new();
    write_html(&[cpu, allocation], &[], StackGroups::Programs, &title, &mut out).unwrap();
    let data = data(&String::from_utf8(out).unwrap());
    let types: Vec<_> =
        data["types"].as_array().unwrap().iter().map(|of| (&of["name"], &of["unit"])).collect();
    let expected = [
        ("samples", "samples"),
        ("cpu", "nanoseconds"),
        ("alloc_space", "bytes"),
        ("alloc_objects", "objects"),
    ];
    let expected = expected.map(|(name, unit)| (Value::from(name), Value::from(unit)));
    assert!(types.iter().copied().eq(expected.iter().map(|(name, unit)| (name, unit))), "{types:?}");
    let total = |of: usize| &data["trees"][data["types"][of]["tree"].as_u64().unwrap() as usize]["total"];
    assert_eq!([total(0), total(1), total(2), total(3)], [6, 6, 30_303_030, 3]);
}

#[test]
fn waits_have_the_kinds_of_their_threads_as_cpu_time_has() {
    let column = |event| {
        let mut batch = batch(&["main"], &[("java", "1")]);
        batch.event = event;
        let label = SampleLabel { name: "thread_kind".into(), value: "gc".into() };
        batch.series[0].samples[0].labels = SampleLabels::new([label]);
        data(&page(&batch, "t"))["trees"][0]["nodes"]["activity"].clone()
    };
    for event in [EventType::Cpu, EventType::OffCpu, EventType::Wall, EventType::Lock, EventType::LockHolder]
    {
        // Above the number of what it was taken in stands that of the kind.
        assert_eq!(column(event), serde_json::json!([[], [3 << 4 | 1]]), "{event:?}");
    }
    assert_eq!(column(EventType::Allocation), Value::Null);
}

#[test]
fn an_empty_batch_is_a_page_too() {
    let data = data(&page(&batch(&[], &[]), "nothing"));
    assert_eq!(data["trees"][0]["total"], 0);
    assert_eq!(data["start_ms"], 1_700_000_000_000_u64);
}
