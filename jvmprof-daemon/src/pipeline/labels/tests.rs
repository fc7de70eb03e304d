//! Tests with this process as a target.

use std::io::{Read, Write};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use super::*;
use crate::clock::monotonic_ns;
use crate::config::relabel::RelabelRule;
use crate::export::store::{Store, StoreOptions, TimeRange};
use crate::process::process_context::test_writer::ContextWriter;
use crate::process::{ProcessTable, procfs};
use crate::profile::model::{Batch, Series};

/// Returns a table with this process in it.
fn table() -> ProcessTable {
    let mut table = ProcessTable::default();
    let facts = procfs::process_info(std::process::id()).expect("a process may read itself");
    table.insert_running(std::process::id(), &facts, monotonic_ns());
    table
}

fn allocated(samples: u64) -> SamplesByEvent {
    SamplesByEvent::of(EventType::Allocation, samples)
}

fn targets(rules: &[&str], sample_labels: &[ThreadLabel]) -> Targets {
    Targets::new(options(rules, sample_labels), vec![EventType::Cpu], ContainerLookup::default())
}

fn options(rules: &[&str], sample_labels: &[ThreadLabel]) -> LabelOptions {
    LabelOptions {
        rules: rules.iter().map(|text| RelabelRule::from_str(text).expect("a valid rule")).collect(),
        sample_labels: sample_labels.to_vec(),
        external: [("cluster".to_owned(), "prod".to_owned()), ("pid".to_owned(), "none".to_owned())].into(),
        ..LabelOptions::plain("host".to_owned())
    }
}

fn label_key(process: &Process) -> LabelKey {
    LabelKey { process: process.key, thread_name: 0, tid: 0, cpu: 0, generation: 0, event: EventType::Cpu }
}

fn decision(targets: &mut Targets, process: &Process, jvm: Option<&Arc<JvmLabels>>) -> Option<LabelSet> {
    let label_key = LabelKey { generation: targets.generation, ..label_key(process) };
    labels(targets.evaluate_rules(process, jvm, label_key, 1))
}

fn labels(verdict: LabelDecision) -> Option<LabelSet> {
    match verdict {
        LabelDecision::Labels(labels) => Some((*labels).clone()),
        LabelDecision::Dropped => None,
        LabelDecision::Awaited => panic!("no runtime is asked"),
    }
}

#[test]
fn labels_follow_the_properties_of_a_jvm() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let mut targets = targets(&[], &[]);
    let known = decision(&mut targets, process, None).expect("kept");
    assert_eq!((&*known["runtime"], &*known["node"], &*known["cluster"]), ("native", "host", "prod"));
    assert_eq!(known["pid"], process.pid.to_string(), "an external label replaces nothing");
    assert!(known.keys().all(|name| !name.starts_with("__")), "{known:?}");
    let starting = Arc::new(JvmLabels { version: "17.0.15".to_owned(), main_class: None });
    let known = decision(&mut targets, process, Some(&starting)).expect("kept");
    assert_eq!((&*known["runtime"], &*known["jvm_version"]), ("jvm", "17.0.15"));
    assert!(!known.contains_key("jvm_main_class"));
    let main_class = Some("com.acme.Main".to_owned());
    let running = Arc::new(JvmLabels { main_class, ..(*starting).clone() });
    let known = decision(&mut targets, process, Some(&running)).expect("kept");
    assert_eq!(known["jvm_main_class"], "com.acme.Main");
}

#[test]
fn rules_see_meta_labels_and_series_do_not() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let facts = process.info().expect("they were read");
    let rules = [
        "{ source_labels = ['__meta_process_ppid', '__meta_process_uid'], target_label = 'who' }",
        "{ source_labels = ['__meta_process_cmdline'], target_label = 'cmdline' }",
        "{ source_labels = ['__meta_cgroup_path'], target_label = 'cgroup' }",
        "{ regex = 'comm|executable', action = 'labeldrop' }",
        "{ target_label = '__tmp', replacement = 'x' }",
    ];
    let known = decision(&mut targets(&rules, &[]), process, None).expect("kept");
    assert_eq!(known["who"], format!("{};{}", facts.parent, facts.uid));
    assert_eq!(known["cgroup"], process.cgroup().expect("it was read").path);
    assert!(facts.cmdline.starts_with(&known["cmdline"]));
    for absent in ["comm", "executable", "__tmp"] {
        assert!(!known.contains_key(absent), "{absent}");
    }
}

#[test]
fn a_service_is_a_label_and_rules_see_it() {
    let mut child = std::process::Command::new("cat")
        .env("OTEL_SERVICE_NAME", "cart")
        .env("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=shop,deployment.environment=prod")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("cat");
    // The kernel may not have set up the new program's environment before it answers.
    child.stdin.as_mut().expect("a pipe").write_all(b"x").expect("it reads");
    child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it answers");
    let info = procfs::process_info(child.id()).expect("it is readable");
    let mut table = ProcessTable::default();
    table.insert_running(child.id(), &info, monotonic_ns());
    let process = table.get(child.id()).expect("it was inserted");
    let mut labels = process_labels::own_labels(process, None);
    process_labels::add_meta(&mut labels, process, None);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    for (name, value) in
        [("service_name", "cart"), ("service_namespace", "shop"), ("deployment_environment", "prod")]
    {
        assert_eq!(labels.set[name], value);
        assert_eq!(labels.set[&format!("__meta_otel_{name}")], value);
    }
}

#[test]
fn the_context_goes_before_the_environment_and_its_changes_are_in_the_labels() {
    let mut writer = ContextWriter::start();
    writer.publish("memfd", &[("service.name", "cart"), ("k8s.pod.name", "cart-0"), ("pid", "1")]);
    let info = procfs::process_info(writer.pid()).expect("it is readable");
    let mut table = ProcessTable::default();
    let now_ns = monotonic_ns();
    let mut options =
        options(&["{ source_labels = ['__meta_otel_resource_team'], target_label = 'who' }"], &[]);
    options.resource_labels = ["k8s.pod.name", "pid", "team", "none"].map(ToOwned::to_owned).to_vec();
    let mut targets = Targets::new(options, vec![EventType::Cpu], ContainerLookup::default());
    let process = table.insert_running(writer.pid(), &info, now_ns);
    let labels = decision(&mut targets, process, None).expect("kept");
    for (name, value) in [
        ("service_name", "cart"),
        ("service_namespace", "of-environment"),
        ("k8s_pod_name", "cart-0"),
        ("team", "core"),
        ("who", "core"),
        ("pid", &*writer.pid().to_string()),
    ] {
        assert_eq!(labels[name], value);
    }
    assert!(!labels.contains_key("none"));
    writer.update(&[("service.name", "till"), ("service.namespace", "shop")]);
    let process = table.insert_running(writer.pid(), &info, now_ns + 2_000_000_000);
    let labels = decision(&mut targets, process, None).expect("kept");
    assert_eq!((&*labels["service_name"], &*labels["service_namespace"]), ("till", "shop"));
    assert!(!labels.contains_key("k8s_pod_name"));
}

#[test]
fn names_of_processes_are_values_and_nothing_else() {
    const HOSTILE: &str = "x\",pid=\"1\"}\n{a\u{0}";
    let mut table = ProcessTable::default();
    // Above the kernel's PID_MAX_LIMIT: nothing else is known of it.
    table.exec(5_000_000, HOSTILE, 0);
    let process = table.get(5_000_000).expect("it was told of");
    let labels = labels_of(process, None, "host");
    assert_eq!((&*labels["comm"], &*labels["pid"]), ("x\",pid=\"1\"} {a ", "5000000"));
    let samples = vec![crate::profile::model::Sample::of_events([].into(), 1, 1)];
    let batch = Batch {
        event: EventType::Cpu,
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        period: 1,
        series: vec![Series { labels: labels.clone(), samples }],
    };
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::open(dir.path(), StoreOptions::default()).expect("a store");
    store.append_batch(&batch).expect("stored");
    let stored = store.series(TimeRange::ALL, &[]).remove(0).labels;
    let named = LabelSet::from([("__name__".to_owned(), "process_cpu".to_owned())]);
    assert_eq!(stored, labels.into_iter().chain(named).collect::<LabelSet>());
}

#[test]
fn dropped_samples_are_counted_and_new_rules_decide_anew() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let drop = "{ source_labels = ['pid'], regex = '[0-9]+', action = 'drop' }";
    let mut targets = targets(&[drop], &[]);
    assert_eq!(decision(&mut targets, process, None), None);
    assert_eq!(labels(targets.finalize_labels(label_key(process), allocated(3), false)), None);
    assert_eq!(targets.counts().dropped, SamplesByEvent::of(EventType::Cpu, 1) + allocated(3));
    targets.set_options(options(&[], &[]));
    assert!(decision(&mut targets, process, None).is_some());
    assert!(
        labels(targets.finalize_labels(
            LabelKey { generation: 1, ..label_key(process) },
            allocated(3),
            false
        ))
        .is_some()
    );
    // A JVM that isn't one yet, for who wants JVMs only.
    targets.set_options(options(&["{ source_labels = ['runtime'], regex = 'jvm', action = 'keep' }"], &[]));
    assert_eq!(decision(&mut targets, process, None), None);
    let jvm = Arc::new(JvmLabels { version: "17".to_owned(), main_class: None });
    assert!(decision(&mut targets, process, Some(&jvm)).is_some());
    assert_eq!(targets.counts().dropped, SamplesByEvent::of(EventType::Cpu, 2) + allocated(3));
}

#[test]
fn rules_see_the_event_and_may_want_one_of_a_process_alone() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let all = EventType::ALL.to_vec();
    let no_memory_but_of_main = "{ source_labels = ['__name__', '__meta_jvm_main_class'], regex = 'memory;(|.*Batch)', action = 'drop' }";
    let jvm =
        |class: &str| Arc::new(JvmLabels { version: "17".to_owned(), main_class: Some(class.to_owned()) });
    let rules = options(&[no_memory_but_of_main], &[]);
    let mut targets = Targets::new(rules, all, ContainerLookup::default());
    assert!(!targets.is_wanted(process.key, EventType::Allocation), "it hasn't been sampled");
    for (class, is_wanted) in [("com.acme.Batch", false), ("com.acme.Server", true)] {
        assert!(decision(&mut targets, process, Some(&jvm(class))).is_some(), "CPU time of {class}");
        assert_eq!(targets.is_wanted(process.key, EventType::Allocation), is_wanted, "{class}");
        let of_allocation = LabelKey { event: EventType::Allocation, ..label_key(process) };
        let labels = labels(targets.finalize_labels(of_allocation, allocated(3), false));
        assert_eq!(labels.is_some(), is_wanted, "{class}");
        assert!(labels.is_none_or(|labels| !labels.contains_key("__name__")));
    }
    assert_eq!(targets.counts().dropped, allocated(3));
}

#[test]
fn a_process_is_dropped_unseen_unless_its_code_could_change_the_decision() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let drop = "{ source_labels = ['comm'], regex = '.*', action = 'drop' }";
    let mut none = targets(&[], &[]);
    assert!(!none.drop_before_symbolizing(process, 1, EventType::Cpu), "without rules nothing is dropped");
    let mut wanted = targets(&["{ source_labels = ['runtime'], regex = 'native', action = 'keep' }"], &[]);
    assert!(!wanted.drop_before_symbolizing(process, 1, EventType::Cpu));
    let mut unwanted = targets(&[drop], &[]);
    assert!(unwanted.drop_before_symbolizing(process, 1, EventType::Cpu));
    assert_eq!(unwanted.counts().dropped, SamplesByEvent::of(EventType::Cpu, 1));
    // Rules that read labels of single samples are evaluated for each of them.
    let by_thread = "{ source_labels = ['thread_name'], regex = '.*', action = 'drop' }";
    let mut by_thread = targets(&[by_thread], &[ThreadLabel::ThreadName]);
    assert!(!by_thread.drop_before_symbolizing(process, 1, EventType::Cpu));
    let mut jvm = ProcessTable::default();
    jvm.exec(5_000_000, "java", 0);
    let code = crate::process::process_table::mapped_code(
        5_000_000,
        crate::types::Avma(0x1000),
        0x1000,
        crate::types::FileOffset(0),
        "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
        None,
    );
    jvm.insert_mapping(5_000_000, monotonic_ns(), code);
    let jvm = jvm.get(5_000_000).expect("it was told of");
    assert!(jvm.is_jvm() && !unwanted.drop_before_symbolizing(jvm, 1, EventType::Cpu));
}

#[test]
fn waiting_samples_are_labelled_by_the_settings_of_their_own_time() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let job = |job: &str| {
        format!("{{ source_labels = ['__meta_process_pid'], target_label = 'job', replacement = '{job}' }}")
    };
    let mut targets = targets(&[&job("old")], &[]);
    let held = label_key(process);
    assert_eq!(decision(&mut targets, process, None).expect("kept")["job"], "old");
    targets.set_options(options(&[&job("new")], &[]));
    targets.set_options(LabelOptions::plain("renamed".to_owned()));
    // Sampled again meanwhile.
    let now = LabelKey { generation: 2, ..held };
    let known = labels(targets.evaluate_rules(process, None, now, 1)).expect("kept");
    assert_eq!((&*known["node"], known.get("job")), ("renamed", None));
    let of = |targets: &mut Targets, label_key| {
        labels(targets.finalize_labels(label_key, allocated(1), false)).expect("kept")
    };
    let before = of(&mut targets, held);
    assert_eq!((&*before["node"], &*before["job"], &*before["cluster"]), ("host", "old", "prod"));
    assert_eq!(of(&mut targets, LabelKey { generation: 1, ..held })["job"], "new");
    let live = HashSet::from([process.key]);
    targets.retain(&live, &HashSet::from([held]));
    assert!(targets.earlier.keys().eq(&[0]), "what nothing is held for is forgotten");
    assert_eq!(of(&mut targets, held)["job"], "old");
    targets.retain(&live, &HashSet::new());
    assert!(targets.earlier.is_empty());
}

#[test]
fn labels_of_samples_distinguish_threads() {
    let table = table();
    let process = table.get(std::process::id()).expect("it was added");
    let rule = "{ source_labels = ['thread_name'], regex = 'GC.*', action = 'drop' }";
    let mut targets = targets(&[rule], &[ThreadLabel::ThreadName, ThreadLabel::Cpu]);
    let mut of = |name: &str, cpu| {
        let name = targets.options.thread_name(name);
        let label_key = LabelKey { thread_name: targets.names.number(&name), cpu, ..label_key(process) };
        labels(targets.evaluate_rules(process, None, label_key, 1))
    };
    let (first, second) = (of("exec-1", 0).expect("kept"), of("exec-22", 0).expect("kept"));
    assert_eq!((&*first["thread_name"], &*first["cpu"]), ("exec-N", "0"));
    assert_eq!(first, second);
    assert_eq!(of("exec-3", 1).expect("kept")["cpu"], "1");
    assert_eq!(of("GC Thread#3", 0), None, "one thread's samples are dropped, the others' aren't");
    assert!(of("main", 0).is_some());
    assert_eq!(targets.counts().dropped, SamplesByEvent::of(EventType::Cpu, 1));
}

#[test]
fn names_of_threads_are_bounded() {
    let mut names = ThreadNames::default();
    let letters = |number: usize| -> String {
        format!("{number:06}").bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
    };
    let first = names.number(&letters(0));
    for number in 0..thread_names::MAX_NAMES + 10 {
        names.number(&letters(number));
    }
    assert_eq!(names.number(&letters(0)), first);
    let before = names.others;
    let other = names.number("one more");
    assert_eq!(names.name(other), "[other]");
    assert_eq!(names.number("yet another"), other);
    names.number(&letters(1));
    assert_eq!(names.others, before + 2);
}
