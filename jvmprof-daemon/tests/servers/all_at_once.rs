//! One daemon beside a JVM, and all three real servers at once, of which one is killed and comes
//! back: each has what the daemon's account says of every event, under the name of its service.
//! Needs root.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use jvmprof_daemon::event_type::{EventType, SampleType};
use jvmprof_daemon::export::delivery::{DeliveryCounts, read_ledger};
use jvmprof_daemon::export::otlp::OtlpProtocol;
use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::sampled_events;
use jvmprof_daemon::proto::pprof::Profile;
use tempfile::TempDir;

use crate::pyroscope::Storage;
use crate::server::{PATIENCE, free_address};
use crate::support::{KilledChild, Workload, compile_java, jdks, jvmprof, scratch, signal};
use crate::{otel_collector, parca, pyroscope};

/// Works, allocates, sleeps, waits for a lock and collects garbage.
const TILL: &str = r#"
public class Till {
    static volatile long sink;
    static volatile byte[] receipt;
    static void serve() {
        try {
            while (true) {
                long until = System.nanoTime() + 3_000_000;
                while (System.nanoTime() < until) sink++;
                for (int i = 0; i < 512; i++) receipt = new byte[1024];
                synchronized (Till.class) { Thread.sleep(10); }
            }
        } catch (InterruptedException impossible) { }
    }
    public static void main(String[] args) throws InterruptedException {
        for (int i = 0; i < 2; i++) new Thread(Till::serve, "cashier-" + i).start();
        while (true) { System.gc(); Thread.sleep(500); }
    }
}
"#;

/// Events of which there are some in each second of that program.
const EVENTS: [EventType; 5] =
    [EventType::Cpu, EventType::Allocation, EventType::OffCpu, EventType::Lock, EventType::Pause];

/// Returns a JVM with that program, whose environment names its service.
fn start_jvm(dir: &Path) -> Workload {
    let classes = compile_java(dir, "Till", TILL);
    let java = jdks().pop().unwrap().1.join("bin/java");
    let [classes, java] = [&classes, &java].map(|path| path.to_str().unwrap());
    let program = ["OTEL_SERVICE_NAME=till", java, "-Xmx64m", "-XX:+UseSerialGC", "-cp", classes, "Till"];
    Workload::start(Path::new("env"), &program)
}

/// A daemon that samples all events of one process, for three servers and its own store.
struct Daemon {
    child: KilledChild,
    dir: TempDir,
}

impl Daemon {
    fn start(pid: u32, [parca, pyroscope, otlp]: &[String; 3]) -> Self {
        let dir = scratch();
        let only = format!("{{ source_labels = ['__meta_process_pid'], regex = '{pid}', action = 'keep' }}");
        let mut daemon = jvmprof();
        daemon.args(["--log-level", "info", "daemon", "--push-interval", "2s", "--relabel-configs", &only]);
        daemon.args(["--alloc-enabled", "--lock-enabled", "--pauses", "--local-store"]);
        daemon.args(["--remote-store-address", parca, "--pyroscope-address", pyroscope]);
        daemon.args(["--otlp-address", otlp, "--spool-directory"]).arg(dir.path().join("spool"));
        daemon.arg("--local-store-directory").arg(dir.path().join("store")).env("NO_COLOR", "1");
        let log = File::create(dir.path().join("log")).unwrap();
        Self { child: KilledChild(daemon.stderr(log).spawn().unwrap()), dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The account of a server so far, if it has been written.
    fn account(&self, address: &str) -> Option<DeliveryCounts> {
        let port = address.rsplit_once(':').unwrap().1;
        let folders = fs::read_dir(self.dir.path().join("spool")).ok()?;
        let mut folders = folders.map(|folder| folder.unwrap().path());
        let own = folders.find(|folder| folder.to_str().unwrap().contains(&format!("_{port}-")))?;
        Some(read_ledger(&own).ok()??.total())
    }

    /// Waits until an account is so.
    fn until(&mut self, what: &str, address: &str, is_so: impl Fn(&DeliveryCounts) -> bool) {
        let started = Instant::now();
        while !self.account(address).is_some_and(|counts| is_so(&counts)) {
            assert!(self.child.0.try_wait().unwrap().is_none(), "it has ended: {}", self.log());
            assert!(started.elapsed() < PATIENCE, "{address}: never {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self) {
        signal(self.child.0.id(), "TERM");
        assert!(self.child.0.wait().unwrap().success(), "{}", self.log());
    }
}

/// What the daemon has handed over of an event, by its own store.
struct HandedOver {
    events: u64,
    /// Sums of the types that are pushed.
    values: Vec<u64>,
    /// The time that a sample of CPU time stands for, in nanoseconds.
    period: u64,
}

fn handed_over(store: &Store, event: EventType) -> HandedOver {
    let types = event.descriptor().pushed_types;
    let mut sums = HandedOver { events: 0, values: vec![0; types.len()], period: 0 };
    for profile in store.profiles(TimeRange::ALL, &[Matcher::equal("__name__", event.descriptor().series)]) {
        let profile = decode(&store.read(&profile).unwrap(), DecodeLimits::default()).unwrap();
        sums.events += sampled_events(&profile, types[0].name);
        sums.period = profile.period as u64;
        for (sum, kind) in sums.values.iter_mut().zip(types) {
            *sum += value(&profile, *kind);
        }
    }
    sums
}

/// The sum of a type in a profile.
fn value(profile: &Profile, kind: SampleType) -> u64 {
    let name = |at: i64| profile.string_table[at as usize].as_str();
    let at = profile.sample_type.iter().position(|of| name(of.r#type) == kind.name).expect("the type");
    profile.sample.iter().map(|sample| sample.value[at] as u64).sum()
}

#[test]
fn each_of_three_real_servers_has_what_the_account_of_one_daemon_says_of_every_event() {
    let dir = scratch();
    let [parca_dir, pyroscope_dir, otel_dir] = ["parca", "pyroscope", "collector"].map(|name| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    });
    let [parca_at, pyroscope_at, otel_at] = [free_address(), free_address(), free_address()];
    let _parca = parca::start(&parca_dir, &parca_at);
    let _pyroscope = pyroscope::start(&pyroscope_dir, &pyroscope_at, Storage::Segments);
    let start_collector = || otel_collector::start(&otel_dir, OtlpProtocol::Grpc, &otel_at, &[]);
    let collector = start_collector();

    let jvm = start_jvm(dir.path());
    let urls = [&parca_at, &pyroscope_at, &otel_at].map(|address| format!("http://{address}"));
    let mut daemon = Daemon::start(jvm.pid(), &urls);
    let has_all = |counts: &DeliveryCounts| EVENTS.iter().all(|event| counts.delivered.get(*event) > 0);
    for url in &urls {
        daemon.until("delivering all events", url, has_all);
    }
    drop(collector);
    daemon.until("spooling", &urls[2], |counts| !counts.spooled.is_none());
    let collector = start_collector();
    let is_late = |counts: &DeliveryCounts| !counts.delivered_late.is_none() && counts.spooled.is_none();
    daemon.until("emptying its spool", &urls[2], is_late);
    daemon.end();
    drop((jvm, collector));

    let store = Store::open_for_reading(&daemon.dir.path().join("store")).unwrap();
    let accounts = urls.map(|url| daemon.account(&url).expect("a ledger"));
    for counts in &accounts {
        assert_eq!((counts.unaccounted(), counts.spooled.total()), (0, 0), "{counts:?} {}", daemon.log());
        assert_eq!(counts.losses.total(), counts.losses.possibly_lost, "{counts:?} {}", daemon.log());
    }
    let [of_parca, of_pyroscope, of_collector] = accounts;
    assert_eq!(of_parca.delivered, of_parca.handed_over, "{of_parca:?} {}", daemon.log());
    assert_eq!(of_pyroscope.delivered, of_pyroscope.handed_over, "{of_pyroscope:?} {}", daemon.log());
    let rows = otel_collector::rows(&otel_dir);
    assert_eq!(pyroscope::services(&pyroscope_at), BTreeSet::from(["till".to_owned()]));
    for event in EventType::ALL {
        let HandedOver { events, values, period } = handed_over(&store, event);
        assert!(events > 0 || !EVENTS.contains(&event), "{event:?} {}", daemon.log());
        for counts in [&of_parca, &of_pyroscope, &of_collector] {
            assert_eq!(counts.handed_over.get(event), events, "{event:?}: {counts:?} {}", daemon.log());
        }
        // Killed with a request under way, it may have that one or not.
        let is_in_doubt = of_collector.losses.possibly_lost.get(event) > 0;
        for (kind, expected) in event.descriptor().pushed_types.iter().zip(values) {
            let till = "service_name=\"till\"";
            let shown = if event == EventType::Cpu { expected * period } else { expected };
            // Of series that it doesn't know it says that they aren't there.
            let in_parca = if expected > 0 { parca::shown_sum_of(&parca_at, event, *kind, till) } else { 0 };
            assert_eq!(in_parca, shown, "{event:?} {kind:?}");
            assert_eq!(pyroscope::sum_of(&pyroscope_at, event, *kind, till), expected, "{event:?} {kind:?}");
            let of_type = rows.get(&[kind.name, kind.unit].map(str::to_owned));
            let of_type = of_type.map(Vec::as_slice).unwrap_or_default();
            let is_ours =
                |labels: &otel_collector::Labels| labels.get("service.name").is_some_and(|it| it == "till");
            assert!(of_type.iter().all(|(labels, _)| is_ours(labels)), "{event:?} {kind:?}: {of_type:?}");
            let stored: u64 = of_type.iter().map(|(_, value)| value).sum();
            let is_right = if is_in_doubt { stored <= expected } else { stored == expected };
            assert!(is_right, "{event:?} {kind:?}: {stored}, not {expected}: {of_collector:?}");
        }
    }
}
