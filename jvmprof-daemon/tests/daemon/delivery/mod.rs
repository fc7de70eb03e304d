//! `jvmprof daemon`, to a collector, to a folder, and to nobody; its spool on disks that are full
//! or read-only. Needs root.

mod all_sinks;
mod collector_access;
mod disks;
mod otlp;
mod proxy;
mod pyroscope;
mod sample_times;
mod shared_folder;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::processes::until_it_ends;
use crate::support::{KilledChild, Workload, compile, jvmprof, scratch, signal};
use jvmprof_daemon::export::delivery::read_ledger;
use jvmprof_daemon::export::store::{Store, TimeRange, UnixNanos};

const BUSY: &str = r"
volatile unsigned long sink;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 20000; i++) sink += i * i; }
int main(void) { for (;;) spin(); }
";

/// A collector on a free port, and its address.
fn collector(dir: &Path) -> (KilledChild, String) {
    collector_at("127.0.0.1:0", dir)
}

pub(super) fn collector_at(address: &str, dir: &Path) -> (KilledChild, String) {
    collector_with(address, dir, &[])
}

fn collector_with(address: &str, dir: &Path, args: &[&str]) -> (KilledChild, String) {
    let mut collector = jvmprof();
    collector.args(["collector", "--listen", address, "--dir"]).arg(dir).args(args);
    let mut collector = KilledChild(collector.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(collector.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (collector, line.trim().trim_end_matches('/').to_owned())
}

/// As [`daemon_until`], with a spool of its own.
fn daemon(args: &[&str], is_done: impl Fn(&str) -> bool) -> (String, bool) {
    let spool = scratch();
    daemon_until(spool.path(), args, is_done)
}

/// Runs a daemon until it is done, which its log decides, ends it by SIGTERM, and gives its log and
/// whether it ended well.
pub(super) fn daemon_until(spool: &Path, args: &[&str], is_done: impl Fn(&str) -> bool) -> (String, bool) {
    let dir = scratch();
    let log = dir.path().join("log");
    let mut daemon = jvmprof();
    daemon.args(["--log-level", "info", "daemon", "--spool-directory"]).arg(spool).args(args);
    daemon.args(if args.contains(&"--push-interval") { &[][..] } else { &["--push-interval", "2s"] });
    daemon.stderr(fs::File::create(&log).unwrap()).env("NO_COLOR", "1");
    let mut daemon = KilledChild(daemon.spawn().unwrap());
    let log = || fs::read_to_string(&log).unwrap();
    let began = Instant::now();
    // A busy machine takes its time to load kernel programs.
    while !is_done(&log()) {
        let has_ended = daemon.try_wait().unwrap().is_some();
        let is_late = began.elapsed() > Duration::from_secs(180);
        assert!(!has_ended && !is_late, "{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    signal(daemon.id(), "TERM");
    let success = until_it_ends(&mut daemon, log).success();
    (log(), success)
}

/// Returns true if a daemon has delivered something, and its spool is empty by its last account.
fn has_emptied_spool(log: &str) -> bool {
    let account = log.lines().rfind(|line| line.contains("found=") && line.contains("spooled="));
    let number = |name| account.and_then(|line| number(line, name));
    number("spooled") == Some(0) && number("delivered").is_some_and(|delivered| delivered > 0)
}

/// The samples that a daemon had taken at the end of each window of CPU time, by its log.
fn windows(log: &str) -> impl Iterator<Item = u64> {
    let of_cpu_time = log.lines().filter(|line| line.contains("event=\"cpu\""));
    of_cpu_time.filter_map(|line| number(line, "samples_total"))
}

/// Returns true if a daemon has taken more samples than this, by its log.
pub(super) fn has_taken(log: &str, samples: u64) -> bool {
    windows(log).last().is_some_and(|total| total > samples)
}

/// The number of a field in a line of a log.
fn number(line: &str, name: &str) -> Option<u64> {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value?.parse().ok()
}

/// The number of a field in the daemon's last line.
pub(super) fn field(log: &str, name: &str) -> u64 {
    let last = log.lines().rfind(|line| line.contains("ended")).unwrap_or_else(|| panic!("no end in {log}"));
    number(last, name).unwrap_or_else(|| panic!("no {name} in {last}"))
}

pub(super) fn stored(dir: &Path) -> u64 {
    let store = Store::open_for_reading(dir).unwrap();
    let everything = TimeRange { start: UnixNanos(0), end: UnixNanos(i64::MAX) };
    store.profiles(everything, &[]).iter().map(|profile| profile.samples).sum()
}

#[test]
fn every_sample_reaches_the_collector_the_last_ones_too() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (mut collector, address) = collector(&dir.path().join("store"));
    let (log, success) = daemon(&["--remote-store-address", &address], |log| has_taken(log, 100));
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
    let args = ["--local-store-directory", store.to_str().unwrap()];
    let (log, success) = daemon(&args, |log| has_taken(log, 50));
    assert!(success, "{log}");
    assert_eq!(stored(&store), field(&log, "samples"), "{log}");
    assert!(stored(&store) > 50, "{log}");
}

/// An address of this machine on which nobody listens.
pub(super) fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The only folder in a spool directory: that of the only backend.
fn only_folder(spool: &Path) -> std::path::PathBuf {
    let mut folders: Vec<_> = fs::read_dir(spool).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders.remove(0)
}

#[test]
fn what_a_collector_that_is_down_misses_is_pushed_by_the_next_daemon() {
    let dir = scratch();
    let (spool, store, address) = (dir.path().join("spool"), dir.path().join("store"), free_address());
    let args = ["--remote-store-address", &address, "--remote-store-insecure"];
    let busy = compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]);
    let load = Workload::start(&busy, &[]);
    let (log, success) = daemon_until(&spool, &args, |log| has_taken(log, 100));
    assert!(success, "{log}");
    let missed = field(&log, "samples");
    assert!(missed > 100, "{log}");
    assert_eq!(
        (field(&log, "delivered"), field(&log, "lost"), field(&log, "spooled")),
        (0, 0, missed),
        "{log}"
    );

    drop(load);
    let (mut collector, _) = collector_at(&address, &store);
    let (log, success) = daemon_until(&spool, &args, has_emptied_spool);
    assert!(success, "{log}");
    assert_eq!(field(&log, "delivered"), missed + field(&log, "samples"), "{log}");
    signal(collector.id(), "TERM");
    assert!(collector.wait().unwrap().success());
    assert_eq!(stored(&store), field(&log, "delivered"));
    let total = read_ledger(&only_folder(&spool)).unwrap().unwrap().total().of_all_events();
    assert_eq!((total.delivered, total.losses.total(), total.unaccounted()), (stored(&store), 0, 0));
}

#[test]
fn without_a_spool_nobody_to_push_to_is_a_counted_loss() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let address = free_address();
    let args = ["--remote-store-address", &address, "--remote-store-insecure"];
    let (log, success) = daemon_until(Path::new("none"), &args, |log| has_taken(log, 50));
    assert!(success, "{log}");
    assert_eq!((field(&log, "delivered"), field(&log, "spooled")), (0, 0), "{log}");
    assert_eq!(field(&log, "lost"), field(&log, "samples"), "{log}");
}

#[test]
fn a_second_daemon_on_the_same_spool_is_refused_by_name() {
    let dir = scratch();
    let spool = dir.path().join("spool");
    let address = free_address();
    let mut first = jvmprof();
    first.args([
        "daemon",
        "--remote-store-insecure",
        "--remote-store-address",
        &address,
        "--spool-directory",
    ]);
    let first = first.arg(&spool).stderr(Stdio::piped()).env("NO_COLOR", "1").spawn();
    let mut first = KilledChild(first.unwrap());
    let mut lines = BufReader::new(first.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("profiling")), "the first daemon runs");
    // The pipe is read on, lest the daemon waits for it.
    let reader = std::thread::spawn(move || lines.count());
    let mut second = jvmprof();
    second.args([
        "daemon",
        "--remote-store-insecure",
        "--remote-store-address",
        &address,
        "--spool-directory",
    ]);
    let second = second.arg(&spool).output().unwrap();
    signal(first.id(), "TERM");
    assert!(first.wait().unwrap().success());
    reader.join().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    let folder = only_folder(&spool);
    assert!(stderr.contains(folder.to_str().unwrap()) && stderr.contains("another daemon"), "{stderr}");
}
