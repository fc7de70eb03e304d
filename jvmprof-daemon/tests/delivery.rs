//! `jvmprof daemon`, to a collector, to a folder, and to nobody. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jvmprof_daemon::export::store::{Store, TimeRange, UnixNanos};
use support::{Workload, compile, jvmprof, scratch, signal};

const BUSY: &str = r"
volatile unsigned long sink;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 20000; i++) sink += i * i; }
int main(void) { for (;;) spin(); }
";

/// A collector on a free port, and its address.
fn collector(dir: &Path) -> (Child, String) {
    let mut collector = jvmprof()
        .args(["collector", "--listen", "127.0.0.1:0", "--dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(collector.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (collector, line.trim().trim_end_matches('/').to_owned())
}

/// Runs a daemon for a time, ends it by SIGTERM, and gives its last log line's numbers.
fn daemon(args: &[&str], time: Duration) -> (String, bool) {
    let dir = scratch();
    let log = dir.path().join("log");
    let mut daemon = jvmprof()
        .args(["--log-level", "info", "daemon", "--push-interval", "2s"])
        .args(args)
        .stderr(fs::File::create(&log).unwrap())
        .env("NO_COLOR", "1")
        .spawn()
        .unwrap();
    std::thread::sleep(time);
    signal(daemon.id(), "TERM");
    let success = daemon.wait().unwrap().success();
    (fs::read_to_string(log).unwrap(), success)
}

/// The number of a field in the daemon's last line.
fn field(log: &str, name: &str) -> u64 {
    let last = log.lines().rfind(|line| line.contains("ended")).unwrap_or_else(|| panic!("no end in {log}"));
    let value = last.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {last}"))
}

fn stored(dir: &Path) -> u64 {
    let store = Store::open_for_reading(dir).unwrap();
    let everything = TimeRange { start: UnixNanos(0), end: UnixNanos(i64::MAX) };
    store.profiles(everything, &[]).iter().map(|profile| profile.samples).sum()
}

#[test]
fn every_sample_reaches_the_collector_the_last_ones_too() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (mut collector, address) = collector(&dir.path().join("store"));
    let (log, success) = daemon(&["--remote-store-address", &address], Duration::from_secs(5));
    assert!(success, "{log}");
    let series = Command::new("curl").args(["-s", &format!("{address}/healthz")]).output();
    assert!(series.is_ok_and(|output| output.stdout == b"ok\n"), "the page's routes are on the same port");
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    let samples = field(&log, "samples");
    assert!(samples > 100, "{log}");
    assert_eq!(field(&log, "delivered"), samples, "{log}");
    assert_eq!(stored(&dir.path().join("store")), samples);
}

#[test]
fn without_an_address_profiles_go_to_the_folder() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let store = dir.path().join("store");
    let (log, success) =
        daemon(&["--local-store-directory", store.to_str().unwrap()], Duration::from_secs(3));
    assert!(success, "{log}");
    assert_eq!(stored(&store), field(&log, "samples"), "{log}");
    assert!(stored(&store) > 50, "{log}");
}

#[test]
fn a_collector_that_is_down_loses_nothing_in_silence() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    // A port of this machine on which nobody listens.
    let (log, success) = daemon(&["--remote-store-address", "http://127.0.0.1:9"], Duration::from_secs(3));
    assert!(success, "{log}");
    assert!(log.contains("can't be pushed") || log.contains("not delivered in time"), "{log}");
    assert_eq!(field(&log, "delivered"), 0, "{log}");
}

#[test]
fn a_second_writer_of_a_folder_is_refused_by_name() {
    let dir = scratch();
    let store = dir.path().join("store");
    let (mut first, _) = collector(&store);
    let second =
        jvmprof().args(["collector", "--listen", "127.0.0.1:0", "--dir"]).arg(&store).output().unwrap();
    signal(first.id(), "TERM");
    first.wait().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains(store.to_str().unwrap()), "{stderr}");
}
