//! Telemetry of a running daemon: metrics, health, logs, and the service manager's protocol. Needs
//! root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::support::{Workload, compile, compile_java, http_get, jdks, jvmprof, scratch, series, signal};
use tempfile::TempDir;

const BUSY: &str = r"
volatile unsigned long sink;
__attribute__((noinline)) void spin(void) { for (int i = 0; i < 20000; i++) sink += i * i; }
int main(void) { for (;;) spin(); }
";

/// A daemon that writes into a folder and listens on a socket there.
pub(super) struct Daemon {
    pub(super) dir: Rc<TempDir>,
    pub(super) child: Child,
    _load: Workload,
}

impl Daemon {
    pub(super) fn start(global: &[&str], args: &[&str], environment: &[(&str, &Path)]) -> Self {
        let dir = Rc::new(scratch());
        let load =
            Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
        let child = jvmprof()
            .args(global)
            .args(["daemon", "--push-interval", "3s", "--http-address"])
            .arg(format!("unix:{}", dir.path().join("http").display()))
            .arg("--local-store-directory")
            .arg(dir.path().join("store"))
            .args(args)
            .envs(environment.iter().copied())
            .env("JVMPROF_LOG", "info")
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { dir, child, _load: load }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("http")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Status and body.
    pub(super) fn get(&self, path: &str) -> Option<(u16, String)> {
        http_get(&self.socket(), path)
    }

    pub(super) fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        // A limit for a test that would never end otherwise: nothing is measured.
        let end = Instant::now() + Duration::from_secs(120);
        while !is_so(self) {
            assert!(Instant::now() < end, "never {what}; log: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(super) fn until_ready(&self) {
        self.until("ready", |daemon| daemon.get("/readyz").is_some_and(|(status, _)| status == 200));
    }

    /// Values by series, as `name{label="value"}`. A daemon that is busy before its first answer
    /// has none to give.
    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        let mut metrics = None;
        self.until("answering with metrics", |daemon| {
            let (status, text) = daemon.get("/metrics").expect("it listens");
            assert!(status == 200 || text.starts_with("nothing has been counted yet"), "{status}: {text}");
            metrics = (status == 200).then(|| series(&text));
            metrics.is_some()
        });
        metrics.expect("it has answered")
    }

    pub(super) fn end(mut self) -> String {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        assert!(!self.socket().exists(), "the socket is removed");
        self.log()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn sum(metrics: &BTreeMap<String, f64>, name: &str) -> f64 {
    let of_name = |series: &&String| series.split('{').next() == Some(name);
    metrics.keys().filter(of_name).map(|series| metrics[series]).sum()
}

/// The metrics of a daemon and of a collector that `docs/metrics.md` has.
pub(super) fn documented_metrics() -> [BTreeSet<String>; 2] {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let document = fs::read_to_string(document).unwrap();
    let (daemon, collector) = document.split_once("\n## A collector\n").expect("a collector has its own");
    [daemon, collector].map(|part| {
        let names = part.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let is_metric = |name: &&str| name.starts_with("jvmprof_") || name.starts_with("process_");
        names.filter(is_metric).map(str::to_owned).collect()
    })
}

/// The metrics of an exposition, by the names that are queried.
pub(super) fn exposed_metrics(text: &str) -> BTreeSet<String> {
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let series_name = |(name, kind): (&str, &str)| match kind {
        "counter" => format!("{name}_total"),
        _ => name.to_owned(),
    };
    families.map(series_name).collect()
}

#[test]
fn a_daemon_exposes_what_is_documented_and_its_numbers_add_up() {
    let daemon = Daemon::start(&[], &[], &[]);
    daemon.until_ready();
    daemon.until("delivering", |daemon| sum(&daemon.metrics(), "jvmprof_samples_delivered_total") > 0.0);
    let (_, text) = daemon.get("/metrics").unwrap();
    let [documented, _] = documented_metrics();
    assert_eq!(exposed_metrics(&text), documented);

    let metrics = daemon.metrics();
    let of = |name: &str| sum(&metrics, name);
    let taken = of("jvmprof_samples_taken_total");
    assert!(taken > 50.0, "{taken} samples");
    let gone = ["ring_buffer_full", "unwinder_unavailable"]
        .map(|reason| metrics[&format!("jvmprof_samples_lost_total{{reason=\"{reason}\",event=\"cpu\"}}")]);
    let emitted = of("jvmprof_samples_emitted_total");
    // Per-CPU counters are read one after the other while samples are taken.
    assert!((taken - emitted - gone.iter().sum::<f64>()).abs() <= 8.0, "{metrics:?}");
    assert!(of("jvmprof_stacks_total") <= emitted, "{metrics:?}");
    let handed_over = of("jvmprof_samples_handed_over_total");
    assert!(handed_over <= of("jvmprof_stacks_total"), "{metrics:?}");
    let became = ["delivered_total", "undelivered_total", "spooled", "queued"];
    let became: f64 = became.iter().map(|what| of(&format!("jvmprof_samples_{what}"))).sum();
    assert!((became - handed_over).abs() < 0.5, "the sink's books are closed: {metrics:?}");
    let store = daemon.dir.path().join("store");
    assert!(
        metrics[&format!("jvmprof_samples_delivered_total{{sink=\"{}\",event=\"cpu\"}}", store.display())]
            > 0.0,
        "{metrics:?}"
    );
    assert!(of("process_cpu_seconds_total") > 0.0 && of("process_resident_memory_bytes") > 1e6);
    assert!(of("jvmprof_cache_bytes") > 0.0);
    let log = daemon.end();
    assert!(!log.contains('\x1b'), "a file needs no colours");
}

#[test]
fn the_service_manager_is_told_of_start_life_and_end() {
    let dir = scratch();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let half_a_minute = PathBuf::from("30000000");
    let daemon = Daemon::start(&[], &[], &[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", &half_a_minute)]);
    let mut told = String::new();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut hear = |wanted: &[&str]| {
        while !wanted.iter().all(|word| told.contains(word)) {
            let mut message = [0; 1024];
            let length = manager.recv(&mut message).unwrap_or_else(|error| panic!("{error}: {told:?}"));
            told.push_str(std::str::from_utf8(&message[..length]).unwrap());
            told.push('\n');
        }
    };
    hear(&["READY=1", "WATCHDOG=1", "STATUS=profiling"]);
    daemon.end();
    hear(&["STOPPING=1"]);
}

#[test]
fn json_logs_are_objects() {
    let daemon = Daemon::start(&["--log-format", "json"], &[], &[]);
    daemon.until_ready();
    let log = daemon.end();
    let mut messages = BTreeSet::new();
    for line in BufReader::new(log.as_bytes()).lines() {
        let line = line.unwrap();
        let object: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        messages.insert(object["fields"]["message"].as_str().unwrap().to_owned());
    }
    for message in ["profiling", "window", "ended"] {
        assert!(messages.contains(message), "{messages:?}");
    }
}

/// The frequency that a daemon samples with now.
pub(super) const CURRENT: &str = "jvmprof_sampling_frequency_hertz{which=\"current\"}";

/// Waits until profiles with the frequency that a daemon has now are stored, ends it, and checks
/// that both it and the 99 Hz that it began with are told by profiles, and that nothing was lost
/// between the two.
pub(super) fn profiles_tell_both_frequencies(daemon: Daemon) {
    use jvmprof_daemon::export::store::{Store, TimeRange, UnixNanos};
    use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
    let frequency = daemon.metrics()[CURRENT];
    let windows = sum(&daemon.metrics(), "jvmprof_windows_total");
    daemon.until("two windows later", |daemon| {
        sum(&daemon.metrics(), "jvmprof_windows_total") >= windows + 2.0
    });
    let dir = Rc::clone(&daemon.dir);
    let log = daemon.end();
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let everything = TimeRange { start: UnixNanos(0), end: UnixNanos(i64::MAX) };
    let mut samples_by_period = BTreeMap::new();
    for profile in store.profiles(everything, &[]) {
        let pprof = decode(&store.read(&profile).unwrap(), DecodeLimits::default()).unwrap();
        *samples_by_period.entry(pprof.period).or_insert(0) += profile.samples;
    }
    assert!(samples_by_period.contains_key(&(1_000_000_000 / 99)), "{samples_by_period:?}");
    assert!(
        samples_by_period.contains_key(&(1_000_000_000 / frequency as i64)),
        "{frequency}: {samples_by_period:?}"
    );
    let ended = log.lines().rfind(|line| line.contains("ended")).unwrap();
    let delivered: u64 = samples_by_period.values().sum();
    assert!(ended.contains(&format!(" delivered={delivered} ")), "{ended}: {samples_by_period:?}");
    let taken = delivered + ["shed", "ring_buffer_full"].map(|reason| loss(&log, reason)).iter().sum::<u64>();
    assert!(ended.contains(&format!(" taken={taken} ")), "none is lost by the change: {log}");
}

/// Allocates arrays without end, and has two threads that want the same lock.
const ALLOCATING: &str = r"
public class Allocating {
    static volatile byte[] latest;
    static void contend() {
        try { while (true) { synchronized (Allocating.class) { Thread.sleep(5); } Thread.sleep(1); } }
        catch (InterruptedException end) { }
    }
    public static void main(String[] args) throws InterruptedException {
        for (int i = 0; i < 2; i++) { Thread it = new Thread(Allocating::contend); it.setDaemon(true); it.start(); }
        while (true) {
            for (int i = 0; i < 1000; i++) latest = new byte[10_000];
            Thread.sleep(20);
        }
    }
}
";

#[test]
fn each_event_has_an_account_of_its_own() {
    use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
    use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
    let daemon = Daemon::start(&[], &["--alloc-enabled", "--lock-enabled"], &[]);
    let classes = compile_java(daemon.dir.path(), "Allocating", ALLOCATING);
    let (_, home) = jdks().pop().unwrap();
    let program = ["-Xmx64m", "-cp", classes.to_str().unwrap(), "Allocating"];
    let jvm = Workload::start(&home.join("bin/java"), &program);
    daemon.until_ready();
    let of = |metrics: &BTreeMap<String, f64>, name: &str, event: &str| {
        let event = format!("event=\"{event}\"");
        let is_of = |series: &&String| series.split('{').next() == Some(name) && series.contains(&event);
        metrics.keys().filter(is_of).map(|series| metrics[series]).sum::<f64>()
    };
    daemon.until("delivering allocations and contentions", |daemon| {
        let delivered = |event| of(&daemon.metrics(), "jvmprof_samples_delivered_total", event);
        delivered("allocation") > 50.0 && delivered("lock") > 5.0 && delivered("lock_holder") > 0.0
    });
    let metrics = daemon.metrics();
    for event in ["cpu", "allocation", "off_cpu", "lock", "lock_holder"] {
        let of = |name: &str| of(&metrics, &format!("jvmprof_{name}"), event);
        let (emitted, stacks) = (of("samples_emitted_total"), of("stacks_total"));
        assert!(emitted <= of("samples_taken_total") + 8.0 && stacks <= emitted, "{event}: {metrics:?}");
        let handed_over = of("samples_handed_over_total");
        // Contentions are made of waits when a window ends.
        let before = if event.starts_with("lock") { of("samples_taken_total") } else { stacks };
        assert!(handed_over > 0.0 && handed_over <= before, "{event}: {metrics:?}");
        let became = ["delivered_total", "undelivered_total", "spooled", "queued"];
        let became: f64 = became.iter().map(|what| of(&format!("samples_{what}"))).sum();
        assert!((became - handed_over).abs() < 0.5, "{event}: {metrics:?}");
    }
    let dir = Rc::clone(&daemon.dir);
    // The JVM allocates while the uprobes are taken away.
    let log = daemon.end();
    drop(jvm);
    let account = |event: &str, name: &str| -> u64 {
        let event = format!("event=\"{event}\"");
        let line = log.lines().rfind(|line| line.contains(": account ") && line.contains(&event));
        let line = line.unwrap_or_else(|| panic!("no account of {event} in {log}"));
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
        value.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
    };
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let stored = |series: &str| store.profiles(TimeRange::ALL, &[Matcher::equal("__name__", series)]);
    let estimated = |series: &str, comment: &str| {
        let events = stored(series).into_iter().map(|profile| {
            let pprof = decode(&store.read(&profile).unwrap(), DecodeLimits::default()).unwrap();
            let comments = pprof.comment.iter().map(|index| &pprof.string_table[*index as usize]);
            let events: Vec<_> = comments.filter_map(|text| text.strip_prefix(comment)).collect();
            events[..].concat().parse::<u64>().expect("one comment tells the number of events")
        });
        events.sum::<u64>()
    };
    let stored = [
        ("cpu", stored("process_cpu").iter().map(|profile| profile.samples).sum::<u64>()),
        ("allocation", estimated("memory", "allocation events: ")),
        ("off_cpu", estimated("off_cpu", "off_cpu events: ")),
        ("lock", estimated("mutex", "lock events: ")),
        ("lock_holder", estimated("mutex_holders", "lock_holder events: ")),
    ];
    for (event, stored) in stored {
        let of = |name: &str| account(event, name);
        assert_eq!(of("taken"), of("handed_over") + of("lost_before"), "{event}: {log}");
        assert_eq!(of("handed_over"), of("delivered"), "{event}: {log}");
        assert_eq!(stored, of("delivered"), "{event}: {log}");
    }
    assert!(!log.contains("nothing counts"), "{log}");
}

/// Samples that the last window's line says were lost so.
pub(super) fn loss(log: &str, reason: &str) -> u64 {
    let window = log.lines().rfind(|line| line.contains("event_loop: window")).unwrap_or(log);
    let Some((_, number)) = window.split_once(&format!("\"{reason}\": ")) else { return 0 };
    let digits = number.split(|it: char| !it.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn with_a_ring_that_is_too_small_and_no_cpu_to_read_it_all_that_is_missing_is_counted() {
    let daemon = Daemon::start(&[], &["--ring-buffer-kib", "4", "-F", "2999", "--max-cpu", "0"], &[]);
    daemon.until_ready();
    // Others on every CPU who come first.
    let busy = daemon.dir.path().join("busy");
    let cpus = std::thread::available_parallelism().unwrap().get();
    let loads: Vec<_> = (0..2 * cpus)
        .map(|_| Workload::start(Path::new("/usr/bin/nice"), &["-n", "-15", busy.to_str().unwrap()]))
        .collect();
    let full = "jvmprof_samples_lost_total{reason=\"ring_buffer_full\",event=\"cpu\"}";
    daemon.until("losing", |daemon| {
        let (_, text) = daemon.get("/metrics").unwrap_or_default();
        let lost = text.lines().find_map(|line| line.strip_prefix(full)?.trim().parse::<f64>().ok());
        lost.is_some_and(|lost| lost > 100.0)
    });
    drop(loads);
    let dir = Rc::clone(&daemon.dir);
    let log = daemon.end();
    let ended = log.lines().rfind(|line| line.contains("event_loop: ended")).unwrap();
    let of = |name: &str| -> u64 {
        let value = ended.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
        value.unwrap_or_else(|| panic!("no {name} in {ended}")).parse().unwrap()
    };
    assert!(of("lost_before") > 100, "{ended}");
    assert_eq!(of("taken"), of("handed_over") + of("lost_before"), "{log}");
    assert_eq!(of("handed_over"), of("delivered"), "{log}");
    assert_eq!(loss(&log, "ring_buffer_full") + loss(&log, "shed"), of("lost_before"), "{log}");
    assert!(!log.contains("nothing counts"), "{log}");
    use jvmprof_daemon::export::store::{Store, TimeRange};
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let stored: u64 = store.profiles(TimeRange::ALL, &[]).iter().map(|profile| profile.samples).sum();
    assert_eq!(stored, of("delivered"), "{log}");
}

#[test]
fn a_memory_budget_is_kept_by_the_sum_of_all_limits() {
    let daemon = Daemon::start(&[], &["--max-memory", "48"], &[]);
    daemon.until_ready();
    let metrics = daemon.metrics();
    let limits = sum(&metrics, "jvmprof_cache_limit_bytes");
    assert!((1e6..48.0 * 1024.0 * 1024.0).contains(&limits), "{metrics:?}");
    for (series, bytes) in metrics.iter().filter(|(series, _)| series.starts_with("jvmprof_cache_bytes")) {
        let limit = metrics[&series.replace("cache_bytes", "cache_limit_bytes")];
        assert!(*bytes <= limit, "{series}: {bytes} of {limit}");
    }
    daemon.end();
}

#[test]
fn sighup_changes_the_frequency_and_profiles_say_so() {
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), "frequency = 99\n").unwrap();
    let daemon = Daemon::start(&[], &["--config", config.path().to_str().unwrap()], &[]);
    daemon.until_ready();
    daemon.until("delivering", |daemon| sum(&daemon.metrics(), "jvmprof_samples_delivered_total") > 0.0);
    fs::write(config.path(), "frequency = 49\nexternal-labels = [\"reloaded=yes\"]\n").unwrap();
    signal(daemon.child.id(), "HUP");
    daemon.until("sampling otherwise", |daemon| (daemon.metrics()[CURRENT] - 49.0).abs() < 0.5);
    profiles_tell_both_frequencies(daemon);
}

/// The samples of code without frame pointers wait for what its runtime has still to tell.
#[test]
fn samples_without_room_to_wait_are_told_of_by_metrics_and_profiles() {
    use jvmprof_daemon::export::store::{Store, TimeRange};
    use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
    let daemon = Daemon::start(&[], &["--max-memory", "32", "-F", "997", "--max-cpu", "0"], &[]);
    daemon.until_ready();
    let flags = ["-O1", "-static", "-fno-omit-frame-pointer", "-fno-inline"];
    let program =
        compile(daemon.dir.path(), "alternate", include_str!("../jit/programs/alternate.c"), &flags);
    // Each sample has a copy of the stack, which begins with what the program was started with.
    let large = format!("LARGE={}", "x".repeat(100_000));
    let command = [&large, program.to_str().unwrap(), "late", "600000", "10", "1"];
    let load = Workload::start(Path::new("/usr/bin/env"), &command);
    let truncated = "jvmprof_stacks_total{outcome=\"no room to wait\",event=\"cpu\"}";
    daemon.until("full", |daemon| daemon.metrics().get(truncated).is_some_and(|stacks| *stacks > 100.0));
    let metrics = daemon.metrics();
    assert!(sum(&metrics, "jvmprof_samples_waiting_full_total") >= 100.0, "{metrics:?}");
    let waiting = metrics["jvmprof_cache_bytes{cache=\"waiting_samples\"}"];
    assert!(waiting <= metrics["jvmprof_cache_limit_bytes{cache=\"waiting_samples\"}"], "{metrics:?}");
    drop(load);
    let dir = Rc::clone(&daemon.dir);
    daemon.end();
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let is_told = store.profiles(TimeRange::ALL, &[]).iter().any(|profile| {
        let pprof = decode(&store.read(profile).unwrap(), DecodeLimits::default()).unwrap();
        pprof.string_table.iter().any(|text| text == "[truncated: no room to wait]")
    });
    assert!(is_told, "no profile says so");
}
