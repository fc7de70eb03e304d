//! A process whose name and arguments look like labels: values must never be parsed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use prost::Message as _;

use super::*;
use crate::clock::monotonic_ns;
use crate::config::relabel::RelabelRule;
use crate::export::push::requests;
use crate::process::{ProcessTable, procfs};
use crate::profile::model::{Batch, Sample, Series};
use crate::proto::profilestore::WriteRawRequest;

/// A name with line breaks, quotes, the end of a field of `/proc/PID/stat`, a label's name, bytes
/// that are no text.
const NAME: &[u8] = b") R 1\n\",__name__=\"x\",node=\"evil\"}\xff\xfe\x1b[31m";
/// Length of the longest argument that Linux accepts, but for some bytes: eight of them are a
/// mebibyte.
const LONG: usize = 127 << 10;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a shell of that name, with that and more as arguments and environment, that waits for its
/// input.
fn hostile(dir: &std::path::Path) -> Killed {
    let program = dir.join(OsStr::from_bytes(NAME));
    fs::copy("/bin/sh", &program).expect("a copy of the shell");
    let mut command = Command::new(program);
    command.arg0(OsStr::from_bytes(NAME)).args(["-c", "read line"]).arg(OsStr::from_bytes(NAME));
    command.args((0..8).map(|_| "\n__name__=\"".repeat(LONG / 11)));
    command.env("__name__", "evil").env("JVMPROF_NODE", "evil").env("node", OsStr::from_bytes(NAME));
    let child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    // Until it has replaced the test's program: it has that name then.
    let comm = format!("/proc/{}/comm", child.id());
    while !fs::read(&comm).is_ok_and(|comm| comm.starts_with(&NAME[..8])) {
        std::thread::yield_now();
    }
    Killed(child)
}

/// Returns the label sets that a backend would get.
fn sent(labels: &LabelSet) -> Vec<Vec<(String, String)>> {
    let samples = vec![Sample::of_events([].into(), 1, 1)];
    let series = vec![Series { labels: labels.clone(), samples }];
    let batch = Batch {
        event: EventType::Cpu,
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        period: 1,
        series,
    };
    let requests = requests(&batch, 1 << 20).expect("it can be encoded");
    // As the spool has it: a count, so many numbers, the message.
    let decoded = requests.iter().map(|request| {
        let bytes = request.to_bytes();
        WriteRawRequest::decode(&bytes[4 + 8 * request.series()..]).expect("a request")
    });
    let series = decoded.flat_map(|request| request.series);
    let pairs = |set: crate::proto::profilestore::LabelSet| {
        set.labels.into_iter().map(|label| (label.name, label.value)).collect()
    };
    series.filter_map(|series| series.labels.map(pairs)).collect()
}

#[test]
fn a_process_can_choose_values_and_no_names_whatever_it_calls_itself() {
    let dir = tempfile::tempdir().expect("a folder");
    let child = hostile(dir.path());
    let pid = child.0.id();
    let facts = procfs::process_info(pid).expect("a child can be read");
    assert_eq!(facts.parent, std::process::id(), "its name ends no field of its stat");
    let mut table = ProcessTable::default();
    table.insert_running(pid, &facts, monotonic_ns());
    let process = table.get(pid).expect("it was added");
    // All that is known of it becomes labels of its own.
    let map = "{ regex = '__meta_(.+)', replacement = 'meta_$1', action = 'labelmap' }";
    let rules = vec![RelabelRule::from_str(map).expect("a rule")];
    let options = LabelOptions { rules, ..LabelOptions::plain("host".to_owned()) };
    let mut targets = Targets::new(options, vec![EventType::Cpu], ContainerLookup::default());
    let label_key = LabelKey {
        process: process.key,
        thread_name: 0,
        tid: 0,
        cpu: 0,
        generation: 0,
        event: EventType::Cpu,
    };
    let LabelDecision::Labels(labels) = targets.evaluate_rules(process, None, label_key, 1) else {
        panic!("nothing drops it")
    };
    assert_eq!((&*labels["node"], &*labels["meta_node"]), ("host", "host"));
    assert_eq!(labels["pid"], pid.to_string());
    assert!(labels["comm"].starts_with(") R 1 \",__name"), "{}", labels["comm"]);
    assert_eq!(labels["meta_process_cmdline"].chars().count(), 1024);
    assert_eq!(targets.counts().cut_labels, 1, "what is cut is counted");
    for (name, value) in &*labels {
        let is_own = ["node", "pid", "comm", "executable", "runtime", "container_id", "systemd_unit"]
            .contains(&&**name);
        assert!(is_own || name.starts_with("meta_"), "{name} is a name that nobody gave");
        assert!(value.len() <= 4096 && !value.chars().any(char::is_control), "{name}: {value:?}");
    }
    let sent = sent(&labels);
    assert_eq!(sent.len(), 1, "one series");
    let expected = labels.iter().map(|(name, value)| (name.clone(), value.clone()));
    let mut expected: Vec<_> = expected.chain([("__name__".to_owned(), "process_cpu".to_owned())]).collect();
    expected.sort();
    let mut sent = sent.into_iter().next().unwrap_or_default();
    sent.sort();
    assert_eq!(sent, expected);
}

#[test]
fn the_kernel_lets_no_cgroup_have_a_line_break_in_its_name() {
    // What `Cgroup::parse` relies on: one line, one hierarchy (kernel/cgroup/cgroup.c,
    // `cgroup_mkdir`).
    let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"];
    let mounted: Vec<_> = hierarchies
        .iter()
        .filter(|path| fs::exists(format!("{path}/cgroup.procs")).unwrap_or(false))
        .collect();
    assert!(!mounted.is_empty(), "cgroups are mounted where tests run");
    for path in mounted {
        let name = format!("{path}/jvmprof-test-{}\n0::/system.slice/evil.service", std::process::id());
        let made = fs::create_dir(&name);
        let _ = fs::remove_dir(&name);
        assert!(made.is_err(), "{name:?}");
    }
}
