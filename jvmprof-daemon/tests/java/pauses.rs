//! Pauses of JVMs beside the log that the JVM itself writes of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use serde_json::Value;

use crate::support::processes::let_it_run;
use crate::support::recording::{
    READS_STOPS, Recording, SEES_PAUSES, WALKS_STACKS, compile_recorded, record_work,
};
use crate::support::{Workload, compile_java_for, jdks, scratch};

/// Collections that memory asks for and that the program does, thread dumps, and searches for
/// deadlocks.
const STOPS: &str = r#"
import java.util.*;
public class Stops {
    static volatile Object kept;
    public static void main(String[] args) throws Exception {
        Thread worker = new Thread(() -> { long sum = 0; while (true) { sum += sum ^ 17; kept = sum; } });
        worker.setDaemon(true);
        worker.start();
        List<byte[]> old = new ArrayList<>();
        for (int round = 0; ; round++) {
            for (int i = 0; i < 2_000; i++) {
                byte[] bytes = new byte[10_000];
                if (i % 20 == 0) old.add(bytes);
                kept = bytes;
            }
            if (old.size() > 4_000) old.clear();
            if (round % 40 == 0) System.gc();
            if (round % 25 == 0) Thread.getAllStackTraces();
            if (round % 10 == 0) java.lang.management.ManagementFactory.getThreadMXBean().findDeadlockedThreads();
        }
    }
}
"#;

/// A pause: its operation, and ms until all threads had stopped, and in all.
#[derive(Clone, Debug)]
struct Pause {
    operation: String,
    to_safepoint: f64,
    total: f64,
}

/// The pauses in a JVM's log.
fn logged(log: &Path) -> Vec<Pause> {
    logged_pauses(&std::fs::read_to_string(log).expect("the JVM's log"))
}

fn logged_pauses(text: &str) -> Vec<Pause> {
    let after = |line: &str, name: &str| -> f64 {
        let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("{name}: {line}"));
        rest.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e6
    };
    let pause = |line: &str| {
        let (_, rest) = line.split_once("Safepoint \"")?;
        let (operation, rest) = rest.split_once('"')?;
        // The last line may be half written.
        rest.contains("Total: ").then(|| Pause {
            operation: operation.to_owned(),
            to_safepoint: after(rest, "Reaching safepoint: "),
            total: after(rest, "Total: "),
        })
    };
    text.lines().filter_map(pause).collect()
}

/// What sums of some hundred times of 1 ns, as ms, may differ by.
const ROUNDED: f64 = 0.001;

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name}: {value}"))
}

/// The logged pauses that these are: those after each other with the same operations whose times
/// are nearest.
fn same<'a>(seen: &[Pause], logged: &'a [Pause]) -> &'a [Pause] {
    let is_same = |of: &&[Pause]| of.iter().zip(seen).all(|(one, two)| one.operation == two.operation);
    let distance =
        |of: &&[Pause]| of.iter().zip(seen).map(|(one, two)| (one.total - two.total).abs()).sum::<f64>();
    let candidates = logged.windows(seen.len()).filter(is_same);
    let nearest = candidates.min_by(|one, two| distance(one).total_cmp(&distance(two)));
    nearest.unwrap_or_else(|| panic!("the log has no such operations: {seen:?}\n{logged:?}"))
}

#[test]
fn pauses_are_those_of_the_jvms_own_log() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_java_for(8, dir.path(), "Stops", STOPS);
        let (log, pprof) = (dir.path().join("safepoints.log"), dir.path().join("x.pb.gz"));
        let option = format!("-Xlog:safepoint=info:file={}:none", log.display());
        let classes = classes.to_str().expect("UTF-8");
        let arguments = ["-Xmx256m", "-XX:+UseParallelGC", &option, "-cp", classes, "Stops"];
        let jvm = Workload::start(&home.join("bin/java"), &arguments);
        let (pid, to) = (jvm.pid().to_string(), pprof.to_str().expect("UTF-8"));
        let mut recording = Recording::start(&["--pauses", "-F", "499", "-p", &pid, "-o", to]);
        recording.wait_for(&[SEES_PAUSES]);
        // Whole rounds of all that the program does.
        let before = logged(&log).len();
        recording.wait_until("the JVM has paused often", |_| logged(&log).len() >= before + 200);
        let_it_run(jvm.pid(), Duration::from_secs(4));
        let summary = recording.end();
        drop(jvm);
        let [of_jvm] = &summary["pauses"].as_array().expect("an array")[..] else {
            panic!("JDK {feature}: one JVM was followed: {summary}")
        };
        assert_eq!((&of_jvm["name"], &of_jvm["lost"]), (&"Stops".into(), &0.into()), "JDK {feature}");
        // The last one may go on when the recording ends.
        let events = of_jvm["events"].as_array().expect("an array");
        let events: Vec<&Value> = events.iter().filter(|event| !event["end_ms"].is_null()).collect();
        let seen: Vec<Pause> = events
            .iter()
            .map(|event| Pause {
                operation: event["operation"].as_str().expect("it has a name").to_owned(),
                to_safepoint: number(event, "to_safepoint_ms"),
                total: number(event, "end_ms") - number(event, "begin_ms"),
            })
            .collect();
        assert!(seen.len() > 50, "JDK {feature}: {summary}");
        let logged = logged(&log);
        let logged = same(&seen, &logged);
        for (name, of) in
            [("total", (|it| it.total) as fn(&Pause) -> f64), ("to safepoint", |it| it.to_safepoint)]
        {
            let (ours, theirs): (f64, f64) = (seen.iter().map(of).sum(), logged.iter().map(of).sum());
            eprintln!("JDK {feature}, {name}: {ours:.3} ms, the JVM says {theirs:.3}");
            // Before JDK 13 no variable has its times, and it writes its log between its last
            // reading of the clock and the probed function.
            let tolerance = if feature < 13 { 0.02 * theirs + 0.1 * seen.len() as f64 } else { ROUNDED };
            assert!((ours - theirs).abs() < tolerance, "JDK {feature}, {name}: {ours} ms, not {theirs}");
        }
        let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
        for event in &events {
            let is_collection = event["operation"].as_str().is_some_and(|name| name.starts_with("Parallel"));
            assert_eq!(event["cause"].is_string(), is_collection, "JDK {feature}: {event}");
            *causes.entry(event["cause"].as_str().unwrap_or("none")).or_default() += 1;
        }
        let names: Vec<&str> = causes.keys().copied().filter(|cause| *cause != "Ergonomics").collect();
        assert_eq!(names, ["Allocation Failure", "System.gc()", "none"], "JDK {feature}");
        assert_samples_are_labelled(feature, &pprof);
    }
}

/// Collections in a second's time; from when until when, since the JVM's start, is written to a
/// file.
const QUIET: &str = r#"
public class Quiet {
    static volatile Object kept;
    static volatile long sink;
    static void spin(long milliseconds) {
        long end = System.nanoTime() + milliseconds * 1_000_000;
        while (System.nanoTime() < end) for (int i = 0; i < 10_000; i++) sink += i;
    }
    static long uptime() { return java.lang.management.ManagementFactory.getRuntimeMXBean().getUptime(); }
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        spin(20);
        long from = uptime();
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 2_000; i++) kept = new byte[10_000];
            System.gc();
            spin(20);
        }
        java.nio.file.Files.write(java.nio.file.Paths.get(args[0]), (from + " " + uptime()).getBytes());
        Recorder.done(args);
    }
}
"#;

#[test]
fn without_the_option_the_summary_says_what_the_jvm_says_of_itself() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_recorded(dir.path(), "Quiet", QUIET);
        let [log, times] = ["safepoints.log", "times"].map(|name| dir.path().join(name));
        let option = format!("-Xlog:safepoint=info:file={}:uptimemillis", log.display());
        let java = home.join("bin/java");
        let command = ["-F", "99", "--", java.to_str().expect("UTF-8"), "-Xmx64m", "-XX:+UseParallelGC"];
        let [classes, written] = [&classes, &times].map(|path| path.to_str().expect("UTF-8"));
        let class = [&*option, "-cp", classes, "Quiet", written];
        let summary = record_work(&[&command[..], &class].concat(), &[WALKS_STACKS, READS_STOPS]);
        let times = std::fs::read_to_string(&times).expect("the program has ended well");
        let (from, until) = times.split_once(' ').expect("two times");
        let [from, until] = [from, until].map(|time| time.parse::<u64>().expect("ms"));
        assert!(summary["pauses"].is_null(), "JDK {feature}: nothing was asked for: {summary}");
        let jvm = &summary["jvms"][0];
        assert_eq!(jvm["name"], "Quiet", "JDK {feature}: {summary}");
        let stops = &jvm["stops"];
        let ours = ["pauses", "to_safepoint_ms", "stopped_ms"].map(|name| number(stops, name));
        let text = std::fs::read_to_string(&log).expect("the JVM's log");
        let is_later = |line: &&str| {
            let time = line.strip_prefix('[').and_then(|rest| rest.split_once("ms]"));
            time.is_some_and(|(time, _)| time.trim().parse::<u64>().is_ok_and(|time| time > from))
        };
        let later: Vec<&str> = text.lines().filter(is_later).collect();
        let sums = |text: &str| {
            let pauses = logged_pauses(text);
            let to_safepoint: f64 = pauses.iter().map(|pause| pause.to_safepoint).sum();
            let total: f64 = pauses.iter().map(|pause| pause.total).sum();
            [pauses.len() as f64, to_safepoint, total - to_safepoint]
        };
        // Those of the start may come before the JVM can be read.
        let (least, most) = (sums(&later.join("\n")), sums(&text));
        let followed_ms = number(stops, "followed_ms");
        eprintln!("JDK {feature}: {ours:.3?} of {followed_ms} ms, the JVM says {least:.3?} to {most:.3?}");
        let is_followed = followed_ms >= (until - from) as f64;
        assert!(least[0] >= 40.0 && is_followed, "JDK {feature}: {stops} from {from} to {until} ms");
        // The last stop, in which the JVM ends, counts only if it was read in time.
        for ((ours, least), most) in ours.into_iter().zip(least).zip(most) {
            let tolerance = 0.02 * most + 1.5;
            let fits = least - tolerance < ours && ours < most + tolerance;
            assert!(fits, "JDK {feature}: {ours}, not {least} to {most}: {stops}, {}", summary["losses"]);
        }
    }
}

/// Parallel's threads work in pauses only, and threads that run Java code don't run in them.
fn assert_samples_are_labelled(feature: u32, path: &Path) {
    let bytes = std::fs::read(path).expect("it was written");
    let pprof = decode(&bytes, DecodeLimits::default()).expect("pprof");
    let text = |at: i64| &*pprof.string_table[at as usize];
    let mut samples: BTreeMap<(&str, bool), i64> = BTreeMap::new();
    for sample in &pprof.sample {
        let label = |name: &str| sample.label.iter().find(|label| text(label.key) == name);
        let kind = label("thread_kind").map_or("", |label| text(label.str));
        *samples.entry((kind, label("stw").is_some())).or_default() += sample.value[0];
    }
    let count = |kind, is_stopped| samples.get(&(kind, is_stopped)).copied().unwrap_or_default();
    eprintln!("JDK {feature}: {samples:?}");
    assert!(count("gc", true) > 50, "JDK {feature}: {samples:?}");
    assert!(count("gc", false) * 10 < count("gc", true), "JDK {feature}: {samples:?}");
    // On busy CPUs the VM thread is preempted between letting the others run and its own end of the
    // pause. A third of the time is in pauses.
    assert!(count("java", true) * 10 < count("java", false), "JDK {feature}: {samples:?}");
}
