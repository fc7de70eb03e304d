//! JVMs as they are, without any flag: their stacks are whole, named, and true. Needs root and the
//! JDKs of `JVMPROF_TEST_JDKS`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::processes::{LONGEST_WAIT, let_it_run, until_it_has_run};
use crate::support::recording::{Gate, Recording, WALKS_STACKS, compile_recorded_for};
use crate::support::{LOAD, Workload, compile_java, jdks, record_json, scratch};
use serde_json::Value;

/// Loads one class file again and again under new names, each through a loader of its own, so that
/// code and methods of one take over the addresses of another.
const UNLOAD: &str = r#"
import java.io.*;
public class Unload extends ClassLoader {
    public interface Work { long run(long x); }
    public static class Shape00 implements Work {
        public long run(long x) { return outerNr00(x); }
        long outerNr00(long x) { for (int i = 0; i < 20; i++) x = innerNr00(x + i); return x; }
        static long innerNr00(long x) {
            for (int i = 0; i < 50; i++) { x ^= x << 13; x ^= x >>> 7; x ^= x << 17; }
            return x;
        }
    }
    static volatile long sink;
    public static void main(String[] args) throws Exception {
        ByteArrayOutputStream shape = new ByteArrayOutputStream();
        try (InputStream in = Unload.class.getResourceAsStream("Unload$Shape00.class")) {
            for (int b; (b = in.read()) >= 0; ) shape.write(b);
        }
        for (int round = 0; ; round++) {
            int nr = round % 90 + 10;
            String text = shape.toString("ISO-8859-1").replace("Shape00", "Shape" + nr).replace("Nr00", "Nr" + nr);
            byte[] bytes = text.getBytes("ISO-8859-1");
            Class<?> loaded = new Unload().defineClass(null, bytes, 0, bytes.length);
            Work work = (Work) loaded.getDeclaredConstructor().newInstance();
            long until = System.nanoTime() + 30_000_000;
            while (System.nanoTime() < until) sink = work.run(sink | 1);
            if (round % 4 == 0) System.gc();
        }
    }
}
"#;

/// Virtual threads that park deep in their stacks: they go on with a few frames on a stack, the
/// others are in the heap.
const PARK: &str = r#"
import java.util.concurrent.locks.LockSupport;
public class Park {
    static volatile long sink;
    static long spin(long x) {
        for (int i = 0; i < 300_000; i++) { x ^= x << 13; x ^= x >>> 7; x ^= x << 17; }
        return x;
    }
    static long descend(int depth, long x) {
        if (depth > 0) return descend(depth - 1, x) + 1;
        LockSupport.parkNanos(1);
        return x;
    }
    static long climb(int depth, long x) {
        if (depth == 0) { descend(5, x); return x; }
        x = climb(depth - 1, x);
        return spin(x | 1);
    }
    static Object[] kept = new Object[100_000];
    static void litter() {
        for (int i = 0;; i = (i + 7) % kept.length) {
            kept[i] = new byte[200];
            if (i % 500 == 0) LockSupport.parkNanos(200_000);
        }
    }
    static long turn(int depth) {
        if (depth > 0) return turn(depth - 1) + 1;
        Thread.yield();
        return 1;
    }
    static void climbOnce() throws Exception { Thread.ofVirtual().start(() -> sink = climb(20, sink)).join(); }
    public static void main(String[] args) throws Exception {
        if (args[0].equals("turn")) {
            Runnable turns = () -> { for (;;) sink += turn(60); };
            for (int i = 0; i < 4; i++) Thread.ofVirtual().start(turns);
            Thread.sleep(Long.MAX_VALUE);
        }
        if (args[0].equals("litter")) Thread.ofPlatform().daemon().start(Park::litter);
        // Until it is compiled.
        long until = System.nanoTime() + 3_000_000_000L;
        for (int i = 0; i < 100 && System.nanoTime() < until; i++) climbOnce();
        Recorder.await(args);
        for (;;) climbOnce();
    }
}
"#;

/// Hashes, copies of arrays, and calls through vtables and itables.
const STUBS: &str = r#"
import java.security.MessageDigest;
public class Stubs {
    interface Shape { int area(int x); }
    static abstract class Base implements Shape { abstract int side(int x); }
    static class A extends Base { public int area(int x) { return x + 1; } int side(int x) { return x * 3; } }
    static class B extends Base { public int area(int x) { return x + 2; } int side(int x) { return x * 5; } }
    static class C extends Base { public int area(int x) { return x + 3; } int side(int x) { return x * 7; } }
    static class D extends Base { public int area(int x) { return x + 4; } int side(int x) { return x * 9; } }
    static volatile long sink;
    static void hash(MessageDigest digest, byte[] data) { digest.update(data); }
    static void copy(byte[] from, byte[] to) { for (int i = 0; i < 64; i++) System.arraycopy(from, 0, to, 0, from.length); }
    static long call(Shape[] shapes, Base[] bases) {
        long sum = 0;
        for (int i = 0; i < 400_000; i++) sum += shapes[i & 3].area(i) + bases[i & 3].side(i);
        return sum;
    }
    public static void main(String[] args) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        byte[] data = new byte[200_000], to = new byte[200_000];
        Base[] bases = { new A(), new B(), new C(), new D() };
        for (;;) { hash(digest, data); copy(data, to); sink += call(bases, bases); }
    }
}
"#;

fn start(home: &Path, classes: &Path, flags: &[&str], program: &[&str]) -> Workload {
    let mut args = flags.to_vec();
    args.extend(["-cp", classes.to_str().unwrap()]);
    args.extend(program);
    Workload::start(&home.join("bin/java"), &args)
}

/// The results of `jvmprof record`.
struct Recorded {
    summary: Value,
    samples: u64,
    whole: u64,
    /// Stacks from the root on, and how many samples have them.
    stacks: Vec<(String, u64)>,
    pprof: PathBuf,
    /// For how long the JVM could not be read, and the recorder's CPU time meanwhile.
    unready: [Duration; 2],
}

/// The arguments of a recording that is read by [`Recorded::read`].
fn outputs(dir: &Path) -> [String; 4] {
    let [pprof, folded] = ["x.pb.gz", "x.folded"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    ["-o".to_owned(), pprof, "-o".to_owned(), folded]
}

/// Records a command until it ends.
fn record_command(dir: &Path, command: &[&str]) -> Recorded {
    let outputs = outputs(dir);
    let outputs = outputs.each_ref().map(String::as_str);
    Recorded::read(dir, record_json(&[&outputs[..], command].concat()), [Duration::ZERO; 2])
}

/// Records a program until it has run for so long in a JVM that could be read. `gate`: what is to
/// be recorded begins then only.
fn record(dir: &Path, load: &Workload, options: &[&str], gate: Option<&Gate>, time: Duration) -> Recorded {
    let (outputs, pid) = (outputs(dir), load.pid().to_string());
    let outputs = outputs.each_ref().map(String::as_str);
    let mut recording = Recording::start(&[&outputs[..], &["-p", &pid], options].concat());
    recording.wait_for(&[WALKS_STACKS]);
    let unready = [recording.elapsed(), recording.cpu_time()];
    gate.into_iter().for_each(Gate::open);
    let_it_run(load.pid(), time);
    Recorded::read(dir, recording.end(), unready)
}

impl Recorded {
    fn read(dir: &Path, summary: Value, unready: [Duration; 2]) -> Self {
        let number = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
        let (samples, whole) = (number("samples"), number("complete"));
        let stack = |line: &str| {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            (stack.to_owned(), count.parse().unwrap())
        };
        let stacks = fs::read_to_string(dir.join("x.folded")).unwrap().lines().map(stack).collect();
        Self { summary, samples, whole, stacks, pprof: dir.join("x.pb.gz"), unready }
    }

    fn samples_of(&self, is_it: impl Fn(&str) -> bool) -> u64 {
        self.stacks.iter().filter(|(stack, _)| is_it(stack)).map(|(_, count)| count).sum()
    }
}

#[test]
fn a_known_chain_is_whole_and_named_with_its_lines() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    for (feature, home) in jdks() {
        let load = start(&home, &classes, &[], &["Load", "0"]);
        // The JVM has started, and compiled its methods.
        until_it_has_run(load.pid(), Duration::from_secs(2));
        let found = record(dir.path(), &load, &[], None, Duration::from_millis(2500));
        assert!(found.samples > 100, "JDK {feature}: {}", found.summary);
        assert!(found.whole * 100 >= found.samples * 99, "JDK {feature}: {}", found.summary);
        let chain = ";Load.main;Load.outer;Load.hash";
        let of_main = found.samples_of(|stack| stack.contains("JavaMain;") && stack.ends_with(chain));
        assert!(of_main * 10 >= found.samples * 9, "JDK {feature}: {of_main}; {:#?}", found.stacks);
        let lines = crate::support::go_pprof(&found.pprof, &["-lines"]);
        let of_hash: u64 =
            lines.iter().filter(|(name, _)| name.contains("Load.java:4")).map(|(_, count)| count).sum();
        assert!(of_hash * 10 >= found.samples * 9, "JDK {feature}: {lines:?}");
    }
}

#[test]
fn stubs_have_the_names_that_hotspot_gives_them() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Stubs", STUBS);
    for (feature, home) in jdks() {
        let load = start(&home, &classes, &[], &["Stubs"]);
        until_it_has_run(load.pid(), Duration::from_secs(2));
        let began = Instant::now();
        let record = || record(dir.path(), &load, &["-F", "499"], None, Duration::from_secs(3));
        let mut found = record();
        // Which one depends on the JDK and the CPU.
        let expected = [
            ("sun.security.provider", "[sha256_implCompress"),
            ("Stubs.copy", "[jbyte_"),
            ("Stubs.call", "[vtable stub]"),
            ("Stubs.call", "[itable stub]"),
        ];
        let unseen = |found: &Recorded| {
            let is_unseen = |(caller, name): &(&str, &str)| {
                let calls = |stack: &str| {
                    let (rest, leaf) = stack.rsplit_once(';').unwrap_or(("", stack));
                    leaf.starts_with(name) && rest.rsplit(';').next().is_some_and(|it| it.starts_with(caller))
                };
                found.samples_of(calls) == 0
            };
            expected.iter().copied().filter(is_unseen).collect::<Vec<_>>()
        };
        // Debian's JDK 8 has no symbols, and its stubs the names of their blobs.
        let has_names = |found: &Recorded| found.samples_of(|stack| stack.contains(";[call_stub]")) > 0;
        // Some take little of the time.
        while has_names(&found) && !unseen(&found).is_empty() && began.elapsed() < LONGEST_WAIT {
            found.stacks.extend(record().stacks);
        }
        let of = format!("JDK {feature}: {}", found.summary);
        let has_names = has_names(&found);
        assert!(has_names || feature == 8, "{of}: {:#?}", found.stacks);
        if has_names {
            let nameless = found.samples_of(|stack| stack.contains("[StubRoutines ("));
            assert_eq!(nameless, 0, "{of}: {:#?}", found.stacks);
            let unseen = unseen(&found);
            assert!(unseen.is_empty(), "{of}: {unseen:?} of {:#?}", found.stacks);
        }
    }
}

/// Recursion 1,000 deep is whole, with each of its frames.
fn recursion(flags: &[&str]) {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    for (feature, home) in jdks() {
        let load = start(&home, &classes, flags, &["Load", "1000"]);
        until_it_has_run(load.pid(), Duration::from_secs(3));
        let found = record(dir.path(), &load, &["-F", "99"], None, Duration::from_millis(2500));
        let of = format!("JDK {feature} {flags:?}: {}", found.summary);
        // Before the kernel knows the JVM, stacks are copied for the daemon to walk, though not as
        // many bytes of them.
        let early = found.summary["losses"]["truncated: process not yet known"].as_u64().unwrap_or(0);
        let [elapsed, cpu_time] = found.unready;
        let most = 99.0 * elapsed.as_secs_f64();
        assert!(early as f64 <= most, "{early} while it wasn't known, for {elapsed:?}: {of}");
        // From the first sample on, on a machine that has nothing else to do.
        let startup_ms = found.summary["daemon"]["startup_cpu_ms"].as_f64().unwrap_or_default();
        let reading = cpu_time.saturating_sub(Duration::from_secs_f64(startup_ms / 1e3));
        assert!(reading < Duration::from_secs(1), "the JVM is known within a second, not {reading:?}: {of}");
        assert!(found.samples - early > 50 && found.whole * 100 >= (found.samples - early) * 99, "{of}");
        // From the main method at most all of them, and at the bottom all but what returned
        // already.
        let descends = |stack: &str| stack.matches(";Load.descend").count();
        let deep = found.samples_of(|stack| stack.contains(";Load.main;") && descends(stack) == 1001);
        assert!(deep * 10 >= (found.samples - early) * 8, "{of}: {deep} are 1,001 deep");
        // C2 inlines a recursive call once, and at an instruction between two places with debug
        // information the inlining of the next one counts.
        assert_eq!(found.samples_of(|stack| descends(stack) > 1002), 0, "{of}");
        assert!(found.samples_of(|stack| descends(stack) == 1002) * 50 <= found.samples, "{of}");
    }
}

#[test]
fn interpreted_recursion_1000_deep_is_whole() {
    recursion(&["-Xint"]);
}

#[test]
fn compiled_recursion_1000_deep_is_whole() {
    recursion(&[]);
}

#[test]
fn a_jvm_that_lives_for_five_seconds_is_whole_from_its_start() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let command = ["--", java.to_str().unwrap(), "-cp", classes.to_str().unwrap(), "Load", "0", "5000"];
        let found = record_command(dir.path(), &command);
        let of = format!("JDK {feature}: {}", found.summary);
        assert_eq!(found.summary["kernel"]["taken"].as_u64().unwrap(), found.samples, "{of}");
        assert!(found.samples > 50 && found.whole * 100 >= found.samples * 95, "{of}");
        let named = found.samples_of(|stack| stack.contains(";Load.main;"));
        // A debug build takes a second to know a JVM; until then its frames are walked too late to
        // be named.
        assert!(named * 4 > found.samples, "{of}: {named} of Load.main");
    }
}

#[test]
fn no_frame_of_unloaded_classes_has_another_ones_class_or_method() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Unload", UNLOAD);
    for (feature, home) in jdks() {
        let load = start(&home, &classes, &["-Xmx32m"], &["Unload"]);
        until_it_has_run(load.pid(), Duration::from_secs(1));
        let found = record(dir.path(), &load, &["-F", "499"], None, Duration::from_secs(4));
        let (mut seen, mut wrong) = (BTreeSet::new(), BTreeSet::new());
        for (stack, _) in &found.stacks {
            let mut shapes = BTreeSet::new();
            for frame in stack.split(';').filter(|frame| frame.contains("$Shape")) {
                let (class, method) = frame.rsplit_once('.').unwrap_or_else(|| panic!("{stack}"));
                let (_, class) = class.rsplit_once("$Shape").unwrap_or_else(|| panic!("{stack}"));
                seen.insert(class.to_owned());
                shapes.insert(class);
                let own = method.rsplit_once("Nr").map(|(_, nr)| nr);
                if own.is_some_and(|nr| nr != class) {
                    wrong.insert(frame.to_owned());
                }
            }
            if shapes.len() > 1 {
                wrong.insert(stack.clone());
            }
        }
        assert!(wrong.is_empty(), "JDK {feature}: {wrong:#?}");
        assert!(seen.len() > 10, "JDK {feature}: {seen:?}, {}", found.summary);
    }
}

/// Each `climb` of a stack that was parked calls `spin` once, at its own depth, on its way back.
#[test]
fn a_virtual_threads_frames_in_the_heap_are_on_its_stack() {
    // Without safepoints in its loop an inlined method has no debug information of its own.
    let serial = ["-XX:+UseSerialGC", "-XX:+UseCountedLoopSafepoints"];
    frozen(|_| vec![vec![], vec!["-Xint"], vec!["-XX:-UseCompressedOops"], serial.to_vec()], "climb");
}

/// The same while a collector moves the chunks that the frames lie in.
#[test]
fn a_virtual_threads_frames_are_found_while_a_collector_moves_them() {
    let flags = |feature: u32| -> Vec<Vec<&str>> {
        let mut all = vec![vec!["-XX:+UseZGC"], vec!["-XX:+UseZGC", "-Xint"], vec!["-XX:+UseShenandoahGC"]];
        all.push(vec!["-XX:+UseShenandoahGC", "-XX:-UseCompressedOops"]);
        if feature < 24 {
            all.push(vec!["-XX:+UseZGC", "-XX:+ZGenerational"]);
        }
        all.into_iter()
            .map(|mut flags| {
                flags.push("-Xmx128m");
                flags
            })
            .collect()
    };
    frozen(flags, "litter");
}

/// A thread that yields all the time is often met while the JVM copies its frames back. What it
/// copies of interpreted ones is cut.
#[test]
fn frames_that_are_being_thawed_are_on_their_stack() {
    let dir = scratch();
    let classes = compile_recorded_for(21, dir.path(), "Park", PARK);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 21) {
        let load = start(&home, &classes, &[], &["Park", "turn"]);
        until_it_has_run(load.pid(), Duration::from_secs(3));
        let is_thawing = |(stack, _): &(String, u64)| stack.contains(";thaw<") || stack.contains(";thaw ");
        let (began, mut summaries) = (Instant::now(), Vec::new());
        let mut thawing: Vec<(String, u64)> = Vec::new();
        let count = |thawing: &[(String, u64)], wanted: &dyn Fn(&str) -> bool| -> u64 {
            thawing.iter().filter(|(stack, _)| wanted(stack)).map(|(_, count)| count).sum()
        };
        while count(&thawing, &|_| true) < 50 && began.elapsed() < LONGEST_WAIT {
            let found = record(dir.path(), &load, &["-F", "1999"], None, Duration::from_secs(4));
            thawing.extend(found.stacks.into_iter().filter(is_thawing));
            summaries.push(found.summary);
        }
        let all = count(&thawing, &|_| true);
        let cut = count(&thawing, &|stack| stack.starts_with("[truncated"));
        let of = format!("JDK {feature}: {all} thawing, {cut} cut");
        println!("{of}");
        assert!(all >= 50 && cut * 3 <= all, "{of}: {summaries:?}");
        for (stack, _) in thawing.iter().filter(|(stack, _)| !stack.starts_with("[truncated")) {
            let run = ";jdk.internal.vm.Continuation.run;jdk.internal.vm.Continuation.enterSpecial;";
            assert!(stack.contains(run), "{of}: {stack}");
        }
    }
}

fn frozen(flags: impl Fn(u32) -> Vec<Vec<&'static str>>, what: &str) {
    let dir = scratch();
    let classes = compile_recorded_for(21, dir.path(), "Park", PARK);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 21) {
        for flags in flags(feature) {
            let gate = Gate::new();
            let [begin, done] = gate.args();
            let load = start(&home, &classes, &flags, &["Park", what, &begin, &done]);
            let time = Duration::from_secs(4);
            let found = record(dir.path(), &load, &["-F", "199"], Some(&gate), time);
            let of = format!("JDK {feature} {flags:?}: {}", found.summary);
            let of_spin = |stack: &&(String, u64)| stack.0.ends_with(";Park.climb;Park.spin");
            let mut depths = BTreeSet::new();
            let (mut cut, mut moving) = (0, 0);
            for (stack, count) in found.stacks.iter().filter(of_spin) {
                if stack.starts_with("[truncated: virtual thread's frames being moved") {
                    // How long a collector takes is the machine's to say.
                    moving += count;
                    continue;
                }
                if stack.starts_with("[truncated") {
                    cut += count;
                    continue;
                }
                let whole = stack.contains(";java.lang.VirtualThread.runContinuation;")
                    && stack.contains(
                        ";jdk.internal.vm.Continuation.enterSpecial;jdk.internal.vm.Continuation.enter;",
                    );
                assert!(whole, "{of}: {stack}");
                depths.insert(stack.matches(";Park.climb").count());
            }
            assert!(found.samples > 100 && cut * 50 <= found.samples, "{of}: {cut} cut");
            assert!(moving * 4 <= found.samples, "{of}: {moving} being moved");
            let expected: BTreeSet<usize> = (1..=20).collect();
            assert_eq!(depths, expected, "{of}");
        }
    }
}
