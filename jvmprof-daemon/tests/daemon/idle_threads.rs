//! A host with thousands of threads that have nothing to do: what a window has of their waits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::Profile;

use crate::support::{Workload, compile_java, jdks, scratch};
use crate::telemetry::{Daemon, sum};

/// Parks threads for ever, each with a stack of its own, and makes a file once all have come there.
const PARKED: &str = r"
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

public class Parked {
    static CountDownLatch ready;
    static void rest(int way, int calls) {
        if (calls == 0) { ready.countDown(); while (true) LockSupport.park(); }
        if ((way & 1) == 0) even(way >> 1, calls - 1); else odd(way >> 1, calls - 1);
    }
    static void even(int way, int calls) { rest(way, calls); }
    static void odd(int way, int calls) { rest(way, calls); }
    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[1]);
        ready = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) { int way = i; new Thread(() -> rest(way, 12)).start(); }
        ready.await();
        new java.io.File(args[0]).createNewFile();
        Thread.sleep(1_000_000);
    }
}
";

const THREADS: u32 = 3_000;
/// Stacks of a window, at most: of many threads that wait some 200 are inspected, chosen by chance.
const MOST_STACKS: usize = 300;
/// Bytes of a window's profiles of the program, at most; those of all threads would be more.
const MOST_BYTES: usize = 100_000;
/// Seconds of a window.
const WINDOW: f64 = 3.0;
/// The part of the threads' time that a window has at least: what 200 stacks say is off by 7 %.
const LEAST_PART: f64 = 0.7;

/// What a window has of the parked threads.
#[derive(Debug, Default)]
struct ParkedWaits {
    stacks: usize,
    waits: i64,
    waited_ns: i64,
    window_ns: i64,
    bytes: usize,
}

impl ParkedWaits {
    fn add(&mut self, profile: &Profile, bytes: usize) {
        let text = |at: i64| &*profile.string_table[at as usize];
        let position = |name: &str| profile.sample_type.iter().position(|of| text(of.r#type) == name);
        let [waits, waited] = ["waits", "off_cpu"].map(|name| position(name).expect("a type of waits"));
        let named = profile.function.iter().filter(|function| text(function.name) == "Parked.rest");
        let rest: HashSet<u64> = named.map(|function| function.id).collect();
        let is_parked: HashMap<u64, bool> = profile
            .location
            .iter()
            .map(|location| {
                let mut lines = location.line.iter();
                (location.id, lines.any(|line| rest.contains(&line.function_id)))
            })
            .collect();
        for sample in profile.sample.iter().filter(|it| it.location_id.iter().any(|id| is_parked[id])) {
            self.stacks += 1;
            self.waits += sample.value[waits];
            self.waited_ns += sample.value[waited];
        }
        self.window_ns = profile.duration_nanos;
        self.bytes += bytes;
    }
}

#[test]
fn a_window_has_some_hundred_stacks_of_thousands_of_idle_threads_and_all_their_time() {
    let program = scratch();
    let classes = compile_java(program.path(), "Parked", PARKED);
    let (_, home) = jdks().pop().unwrap();
    let (ready, threads) = (program.path().join("ready"), THREADS.to_string());
    let arguments = ["-Xss256k", "-XX:+UseSerialGC", "-cp", classes.to_str().unwrap(), "Parked"];
    let arguments = [&arguments[..], &[ready.to_str().unwrap(), &threads]].concat();
    let jvm = Workload::start(&home.join("bin/java"), &arguments);
    // A limit for a test that would never end otherwise.
    let limit = Instant::now() + Duration::from_secs(120);
    while !ready.exists() {
        assert!(Instant::now() < limit, "its threads are never there");
        std::thread::sleep(Duration::from_millis(100));
    }
    // None of the threads is switched from now on. A budget of CPU would end windows before their
    // time.
    let daemon = Daemon::start(&[], &["--offcpu-enabled", "--max-cpu", "0"], &[]);
    daemon.until_ready();
    let pid = jvm.pid().to_string();
    let (of_jvm, parked) = (format!("pid=\"{pid}\""), "wait=\"park\"");
    let waited = |metrics: &BTreeMap<String, f64>| -> f64 {
        let is_it = |series: &str| {
            series.starts_with("jvmprof_jvm_wait_seconds_total{")
                && series.contains(&of_jvm)
                && series.contains(parked)
        };
        metrics.iter().filter(|(series, _)| is_it(series)).map(|(_, seconds)| seconds).sum()
    };
    let windows = |metrics: &BTreeMap<String, f64>| sum(metrics, "jvmprof_windows_total");
    // More than the JVM's own threads wait.
    daemon.until("counting its waits", |daemon| waited(&daemon.metrics()) > f64::from(THREADS));
    let before = daemon.metrics();
    daemon.until("five windows later", |daemon| windows(&daemon.metrics()) >= windows(&before) + 5.0);
    let after = daemon.metrics();
    // Parts of waits that go on: none of them ends.
    let more = waited(&after) - waited(&before);
    let least = LEAST_PART * 4.0 * WINDOW * f64::from(THREADS);
    assert!(more > least, "{more} s in five windows: {}", daemon.log());

    let dir = Rc::clone(&daemon.dir);
    let log = daemon.end();
    drop(jvm);
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let matchers = [Matcher::equal("__name__", "off_cpu"), Matcher::equal("pid", &pid)];
    let mut stored: BTreeMap<i64, ParkedWaits> = BTreeMap::new();
    for reference in store.profiles(TimeRange::ALL, &matchers) {
        let bytes = store.read(&reference).unwrap();
        let profile = decode(&bytes, DecodeLimits::default()).unwrap();
        stored.entry(profile.time_nanos).or_default().add(&profile, bytes.len());
    }
    println!("{stored:#?}");
    for window in stored.values() {
        assert!(window.stacks < MOST_STACKS && window.bytes < MOST_BYTES, "{stored:#?}");
    }
    // Until the JVM was read its methods had no names. The first window with names may have all of
    // the waits so far, and the last one ends with the daemon.
    let named: Vec<&ParkedWaits> = stored.values().skip_while(|window| window.stacks == 0).collect();
    assert!(named.len() >= 5, "{stored:#?}; log: {log}");
    let named = &named[1..named.len() - 1];
    for window in named {
        assert!(window.stacks > MOST_STACKS / 6, "{stored:#?}");
    }
    let waited: i64 = named.iter().map(|window| window.waited_ns).sum();
    let elapsed: i64 = named.iter().map(|window| window.window_ns).sum();
    let threads = waited as f64 / elapsed as f64;
    assert!((threads / f64::from(THREADS) - 1.0).abs() < 0.25, "the time of {threads} threads: {stored:#?}");
    let waits: i64 = named.iter().map(|window| window.waits).sum();
    assert!(waits < i64::from(THREADS) / 20, "{waits} waits are counted again: {stored:#?}");
}
