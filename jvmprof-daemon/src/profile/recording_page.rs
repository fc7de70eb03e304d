//! `record -o x.html`: one file with everything in it, that any browser opens without a network.
//!
//! Names come from the profiled processes and may be hostile. They are gzipped data in base64,
//! which can't leave its element; the scripts make text nodes of them; and the page's
//! Content-Security-Policy runs only scripts with the nonce of this very file and loads nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use serde::Serialize;

use super::call_tree::{CallTree, PAGE_NODES, Processes, SampleTimes, TreeBuilder};
use super::comparison::ComparedSide;
use super::gzip;
use super::model::{Batch, LabelSet, NO_PROGRAM, label_names, process_name, program_name};
use super::page_assets::{RECORD_LOADER, RECORD_PAGE, RECORD_SCRIPT, STYLE, VIEW_SCRIPTS};
use crate::event_type::{EventType, SampleNumber, ShownUnit};

/// The reason why a flame graph couldn't be written.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    #[error("encoding the flame graph as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("writing the flame graph: {0}")]
    Write(#[from] io::Error),
}

/// The title of a recording: what was recorded, and where. Any text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordingTitle {
    /// The command, or the main classes or programs of the processes.
    pub title: String,
    /// The host; empty if `title` is the host.
    pub host: String,
}

impl fmt::Display for RecordingTitle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title)?;
        if self.host.is_empty() { Ok(()) } else { write!(f, " on {}", self.host) }
    }
}

/// The data of the page: trees and what is said beside them. The names in JSON are what the page's
/// `record.js` reads.
#[derive(Debug, Serialize)]
pub(super) struct Recorded<'a> {
    #[serde(flatten)]
    pub(super) title: &'a RecordingTitle,
    /// What the nodes above stacks are, where there are any.
    pub(super) groups: StackGroups,
    /// The processes that stacks can be grouped by instead.
    #[serde(flatten)]
    pub(super) processes: Processes,
    pub(super) start_ms: u64,
    /// When what it is compared with was taken, if it is; 0 if that isn't known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base_start_ms: Option<u64>,
    pub(super) duration_ns: u64,
    pub(super) types: Vec<RecordedType>,
    pub(super) trees: Vec<CallTree>,
    /// When the samples of each tree were taken; empty if that isn't known.
    pub(super) times: Vec<SampleTimes>,
    /// When JVMs stopped, if that was followed.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) pauses: &'a [PauseLane],
}

/// The pauses of one JVM. The names in JSON are what the pages' scripts read. Times are since the
/// start of what the page's timeline shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseLane {
    /// Main class or command, and process id.
    pub jvm: String,
    /// When the JVM began to be followed, and for how long it was.
    pub followed_from_ms: f64,
    pub followed_ms: f64,
    /// From when to when it was, where that is asked for and there are gaps between.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub followed_spans_ms: Vec<[f64; 2]>,
    /// Sums of all its pauses.
    pub pauses: u64,
    pub stopped_ms: f64,
    pub to_safepoint_ms: f64,
    /// Its pauses, as far as they are kept; none if the JVM's own sums are all that is known.
    pub marks: Vec<PauseMark>,
}

/// One pause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseMark {
    /// When the JVM began to stop its threads.
    pub begin_ms: f64,
    /// The time until all threads had stopped, and from then until they went on.
    pub to_safepoint_ms: f64,
    pub stopped_ms: f64,
    /// What the JVM stopped for.
    pub what: String,
}

/// A type of samples that can be counted, and its tree.
#[derive(Debug, Serialize)]
pub(super) struct RecordedType {
    /// pprof's name of it.
    pub(super) name: String,
    pub(super) unit: ShownUnit,
    /// What an event stands for.
    pub(super) period_ns: u64,
    pub(super) tree: usize,
    /// What the numbers of the base and of the tree are compared by, if there is a base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sides: Option<[ComparedSide; 2]>,
}

/// Nodes of each tree beside the first one: a page is to have less than a megabyte.
const NODES_BESIDE: usize = PAGE_NODES / 2;

/// The groups that have a node of their own above their stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StackGroups {
    /// Programs, where there are several: main classes of JVMs, or else commands.
    Programs,
    /// Threads, by the labels `thread_name` and `thread_id`.
    Threads,
}

/// Writes the batches, each of an event, as a page on which one chooses what is counted.
///
/// Where several programs were recorded, each has a node above its stacks; or else each thread, if
/// `groups` says so. `pauses`: those of JVMs, if they were followed.
///
/// # Errors
/// Those of `out`.
pub fn write_html(
    batches: &[Batch],
    pauses: &[PauseLane],
    groups: StackGroups,
    title: &RecordingTitle,
    out: &mut impl Write,
) -> Result<(), HtmlError> {
    let (mut types, mut trees, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let processes = Processes::of_batches(batches);
    let grouping = Grouping { groups, has_programs: has_several_programs(batches), processes: &processes };
    for batch in batches {
        let mut add = |name: &str, unit, number: Option<SampleNumber>| {
            if let Some(number) = number {
                let nodes = if trees.is_empty() { PAGE_NODES } else { NODES_BESIDE };
                let (tree, times_of_tree) = tree(batch, number, &grouping, nodes);
                // Bytes and times are shown with three digits, and objects are estimates.
                let is_rounded = number == SampleNumber::Value || batch.event == EventType::Allocation;
                trees.push(tree.packed(is_rounded));
                times.push(times_of_tree);
            }
            let (name, tree) = (name.to_owned(), trees.len() - 1);
            types.push(RecordedType { name, unit, period_ns: batch.period, tree, sides: None });
        };
        match batch.event {
            EventType::Cpu => {
                add("samples", ShownUnit::Samples, Some(SampleNumber::Count));
                add("cpu", ShownUnit::Nanoseconds, None);
            }
            EventType::Allocation => {
                add("alloc_space", ShownUnit::Bytes, Some(SampleNumber::Value));
                add("alloc_objects", ShownUnit::Objects, Some(SampleNumber::Count));
            }
            EventType::OffCpu => add("off_cpu", ShownUnit::WaitingTime, Some(SampleNumber::Value)),
            EventType::Lock => {
                add("delay", ShownUnit::LockTime, Some(SampleNumber::Value));
                add("contentions", ShownUnit::Contentions, Some(SampleNumber::Count));
            }
            EventType::LockHolder => {
                add("caused_delay", ShownUnit::LockTime, Some(SampleNumber::Value));
                add("caused_contentions", ShownUnit::Contentions, Some(SampleNumber::Count));
            }
            EventType::Pause => {
                add("pause", ShownUnit::PauseTime, Some(SampleNumber::Value));
                add("pauses", ShownUnit::Pauses, Some(SampleNumber::Count));
            }
            EventType::Wall => add("wall", ShownUnit::WallTime, Some(SampleNumber::Value)),
        }
    }
    let first = batches.first();
    let recorded = Recorded {
        title,
        groups,
        processes,
        start_ms: first.map_or(0, |batch| since_epoch_ms(batch.start)),
        base_start_ms: None,
        duration_ns: first.map_or(0, |batch| u64::try_from(batch.duration.as_nanos()).unwrap_or(u64::MAX)),
        types,
        trees,
        times,
        pauses,
    };
    write_page(&recorded, out)
}

/// Writes the page of this data.
pub(super) fn write_page(recorded: &Recorded<'_>, out: &mut impl Write) -> Result<(), HtmlError> {
    let data = packed(&serde_json::to_vec(recorded)?)?;
    let nonce = format!("{:032x}", rand::random::<u128>());
    fill(&nonce, &data, out)?;
    Ok(())
}

fn has_several_programs(batches: &[Batch]) -> bool {
    let series = batches.iter().flat_map(|batch| &batch.series);
    series.map(|series| program_name(&series.labels)).collect::<BTreeSet<_>>().len() > 1
}

/// Returns what a thread is called above its stacks; `None` where series aren't of threads.
fn thread(labels: &LabelSet) -> Option<String> {
    let name = labels.get(label_names::THREAD_NAME).map_or("", String::as_str);
    labels.get(label_names::THREAD_ID).map(|tid| format!("{name} ({tid})"))
}

/// The grouping of stacks: the nodes above them.
struct Grouping<'a> {
    groups: StackGroups,
    has_programs: bool,
    processes: &'a Processes,
}

impl Grouping<'_> {
    /// Returns the name of the node above the stacks of a series, if they have one.
    fn group(&self, labels: &LabelSet) -> Option<String> {
        if self.groups == StackGroups::Programs {
            let program = program_name(labels).unwrap_or(NO_PROGRAM);
            return self.has_programs.then(|| program.to_owned());
        }
        let process = if self.processes.are_several() { process_name(labels) } else { None };
        match (process, thread(labels)) {
            (Some(process), Some(thread)) => Some(format!("{process}: {thread}")),
            (process, thread) => process.or(thread),
        }
    }
}

fn tree(
    batch: &Batch,
    number: SampleNumber,
    grouping: &Grouping<'_>,
    max_nodes: usize,
) -> (CallTree, SampleTimes) {
    let mut builder = TreeBuilder::default();
    if !matches!(batch.event, EventType::Allocation | EventType::Pause) {
        builder.count_activities();
    }
    builder.count_processes(grouping.processes);
    let group = |labels: &LabelSet| grouping.group(labels);
    builder.add_batch(batch, number, group);
    let times = builder.sample_times(batch, group, max_nodes);
    (builder.finish(max_nodes), times)
}

fn since_epoch_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Fills the template in one pass.
fn fill(nonce: &str, data: &str, out: &mut impl Write) -> io::Result<()> {
    let mut rest = RECORD_PAGE.text;
    while let Some((before, placeholder, after)) = next_placeholder(rest) {
        out.write_all(before.as_bytes())?;
        match placeholder {
            "nonce" => out.write_all(nonce.as_bytes())?,
            "style" => out.write_all(STYLE.text.as_bytes())?,
            "data" => out.write_all(data.as_bytes())?,
            "loader" => out.write_all(RECORD_LOADER.text.as_bytes())?,
            _ => out.write_all(packed(scripts().as_bytes())?.as_bytes())?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (placeholder, after) = rest.split_once("}}")?;
    Some((before, placeholder, after))
}

/// All scripts as one.
fn scripts() -> String {
    let scripts = VIEW_SCRIPTS.iter().chain([&RECORD_SCRIPT]);
    scripts.map(|script| script.text).collect::<Vec<_>>().join("\n;\n")
}

/// Gzip in base64, which the page's loader unpacks.
fn packed(bytes: &[u8]) -> io::Result<String> {
    Ok(base64::engine::general_purpose::STANDARD.encode(gzip::compress_well(bytes)?))
}

/// The data of a page.
#[cfg(test)]
pub(super) fn data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"profile\"").expect("the page has data");
    let (_, rest) = rest.split_once('>').expect("the element begins");
    let (packed, _) = rest.split_once("</script>").expect("the element ends");
    let packed = base64::engine::general_purpose::STANDARD.decode(packed).expect("it is base64");
    serde_json::from_slice(&gzip::decompress(&packed, 1 << 28).expect("it is gzip")).expect("it is JSON")
}

#[cfg(test)]
mod tests {
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
        let hostile = [
            "</script><script>alert(1)</script>",
            "<!--<script>",
            "{{scripts}}",
            "\u{2028}'\"\\&amp;",
            "]]>",
        ];
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
        assert_eq!(
            one.matches("<script").count(),
            one.matches(&format!("nonce=\"{}\"", nonce(&one))).count()
        );
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
        for event in
            [EventType::Cpu, EventType::OffCpu, EventType::Wall, EventType::Lock, EventType::LockHolder]
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
}
