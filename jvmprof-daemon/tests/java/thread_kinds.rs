//! The kinds of threads in profiles, beside the names that the JVM gives its threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::{Profile, Sample};

use crate::support::processes::{LONGEST_WAIT, children, let_it_run, threads, until_it_samples, wait_until};
use crate::support::recording::{Gate, Recording, WALKS_STACKS, compile_recorded};
use crate::support::{KilledChild, Workload, compile_java_for, jdks, jvmprof, scratch, signal};

/// Garbage for the collector, methods for the compilers, and where there are any, virtual threads.
const BUSY: &str = r#"
import java.util.*;
public class Busy {
    static volatile Object kept;
    /// Loaded anew each round, so that compilers always have work.
    public static class Part implements Runnable {
        static long step(long sum, long i) { return sum + (i ^ sum << 1) % 7; }
        public void run() { long sum = 0; for (long i = 0; i < 100_000; i++) sum = step(sum, i); kept = sum; }
    }
    static long crunch(long n) { long sum = 0; for (long i = 0; i < n; i++) sum += i ^ (sum << 1); return sum; }
    public static void main(String[] args) throws Exception {
        Thread worker = new Thread(() -> { while (true) crunch(1_000_000); }, "platform");
        worker.setDaemon(true);
        worker.start();
        try {
            java.lang.reflect.Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
            start.invoke(null, (Runnable) () -> { while (true) crunch(1_000_000); });
        } catch (NoSuchMethodException none) { }
        java.net.URL[] here = {Busy.class.getProtectionDomain().getCodeSource().getLocation()};
        List<Object> old = new ArrayList<>();
        for (int round = 0; ; round++) {
            for (int i = 0; i < 20_000; i++) old.add(new LinkedList<>(Arrays.asList(i, round)));
            if (old.size() > 400_000) old.clear();
            kept = Class.forName("java.util.Formatter").getMethods();
            String.format("%d %s", round, old.size());
            try (java.net.URLClassLoader fresh = new java.net.URLClassLoader(here, null)) {
                ((Runnable) fresh.loadClass("Busy$Part").getDeclaredConstructor().newInstance()).run();
            }
        }
    }
}
"#;

/// Where it begins, and what it may do there.
const BEGIN: &str = "public static void main(String[] args) throws Exception {\n";
const AWAIT: &str = "        Recorder.await(args);\n";

/// The kind of a thread by its name.
fn expected(name: &str) -> Option<&'static str> {
    Some(match name {
        _ if name.starts_with("CN CompilerThre") => "compiler",
        _ if name.starts_with("GC Thread") || name.starts_with("GN ") => "gc",
        "VM Thread" | "VM Periodic Tas" => "vm",
        "platform" | "java" => "java",
        _ if name.starts_with("ForkJoinPool") => "virtual",
        _ => return None,
    })
}

/// The name of the outermost frame of a sample's stack.
fn thread_begin<'a>(pprof: &'a Profile, sample: &Sample) -> &'a str {
    let location = sample.location_id.last().and_then(|id| pprof.location.iter().find(|l| l.id == *id));
    let line = location.and_then(|location| location.line.last());
    let function = line.and_then(|line| pprof.function.iter().find(|f| f.id == line.function_id));
    function.map_or("", |function| &pprof.string_table[function.name as usize])
}

/// Samples of a JVM in a daemon's store, by names and kinds of their threads, and those of stacks
/// in which the begin of the thread is missing: its kind isn't known.
#[derive(Debug, Default)]
struct Stored {
    samples: BTreeMap<(String, String), i64>,
    cut_off: i64,
}

impl Stored {
    /// `None` while the daemon makes the store, or changes it.
    fn read(store: &Path, pid: u32) -> Option<Self> {
        let mut stored = Self::default();
        let store = Store::open_for_reading(store).ok()?;
        let of_jvm = [Matcher::equal("__name__", "process_cpu"), Matcher::equal("pid", pid.to_string())];
        for series in store.series(TimeRange::ALL, &of_jvm) {
            let name = &series.labels["thread_name"];
            let of_thread = [&of_jvm[..], &[Matcher::equal("thread_name", name.clone())]].concat();
            for profile in store.profiles(TimeRange::ALL, &of_thread) {
                let bytes = store.read(&profile).ok()?;
                let pprof = decode(&bytes, DecodeLimits::default()).expect("pprof");
                let text = |at: i64| &pprof.string_table[at as usize];
                for sample in &pprof.sample {
                    let kind = sample.label.iter().find(|label| text(label.key) == "thread_kind");
                    let kind = kind.map_or(String::new(), |label| text(label.str).clone());
                    if kind.is_empty() && thread_begin(&pprof, sample).starts_with("[truncated") {
                        stored.cut_off += sample.value[0];
                        continue;
                    }
                    *stored.samples.entry((name.clone(), kind)).or_default() += sample.value[0];
                }
            }
        }
        Some(stored)
    }

    fn all(&self) -> i64 {
        self.samples.values().sum()
    }

    fn of_kind(&self, kind: &str) -> i64 {
        self.samples.iter().filter(|((_, of), _)| of == kind).map(|(_, samples)| samples).sum()
    }

    /// Where the CPUs are busy, a JVM's first samples are cut off.
    fn are_few_unknown(&self) -> bool {
        self.of_kind("") * 50 < self.all() && self.cut_off * 10 < self.all()
    }
}

#[test]
fn samples_of_cpu_time_have_the_kinds_of_their_threads() {
    const ENOUGH: i64 = 5_000;
    // Those of twelve seconds of two CPUs: of more of them the first ones would be few in any case.
    const MOST: i64 = 12_000;
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_java_for(8, dir.path(), "Busy", BUSY);
        let java = home.join("bin/java");
        let arguments = ["-Xmx512m", "-XX:+UseParallelGC", "-cp", classes.to_str().expect("UTF-8"), "Busy"];
        let store = dir.path().join("store");
        let mut daemon = jvmprof();
        daemon.args(["daemon", "--sample-labels", "thread_name", "--push-interval", "2s"]);
        daemon.args(["-F", "499", "--local-store-directory"]).arg(&store);
        let mut daemon = KilledChild(daemon.spawn().expect("the binary runs"));
        until_it_samples(daemon.0.id());
        let jvm = Workload::start(&java, &arguments);
        let began = Instant::now();
        let is_enough = |stored: &Stored| stored.all() >= ENOUGH && stored.are_few_unknown();
        let is_over = |stored: &Stored| stored.all() >= MOST || is_enough(stored);
        while !Stored::read(&store, jvm.pid()).is_some_and(|stored| is_over(&stored))
            && began.elapsed() < LONGEST_WAIT
        {
            std::thread::sleep(Duration::from_secs(1));
        }
        signal(daemon.0.id(), "TERM");
        assert!(daemon.0.wait().expect("it ends").success());
        let stored = Stored::read(&store, jvm.pid()).expect("it was made");
        let kinds = ["java", "gc", "compiler"].into_iter().chain((feature >= 21).then_some("virtual"));
        for kind in kinds {
            assert!(stored.of_kind(kind) > 10, "JDK {feature}, {kind}: {stored:?}");
        }
        for ((name, kind), samples) in &stored.samples {
            let expected = expected(name).unwrap_or(kind);
            // A carrier looks for work without a virtual thread, and the launcher's first thread
            // isn't the one that it starts the JVM with.
            let may_be = (kind.as_str(), expected);
            let is_right =
                kind == expected || may_be == ("java", "virtual") || name == "java" && kind == "native";
            assert!(kind.is_empty() || is_right, "JDK {feature}, {name}: {kind}, {samples} samples");
        }
        assert!(is_enough(&stored), "JDK {feature}: not in {:?}: {stored:?}", began.elapsed());
    }
}

#[test]
fn a_recording_says_how_much_of_a_jvm_was_the_collectors_and_the_compilers() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_recorded(dir.path(), "Busy", &BUSY.replace(BEGIN, &[BEGIN, AWAIT].concat()));
        let (java, gate) = (home.join("bin/java"), Gate::new());
        let [begin, done] = gate.args();
        let options = ["-F", "499", "--", java.to_str().expect("UTF-8"), "-Xmx512m", "-XX:+UseParallelGC"];
        let program = ["-cp", classes.to_str().expect("UTF-8"), "Busy", &begin, &done];
        let mut recording = Recording::start(&[&options[..], &program].concat());
        recording.wait_for(&[WALKS_STACKS]);
        gate.open();
        let [pid] = children(recording.pid())[..] else { panic!("it has one child: {}", recording.log()) };
        let_it_run(pid, Duration::from_secs(8));
        let summary = recording.end();
        let [jvm] = &summary["jvms"].as_array().expect("an array")[..] else {
            panic!("JDK {feature}: one JVM was recorded: {summary}")
        };
        assert_eq!(jvm["name"], "Busy", "JDK {feature}");
        let kinds = jvm["thread_kinds"].as_object().expect("an object");
        let samples = |kind: &str| kinds.get(kind).and_then(serde_json::Value::as_u64).unwrap_or_default();
        assert!(samples("gc") > 10 && samples("compiler") > 10 && samples("java") > 10, "{jvm}");
        let all: u64 = kinds.keys().map(|kind| samples(kind)).sum();
        assert_eq!(Some(all), jvm["samples"].as_u64(), "JDK {feature}: {jvm}");
        assert!(samples("unknown") * 20 < all, "JDK {feature}: {jvm}");
    }
}

#[test]
fn a_recording_of_some_kinds_of_threads_has_these_alone_and_counts_the_others() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_recorded(dir.path(), "Busy", &BUSY.replace(BEGIN, &[BEGIN, AWAIT].concat()));
        let (java, gate) = (home.join("bin/java"), Gate::new());
        let [begin, done] = gate.args();
        let pprof = dir.path().join("x.pb.gz");
        let options = ["-e", "cpu,offcpu", "--thread-kind", "gc,compiler", "-F", "499"];
        let output = ["-o", pprof.to_str().expect("UTF-8"), "--", java.to_str().expect("UTF-8")];
        let java_options = ["-Xmx512m", "-XX:+UseParallelGC", "-cp", classes.to_str().expect("UTF-8")];
        let program = ["Busy", &begin, &done];
        let mut recording = Recording::start(&[&options[..], &output, &java_options, &program].concat());
        recording.wait_for(&[WALKS_STACKS]);
        gate.open();
        let [pid] = children(recording.pid())[..] else { panic!("it has one child: {}", recording.log()) };
        let_it_run(pid, Duration::from_secs(8));
        let summary = recording.end();
        let pprof = decode(&std::fs::read(&pprof).expect("written"), DecodeLimits::default()).expect("pprof");
        let text = |at: i64| &*pprof.string_table[at as usize];
        let kind = |sample: &Sample| {
            let label = sample.label.iter().find(|label| text(label.key) == "thread_kind");
            label.map_or("", |label| text(label.str))
        };
        for sample in &pprof.sample {
            assert!(["gc", "compiler"].contains(&kind(sample)), "JDK {feature}: {}", kind(sample));
        }
        let written = |sample_type: &str| -> i64 {
            let at = pprof.sample_type.iter().position(|of| text(of.r#type) == sample_type).expect("a type");
            pprof.sample.iter().map(|sample| sample.value[at]).sum()
        };
        assert!(written("off_cpu") > 0, "JDK {feature}: the threads have waited");

        let filter = &summary["thread_kind_filter"];
        assert_eq!(filter["kinds"], serde_json::json!(["compiler", "gc"]), "JDK {feature}");
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        let [cpu, waits] = &filter["events"].as_array().expect("an array")[..] else {
            panic!("JDK {feature}: two events were recorded: {filter}")
        };
        assert_eq!((&cpu["event"], &waits["event"]), (&"cpu".into(), &"offcpu".into()));
        assert_eq!(number(&cpu["stacks"]), written("samples") as u64, "JDK {feature}: {filter}");
        // What is said of the JVM is of all its threads, and so is the sum of both.
        let [jvm] = &summary["jvms"].as_array().expect("an array")[..] else {
            panic!("JDK {feature}: one JVM was recorded: {summary}")
        };
        let kinds = &jvm["thread_kinds"];
        assert_eq!(number(&cpu["stacks"]), number(&kinds["gc"]) + number(&kinds["compiler"]), "{summary}");
        assert_eq!(number(&cpu["left_out"]["java"]), number(&kinds["java"]), "JDK {feature}: {summary}");
        assert!(number(&cpu["left_out"]["java"]) > 10 && number(&cpu["stacks"]) > 10, "{filter}");
        assert!(number(&waits["left_out"]["java"]) > 0, "JDK {feature}: others have waited: {filter}");
        let is_of_program = |row: &serde_json::Value| row["name"] == "Busy.crunch";
        assert!(!summary["top"].as_array().expect("a table").iter().any(is_of_program), "{summary}");
    }
}

#[test]
fn threads_are_shown_apart() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_java_for(8, dir.path(), "Busy", BUSY);
        let arguments = ["-Xmx512m", "-XX:+UseParallelGC", "-cp", classes.to_str().expect("UTF-8"), "Busy"];
        let jvm = Workload::start(&home.join("bin/java"), &arguments);
        let has_started = || threads(jvm.pid()).values().any(|thread| thread.name == "platform");
        wait_until("the program has started its threads", has_started);
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        let (folded, pprof, pid) = (path("x.folded"), path("x.pb.gz"), jvm.pid().to_string());
        let options = ["--threads", "--java", "-p", &pid, "-F", "499", "-o", &folded, "-o", &pprof];
        let mut recording = Recording::start(&options);
        recording.wait_for(&[WALKS_STACKS]);
        let_it_run(jvm.pid(), Duration::from_secs(4));
        let summary = recording.end();

        let threads = summary["threads"].as_array().expect("an array");
        let value = |thread: &serde_json::Value| thread["value"].as_u64().expect("a number");
        let tid_of = |name: &str| threads.iter().find(|it| it["name"] == name).expect(name)["tid"].clone();
        let platform = tid_of("platform");
        let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{platform}/comm"));
        assert_eq!(comm.expect("it runs").trim_end(), "platform", "JDK {feature}");

        let folded = std::fs::read_to_string(&folded).expect("it was written");
        let mut sum = 0;
        for line in folded.lines() {
            let (stack, count) = line.rsplit_once(' ').expect("a stack and a count");
            let (thread, stack) = stack.split_once(';').expect("a thread and frames");
            assert!(thread.starts_with('[') && thread.contains(" tid="), "JDK {feature}: {line}");
            let is_java = ["[platform ", "[java ", "[ForkJoinPool"].iter().any(|it| thread.starts_with(it));
            assert!(is_java || !stack.contains("Busy."), "JDK {feature}: {line}");
            sum += count.parse::<u64>().expect("a number");
        }
        let of_platform = format!("[platform tid={platform}];Busy$$Lambda");
        assert!(folded.contains(&of_platform), "JDK {feature}: {folded}");
        let samples_of = |is: &dyn Fn(&str) -> bool| -> u64 {
            let named = threads.iter().filter(|it| is(it["name"].as_str().expect("a name")));
            named.map(value).sum()
        };
        assert_eq!(sum, samples_of(&|_| true), "JDK {feature}: {threads:?}");
        assert!(samples_of(&|name| name.starts_with("GC Thread")) > 0, "JDK {feature}: {threads:?}");

        let pprof = decode(&std::fs::read(&pprof).expect("written"), DecodeLimits::default()).expect("pprof");
        let text = |at: i64| &pprof.string_table[at as usize];
        let is_of_platform = |sample: &&Sample| {
            let label = |key: &str| sample.label.iter().find(|label| text(label.key) == key);
            label("thread_name").is_some_and(|it| text(it.str) == "platform") && label("thread_id").is_some()
        };
        let counted: i64 = pprof.sample.iter().filter(is_of_platform).map(|sample| sample.value[0]).sum();
        assert_eq!(counted as u64, samples_of(&|name| name == "platform"), "JDK {feature}");
    }
}
