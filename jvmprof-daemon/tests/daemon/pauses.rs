//! Pauses of a real JVM on their way through the daemon into its store, beside the JVM's own log.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange, UnixNanos};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::profile::pprof::jvm_pauses::{PauseTime, samples};

use crate::support::{Workload, compile_java, jdks, series};
use crate::telemetry::{Daemon, loss};

/// Collections and thread dumps, some a second.
const STOPS: &str = r"
import java.util.*;
public class Stops {
    static volatile Object kept;
    public static void main(String[] args) throws Exception {
        for (int round = 0; ; round++) {
            for (int i = 0; i < 1_000; i++) kept = new byte[10_000];
            if (round % 5 == 0) System.gc();
            if (round % 3 == 0) Thread.getAllStackTraces();
            Thread.sleep(100);
        }
    }
}
";

/// Stops as above, but only between two files: the one that it waits for and the one that it makes.
const BURST: &str = r"
import java.io.File;
public class Burst {
    static volatile Object kept;
    static volatile long sink;
    /// Enough to be sampled, and little beside other tests.
    static void work() throws Exception {
        long end = System.nanoTime() + 10_000_000;
        while (System.nanoTime() < end) for (int i = 0; i < 10_000; i++) sink += i;
        Thread.sleep(30);
    }
    public static void main(String[] args) throws Exception {
        while (!new File(args[0]).exists()) work();
        for (int round = 0; round < 60; round++) {
            for (int i = 0; i < 2_000; i++) kept = new byte[10_000];
            if (round % 5 == 0) System.gc();
            if (round % 3 == 0) Thread.getAllStackTraces();
            work();
        }
        new File(args[1]).createNewFile();
        while (true) work();
    }
}
";

/// A pause as the store has it.
#[derive(Debug, Default)]
struct Stored {
    operation: String,
    cause: Option<String>,
    total_ns: u64,
}

#[test]
fn pauses_are_stored_with_their_begin_and_cause_and_each_is_accounted_for() {
    let daemon = Daemon::start(&[], &["--pauses", "-F", "49"], &[]);
    let classes = compile_java(daemon.dir.path(), "Stops", STOPS);
    let (feature, home) = jdks().pop().unwrap();
    let log = daemon.dir.path().join("safepoints.log");
    let option = format!("-Xlog:safepoint=info:file={}:timemillis", log.display());
    let arguments = ["-Xmx64m", "-XX:+UseParallelGC", &*option, "-cp", classes.to_str().unwrap(), "Stops"];
    let jvm = Workload::start(&home.join("bin/java"), &arguments);
    let pid = jvm.pid().to_string();
    daemon.until_ready();
    // As the store says it: a busy host is slow to answer for metrics.
    daemon.until("delivering pauses", |daemon| {
        let pauses = [Matcher::equal("__name__", "jvm_pauses"), Matcher::equal("pid", &pid)];
        let store = Store::open_for_reading(&daemon.dir.path().join("store"));
        let stored = store.map(|store| store.profiles(TimeRange::ALL, &pauses)).unwrap_or_default();
        stored.iter().map(|profile| profile.samples).sum::<u64>() > 30
    });
    let dir = Rc::clone(&daemon.dir);
    let output = daemon.end();
    drop(jvm);
    let account = |name: &str| -> u64 {
        let line =
            output.lines().rfind(|line| line.contains(": account ") && line.contains("event=\"pause\""));
        let line = line.unwrap_or_else(|| panic!("no account of pauses in {output}"));
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
        value.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
    };
    assert_eq!(account("taken"), account("handed_over") + account("lost_before"), "{output}");
    assert_eq!(account("handed_over"), account("delivered"), "{output}");

    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    let profiles = store.profiles(TimeRange::ALL, &[Matcher::equal("__name__", "jvm_pauses")]);
    let sum: u64 = profiles.iter().map(|profile| profile.samples).sum();
    assert_eq!(sum, account("delivered"), "{output}");
    // Other tests have JVMs, too.
    let of_jvm = [Matcher::equal("__name__", "jvm_pauses"), Matcher::equal("pid", &pid)];
    let profiles = store.profiles(TimeRange::ALL, &of_jvm);
    let sum: u64 = profiles.iter().map(|profile| profile.samples).sum();
    let mut stored: BTreeMap<i64, Stored> = BTreeMap::new();
    for reference in &profiles {
        let profile = decode(&store.read(reference).unwrap(), DecodeLimits::default()).unwrap();
        let until = reference.start.plus(reference.duration);
        for sample in samples(&profile).unwrap() {
            let begin = sample.begin_ns.expect("there are few: each is by itself");
            let earliest = UnixNanos(reference.start.0 - Duration::from_secs(5).as_nanos() as i64);
            assert!(earliest < UnixNanos(begin) && UnixNanos(begin) < until, "{begin} of {reference:?}");
            let pause = stored.entry(begin).or_default();
            pause.operation = sample.operation.to_owned();
            pause.cause = sample.cause.map(str::to_owned);
            pause.total_ns += sample.nanoseconds;
            assert!(sample.time == PauseTime::Stopped || sample.pauses == 0, "a pause counts once");
        }
    }
    assert_eq!(stored.len() as u64, sum, "each has a begin of its own");

    // `[1732195501000ms] Safepoint "ParallelGCFailedAllocation", ..., Total: 120000 ns`: it is
    // written at the end.
    let text = fs::read_to_string(&log).unwrap();
    let logged: Vec<(f64, &str, f64)> = text
        .lines()
        .filter_map(|line| {
            let (time, rest) = line.strip_prefix('[')?.split_once("ms]")?;
            let (operation, _) = rest.split_once("Safepoint \"")?.1.split_once('"')?;
            let total: f64 = rest.split_once("Total: ")?.1.split_whitespace().next()?.parse().ok()?;
            Some((time.trim().parse().ok()?, operation, total))
        })
        .collect();
    let mut causes: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    let mut others = 0;
    for (begin, pause) in &stored {
        *causes.entry((&pause.operation, pause.cause.as_deref())).or_default() += 1;
        let end_ms = (*begin as f64 + pause.total_ns as f64) / 1e6;
        // The JVM writes its log after its last reading of the clock: on a busy host much later.
        let is_it = |(time, operation, total): &&(f64, &str, f64)| {
            *operation == pause.operation
                && (time - end_ms).abs() < 100.0
                && (total - pause.total_ns as f64).abs() < 0.05 * total + 500_000.0
        };
        others += u64::from(!logged.iter().any(|it| is_it(&it)));
    }
    eprintln!(
        "JDK {feature}: {} of {} logged pauses, {others} differ: {causes:?}",
        stored.len(),
        logged.len()
    );
    assert!(others * 10 <= sum, "JDK {feature}: {others} of {stored:?} aren't in the log:\n{text}");
    for cause in ["Allocation Failure", "System.gc()"] {
        assert!(causes.keys().any(|(_, why)| *why == Some(cause)), "JDK {feature}: {cause}: {causes:?}");
    }
    let of_collections = |(of, why): &(&str, Option<&str>)| of.starts_with("Parallel") == why.is_some();
    // The first one may come before the daemon has read where a JVM has the cause.
    let unknown: u64 = causes.iter().filter(|(key, _)| !of_collections(key)).map(|(_, count)| count).sum();
    let only_unknown = causes.keys().all(|(of, why)| of.starts_with("Parallel") || why.is_none());
    assert!(only_unknown && unknown <= 2, "{causes:?}");
    let ms = |begin: Option<&i64>| *begin.unwrap() as f64 / 1e6;
    let (first, last) = (ms(stored.keys().next()), ms(stored.keys().last()));
    let between = logged.iter().filter(|(time, _, _)| first < *time && *time < last).count() as u64;
    // Those at both ends may be on either side.
    assert!(sum + loss(&output, "pauses_lost") + 2 >= between, "{sum} of {between}: {output}");
}

#[test]
fn without_the_flag_no_profile_has_pauses() {
    let daemon = Daemon::start(&[], &[], &[]);
    let classes = compile_java(daemon.dir.path(), "Stops", STOPS);
    let (_, home) = jdks().pop().unwrap();
    let _jvm = Workload::start(&home.join("bin/java"), &["-cp", classes.to_str().unwrap(), "Stops"]);
    daemon.until_ready();
    daemon.until("delivering the JVM", |daemon| {
        let store = Store::open_for_reading(&daemon.dir.path().join("store"));
        store.is_ok_and(|store| {
            let class = [Matcher::equal("jvm_main_class", "Stops")];
            !store.profiles(TimeRange::ALL, &class).is_empty()
        })
    });
    let dir = Rc::clone(&daemon.dir);
    daemon.end();
    let store = Store::open_for_reading(&dir.path().join("store")).unwrap();
    assert!(store.profiles(TimeRange::ALL, &[Matcher::equal("__name__", "jvm_pauses")]).is_empty());
}

/// Pauses, ms until all threads had stopped, and ms from then on.
type Sums = [f64; 3];

/// A JVM that stops in a burst, beside its own log.
struct Burst {
    what: String,
    jvm: Workload,
    log: PathBuf,
    done: PathBuf,
}

impl Burst {
    fn start(home: &Path, dir: &Path, name: &str, options: &[&str]) -> Self {
        let file = |what: &str| dir.join(format!("{name}.{what}"));
        let (log, done) = (file("log"), file("done"));
        let log_option = format!("-Xlog:safepoint=info:file={}:none", log.display());
        let (dir, go) = (dir.to_str().unwrap(), dir.join("go"));
        let class = ["-Xmx64m", "-XX:+UseParallelGC", &*log_option, "-cp", dir, "Burst"];
        let files = [go.to_str().unwrap(), done.to_str().unwrap()];
        let jvm = Workload::start(&home.join("bin/java"), &[options, &class, &files].concat());
        Self { what: format!("{name} {options:?}"), jvm, log, done }
    }

    /// What the JVM has logged so far.
    fn logged(&self) -> Sums {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let mut sums = [0.0; 3];
        for line in text.lines().filter(|line| line.contains("Safepoint \"") && line.contains("Total: ")) {
            let ms = |name: &str| -> f64 {
                let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("{name}: {line}"));
                rest.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e6
            };
            let to_safepoint = ms("Reaching safepoint: ");
            sums = [sums[0] + 1.0, sums[1] + to_safepoint, sums[2] + ms("Total: ") - to_safepoint];
        }
        sums
    }

    /// What the daemon says of it; `None` if nothing.
    fn measured(&self, metrics: &BTreeMap<String, f64>) -> Option<Sums> {
        let pid = format!("pid=\"{}\"", self.jvm.pid());
        let of = |metric: &str| {
            let is_it = |series: &&String| series.starts_with(metric) && series.contains(&pid);
            metrics.keys().find(is_it).map(|series| metrics[series])
        };
        let seconds = |what| of(&format!("jvmprof_jvm_{what}_seconds_total{{"));
        let to_safepoint = seconds("to_safepoint")?;
        Some([of("jvmprof_jvm_pauses_total{")?, to_safepoint * 1e3, seconds("stopped")? * 1e3])
    }
}

/// Metrics; none while the host is too busy for them.
fn metrics_of(daemon: &Daemon) -> BTreeMap<String, f64> {
    let answer = daemon.get("/metrics").filter(|(status, _)| *status == 200);
    answer.map(|(_, text)| series(&text)).unwrap_or_default()
}

fn difference(now: Sums, before: Sums) -> Sums {
    std::array::from_fn(|index| now[index] - before[index])
}

#[test]
fn without_the_flag_metrics_are_the_sums_that_each_jvm_keeps() {
    let daemon = Daemon::start(&[], &["-F", "49"], &[]);
    let dir = daemon.dir.path();
    compile_java(dir, "Burst", BURST);
    let jdks = jdks();
    let start = |(feature, home): &(u32, PathBuf), name: &str, options: &[&str]| {
        Burst::start(home, dir, &format!("{name}-{feature}"), options)
    };
    let mut bursts: Vec<Burst> = jdks.iter().map(|jdk| start(jdk, "plain", &[])).collect();
    let newest = jdks.last().unwrap();
    bursts.push(start(newest, "anonymous", &["-XX:+PerfDisableSharedMem"]));
    let silent = start(newest, "silent", &["-XX:-UsePerfData"]);
    daemon.until_ready();
    let mut metrics = BTreeMap::new();
    daemon.until("following the JVMs", |daemon| {
        metrics = metrics_of(daemon);
        let silent = format!("pid=\"{}\"", silent.jvm.pid());
        bursts.iter().all(|burst| burst.measured(&metrics).is_some())
            && metrics.keys().any(|series| series.starts_with("jvmprof_jvm_cpu") && series.contains(&silent))
    });
    let before: Vec<(Sums, Sums)> =
        bursts.iter().map(|burst| (burst.measured(&metrics).unwrap(), burst.logged())).collect();
    fs::write(dir.join("go"), "").unwrap();
    daemon.until("done", |_| bursts.iter().chain([&silent]).all(|burst| burst.done.exists()));
    for (burst, (measured, logged)) in bursts.iter().zip(before) {
        let logged = difference(burst.logged(), logged);
        assert!(logged[0] > 50.0, "{}: {logged:?}", burst.what);
        let mut ours = Sums::default();
        daemon.until("reading the last of the sums", |daemon| {
            metrics = metrics_of(daemon);
            let Some(now) = burst.measured(&metrics) else { return false };
            ours = difference(now, measured);
            // Before the file a pause may have come between the two.
            ours[0] + 2.0 >= logged[0]
        });
        eprintln!("{}: {ours:.3?}, the JVM says {logged:.3?}", burst.what);
        assert!((ours[0] - logged[0]).abs() <= 2.0, "{}: {ours:?}, not {logged:?}", burst.what);
        // JVMs before JDK 21 log the cleanup at the safepoint as a part of reaching it.
        let total = |sums: Sums| sums[1] + sums[2];
        let tolerance = 0.02 * total(logged) + 2.0;
        assert!((total(ours) - total(logged)).abs() < tolerance, "{}: {ours:?}, not {logged:?}", burst.what);
        assert!((ours[1] - logged[1]).abs() < tolerance, "{}: {ours:?}, not {logged:?}", burst.what);
    }
    assert_eq!(silent.measured(&metrics), None, "nothing is guessed");
}
