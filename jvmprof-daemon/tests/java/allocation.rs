//! Profiles of allocation. Whether they are true is checked by `cargo xtask allocation`; here is
//! what can be told apart without statistics.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::processes::{children, wait_until};
use crate::support::recording::{Recording, SEES_ALLOCATIONS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::{KilledChild, Workload, compile_java, jdks, jvmprof, scratch, signal};

/// Boxes a number with each call, which C2 takes away; then allocates arrays, so many or without
/// end. With two files it waits for the recorder first.
pub(crate) const BOXING: &str = r#"
public class Boxing {
    static long demo(long a, long b) { return new Long(a + b).longValue(); }
    static byte[] kept;
    static byte[] arrays(int length) { return new byte[length]; }
    public static void main(String[] args) throws Exception {
        boolean waits = args.length > 2;
        if (waits) Recorder.await(args);
        long calls = Long.parseLong(args[0]), sum = 0;
        for (long i = 0; i < calls; i++) sum = demo(sum, i);
        int arrays = Integer.parseInt(args[1]);
        for (int i = 0; arrays < 0 || i < arrays; i++) kept = arrays(10_000 + (i & 7));
        System.err.println(sum);
        if (waits) Recorder.done(args);
    }
}
"#;

/// Makes a JDK whose launcher and libjvm are files of its own, and whose other files are links to
/// those of `home`. Breakpoints lie in files: a test that counts them does so in a libjvm in which
/// no recorder of another test has any.
pub(crate) fn own_jdk(home: &Path, own: PathBuf) -> PathBuf {
    let home = home.canonicalize().expect("it is there");
    let linked = Command::new("cp").arg("-as").arg(&home).arg(&own).status();
    assert!(linked.expect("cp runs").success());
    // Where a JDK 8 has them, too.
    let files = ["bin/java", "jre/bin/java", "lib/server/libjvm.so", "jre/lib/amd64/server/libjvm.so"];
    for file in files.into_iter().filter(|file| home.join(file).is_file()) {
        fs::remove_file(own.join(file)).expect("the folder is writable");
        fs::copy(home.join(file), own.join(file)).expect("the folder is writable");
    }
    own
}

/// The row of a class or method in a summary's table.
pub(crate) fn row<'a>(summary: &'a Value, table: &str, name: &str) -> Option<&'a Value> {
    summary["allocation"][table].as_array()?.iter().find(|row| row["name"] == name)
}

#[test]
fn what_escape_analysis_takes_away_is_not_allocated() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let java = java.to_str().expect("a path in UTF-8");
        let record = |options: &[&str], calls: &str, arrays: &str| {
            let program = ["-cp", classes, "Boxing", calls, arrays];
            let program = [&["-e", "alloc", "--", java], options, &program[..]].concat();
            record_work(&program, &[SEES_ALLOCATIONS])
        };
        // Interpreted, each call makes a Long of 24 bytes (16 with compact headers).
        let interpreted = record(&["-Xint"], "5000000", "0");
        let longs = row(&interpreted, "classes", "java.lang.Long").expect("there are many");
        let objects = longs["objects"].as_u64().expect("a number") as f64;
        let bytes = longs["bytes"].as_u64().expect("a number") as f64;
        let losses = &interpreted["losses"];
        assert!((bytes / objects - 24.0).abs() < 0.5, "JDK {feature}: {longs}, {losses}");
        assert!((objects / 5e6 - 1.0).abs() < 0.1, "JDK {feature}: {longs}, {losses}");
        let demo = row(&interpreted, "methods", "Boxing.demo").expect("it allocates them");
        assert!(demo["bytes"].as_f64() > Some(bytes * 0.9), "JDK {feature}: {demo}");
        // Compiled, hardly any. However long the compiler waits for a CPU, the method waits for it.
        let compiled = record(&["-XX:-BackgroundCompilation"], "2000000000", "20000");
        let bytes =
            row(&compiled, "methods", "Boxing.demo").map_or(0.0, |row| row["bytes"].as_f64().unwrap());
        assert!(bytes < 24.0 * 2e7, "JDK {feature}: {bytes} of 48e9, {}", compiled["losses"]);
        let arrays = row(&compiled, "methods", "Boxing.arrays").expect("they are allocated");
        let objects = arrays["objects"].as_f64().expect("a number");
        assert!((objects / 20_000.0 - 1.0).abs() < 0.1, "JDK {feature}: {arrays}, {}", compiled["losses"]);
    }
}

/// Concatenates two strings with each call: a builder with an array, and the string with its own.
/// C2 leaves the last two.
const CONCATENATION: &str = r#"
public class Concatenation {
    static String kept;
    static String demo(String a, String b) { return a + b; }
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        long calls = Long.parseLong(args[0]);
        for (long i = 0; i < calls; i++) kept = demo("abcdef", "ghijkl");
        Recorder.done(args);
    }
}
"#;

#[test]
fn a_concatenation_allocates_what_the_compiler_leaves_of_it() {
    let dir = scratch();
    // For JDK 8: since 9, javac leaves it to the JVM how strings are concatenated.
    let classes = compile_recorded(dir.path(), "Concatenation", CONCATENATION);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let java = java.to_str().expect("a path in UTF-8");
        // Bytes for each string that is made.
        let bytes_per_call = |options: &[&str], calls: &str| {
            let folded = dir.path().join("stacks.folded");
            let output = folded.to_str().expect("a path in UTF-8");
            let events = ["-e", "alloc", "--alloc-interval", "256KiB", "--alloc-max-events", "1000"];
            let program = ["-cp", classes, "Concatenation", calls];
            let program = [&events[..], &["-o", output, "--", java], options, &program].concat();
            record_work(&program, &[SEES_ALLOCATIONS]);
            let text = fs::read_to_string(&folded).expect("it is written");
            let of_demo = text.lines().filter(|line| line.contains(";Concatenation.demo;"));
            let sum = |lines: &mut dyn Iterator<Item = &str>| {
                let bytes = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
                bytes.sum::<u64>() as f64
            };
            let strings = sum(&mut of_demo.clone().filter(|line| line.contains(";java.lang.String ")));
            sum(&mut of_demo.clone()) / (strings / 24.0)
        };
        // StringBuilder 24, byte[16] 32, String 24, byte[12] 32 (16-byte headers of arrays).
        let interpreted = bytes_per_call(&["-Xint"], "3000000");
        assert!((interpreted / 112.0 - 1.0).abs() < 0.05, "JDK {feature}: {interpreted} bytes a call");
        // Until C2 has compiled it, the first calls take 112.
        let options = ["-XX:-TieredCompilation", "-XX:-BackgroundCompilation"];
        let compiled = bytes_per_call(&options, "100000000");
        assert!((compiled / 56.0 - 1.0).abs() < 0.05, "JDK {feature}: {compiled} bytes a call");
    }
}

/// Once a file is there, starts one thread after the other, each of which ends before it has filled
/// its first buffer, and says how many bytes they have allocated together.
const SHORT_LIVED: &str = r#"
import java.lang.management.ManagementFactory;

public class ShortLived {
    static volatile byte[] kept;
    static long sum;
    static void allocate() {
        for (int i = 0; i < 20; i++) kept = new byte[10_000];
        com.sun.management.ThreadMXBean bean = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        sum += bean.getThreadAllocatedBytes(Thread.currentThread().getId());
    }
    public static void main(String[] args) throws Exception {
        allocate();
        sum = 0;
        while (!new java.io.File(args[1]).exists()) Thread.sleep(10);
        Thread.sleep(500);
        for (int i = 0; i < 600; i++) {
            Thread thread = new Thread(ShortLived::allocate);
            thread.start();
            thread.join();
        }
        java.nio.file.Files.write(java.nio.file.Paths.get(args[0]), Long.toString(sum).getBytes());
    }
}
"#;

#[test]
fn what_threads_allocate_that_end_soon_is_counted() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "ShortLived", SHORT_LIVED);
    let written = dir.path().join("sum");
    for (feature, home) in jdks() {
        let home = own_jdk(&home, dir.path().join(format!("jdk{feature}")));
        let started = dir.path().join(format!("started-{feature}"));
        let mut record = jvmprof();
        record.args(["record", "--json", "-e", "alloc", "--"]).arg(home.join("bin/java")).arg("-cp");
        record.arg(&classes).arg("ShortLived").args([&written, &started]).stdout(Stdio::piped());
        let mut record = KilledChild(record.spawn().expect("the binary runs"));
        let id = record.0.id();
        wait_until("the JVM has uprobes", || {
            uprobes(id) > 0
                && children(id).iter().any(|pid| is_jvm(*pid) && patched_bytes(*pid) == BREAKPOINTS)
        });
        fs::write(started, "").expect("the folder is writable");
        let stdout = record.0.stdout.take().expect("it is piped");
        let summary: Value = serde_json::from_reader(stdout).expect("a summary");
        record.0.wait().expect("it ends");
        let sum: f64 = fs::read_to_string(&written).expect("the program says it").parse().expect("a number");
        let bytes = summary["allocation"]["bytes"].as_f64().expect("a number");
        // What the other threads allocate comes to it.
        assert!(bytes > 0.99 * sum && bytes < 1.2 * sum, "JDK {feature}: {bytes} of {sum}: {summary}");
    }
}

/// Records until the allocations of a JVM have been seen for two seconds.
pub(crate) fn record_allocations(args: &[&str]) -> Value {
    let mut recording = Recording::start(args);
    recording.wait_for(&[SEES_ALLOCATIONS]);
    std::thread::sleep(Duration::from_secs(2));
    recording.end()
}

#[test]
fn the_class_can_be_a_label() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().pop().expect("there is one");
    let (java, profile) = (home.join("bin/java"), dir.path().join("labels.pb.gz"));
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (java, output, classes) = (path(&java), path(&profile), path(&classes));
    let options = ["-e", "alloc", "--alloc-class", "label", "-o", &output, "--", &java];
    let summary = record_allocations(&[&options[..], &["-cp", &classes, "Boxing", "1", "-1"]].concat());
    assert!(row(&summary, "classes", "byte[]").is_some(), "{summary}");
    let pprof = |options: &[&str]| {
        let mut go = Command::new("go");
        let found = go.args(["tool", "pprof"]).args(options).arg(&profile).output();
        String::from_utf8_lossy(&found.expect("the tests need go").stdout).into_owned()
    };
    let raw = pprof(&["-raw"]);
    assert!(raw.contains("class:[byte[]]"), "{raw}");
    let locations = raw.split_once("\nLocations\n").expect("it has locations").1;
    assert!(!locations.contains("byte[]") && locations.contains("Boxing.arrays"), "{locations}");
}

#[test]
fn the_class_can_be_left_out() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let (_, home) = jdks().pop().expect("there is one");
    let (java, folded) = (home.join("bin/java"), dir.path().join("stacks.folded"));
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (java, output, classes) = (path(&java), path(&folded), path(&classes));
    let options = ["-e", "alloc", "--alloc-class", "off", "-o", &output, "--", &java];
    let summary = record_allocations(&[&options[..], &["-cp", &classes, "Boxing", "1", "-1"]].concat());
    assert_eq!(summary["allocation"]["classes"].as_array().map(Vec::len), Some(0), "{summary}");
    assert!(row(&summary, "methods", "Boxing.arrays").is_some(), "{summary}");
    let text = fs::read_to_string(&folded).expect("it is written");
    assert!(text.lines().any(|line| line.contains(";Boxing.arrays ")), "it is a leaf: {text}");
    assert!(!text.contains("byte[]"), "{text}");
}

/// Uprobes of this kernel, by their events.
fn uprobes(pid: u32) -> usize {
    let maps = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process runs");
    let texts = maps.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.filter(|text| text.contains("link_type:\tperf")).count()
}

pub(crate) fn is_jvm(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libjvm.so"))
}

/// Functions of a libjvm that have breakpoints: two that report allocations, and one that forgets a
/// thread that ends.
pub(crate) const BREAKPOINTS: usize = 3;

/// Counts breakpoints at these functions: bytes of the code that differ from the file's.
pub(crate) fn patched_bytes(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process runs");
    let line = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with("/libjvm.so"));
    let line = line.expect("it is a JVM");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, end) = words[0].split_once('-').expect("a range");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let (start, end, offset) = (number(start), number(end), number(words[2]));
    let mut memory = vec![0; (end - start) as usize];
    let file = fs::File::open(format!("/proc/{pid}/mem")).expect("we are root");
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut memory, start).expect("code is readable");
    let path = format!("/proc/{pid}/root{}", words[5]);
    let file = fs::read(path).expect("libjvm is there");
    let code = &file[offset as usize..][..memory.len().min(file.len() - offset as usize)];
    memory.iter().zip(code).filter(|(memory, file)| memory != file).count()
}

#[test]
fn nothing_is_left_in_the_jvm() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    for (feature, home) in jdks() {
        let home = own_jdk(&home, dir.path().join(format!("jdk{feature}")));
        let jvm = start(&home, &classes);
        wait_until("the JVM maps its library", || is_jvm(jvm.pid()));
        assert_eq!(patched_bytes(jvm.pid()), 0);
        for how in ["TERM", "KILL"] {
            let mut recorders = [(); 2].map(|()| {
                let mut record = jvmprof();
                record.args(["record", "-e", "cpu,alloc", "-p", &jvm.pid().to_string()]);
                record.stdout(Stdio::null()).stderr(Stdio::null());
                KilledChild(record.spawn().expect("the binary runs"))
            });
            wait_until("both have uprobes", || recorders.iter().all(|it| uprobes(it.0.id()) > 0));
            wait_until("the code has breakpoints", || patched_bytes(jvm.pid()) == BREAKPOINTS);
            for recorder in &recorders {
                signal(recorder.0.id(), how);
            }
            for recorder in &mut recorders {
                recorder.0.wait().expect("it ends");
            }
            wait_until("no breakpoint is left", || patched_bytes(jvm.pid()) == 0);
        }
    }
}

pub(crate) fn start(home: &Path, classes: &Path) -> Workload {
    let classes = classes.to_str().expect("a path in UTF-8");
    Workload::start(&home.join("bin/java"), &["-cp", classes, "Boxing", "1", "-1"])
}

#[test]
fn jvms_that_are_killed_leave_the_others_as_they_are() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Boxing", BOXING);
    let own = |(feature, home): (u32, PathBuf)| own_jdk(&home, dir.path().join(format!("jdk{feature}")));
    let homes: Vec<PathBuf> = jdks().into_iter().map(own).collect();
    let mut jvms: Vec<Workload> = (0..8).map(|at| start(&homes[at % homes.len()], &classes)).collect();
    let folded = dir.path().join("stacks.folded");
    let output = folded.to_str().expect("a path in UTF-8");
    let pids: Vec<u32> = jvms.iter().map(Workload::pid).collect();
    let texts: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut arguments = vec!["-e", "alloc", "--alloc-max-events", "20", "-o", output];
    arguments.extend(texts.iter().flat_map(|pid| ["-p", pid]));
    let mut recording = Recording::start(&arguments);
    recording.wait_for_all(&pids, &[WALKS_STACKS]);
    let has_breakpoints = |pid: &u32| patched_bytes(*pid) == BREAKPOINTS;
    recording.wait_until("all have breakpoints", |_| pids.iter().all(has_breakpoints));
    // Some are killed while all allocate without end.
    for _ in 0..4 {
        drop(jvms.remove(0));
        std::thread::sleep(Duration::from_millis(300));
    }
    std::thread::sleep(Duration::from_secs(1));
    let summary = recording.end();
    let arrays = row(&summary, "classes", "byte[]").expect("they allocate");
    assert!(row(&summary, "methods", "Boxing.arrays").is_some(), "{summary}");
    let share =
        arrays["bytes"].as_f64().expect("a number") / summary["allocation"]["bytes"].as_f64().unwrap();
    assert!(share > 0.9, "{summary}");
    for jvm in &jvms {
        wait_until("no breakpoint is left", || patched_bytes(jvm.pid()) == 0);
    }
}

/// Threads that each allocate at the end of a chain of calls of their own, all the time.
const CHAINS: &str = r#"
public class Chains {
    static volatile boolean running = true;
    static Object[] kept = new Object[16];
    static abstract class Chain extends Thread {
        final int index;
        Chain(int index) { this.index = index; }
        abstract void first(int depth);
        @Override public void run() { while (running) first(20); }
    }
    static final class Red extends Chain {
        Red(int index) { super(index); }
        void first(int depth) { if (depth > 0) first(depth - 1); else last(); }
        void last() { for (int i = 0; i < 50; i++) kept[index] = new byte[3000]; }
    }
    static final class Blue extends Chain {
        Blue(int index) { super(index); }
        void first(int depth) { second(depth); }
        void second(int depth) { if (depth > 0) first(depth - 1); else last(); }
        void last() { for (int i = 0; i < 50; i++) kept[index] = new long[700]; }
    }
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        for (int i = 0; i < 16; i++) (i % 2 == 0 ? new Red(i) : new Blue(i)).start();
        Thread.sleep(4_000);
        running = false;
        Recorder.done(args);
    }
}
"#;

/// Whether a stack, root first, is that of one of these threads, or of another one. An allocation
/// is at the end of its chain; where the clock interrupts compiled code, the youngest calls are
/// those that are inlined at the next safepoint.
fn is_chain(stack: &str, is_allocation: bool) -> bool {
    let own: Vec<&str> = stack.split(';').filter_map(|frame| frame.strip_prefix("Chains$")).collect();
    let Some(("Chain.run", calls)) = own.split_first().map(|(first, rest)| (*first, rest)) else {
        // The main thread, and those of the JVM.
        return own.is_empty() || stack.contains(";Chains.main;");
    };
    let (depth, recursion): (usize, &[&str]) = match calls.first() {
        Some(&"Red.first") => (21, &["Red.first"]),
        _ => (42, &["Blue.first", "Blue.second"]),
    };
    let is_right = |(index, call): (usize, &&str)| match call.ends_with(".last") {
        true => index + 1 == calls.len() && (!is_allocation || index == depth),
        false => *call == recursion[index % recursion.len()],
    };
    let ends = !is_allocation || calls.last().is_some_and(|last| last.ends_with(".last"));
    ends && calls.iter().enumerate().all(is_right)
}

#[test]
fn the_clock_and_uprobes_do_not_mix_their_stacks() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Chains", CHAINS);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let java = java.to_str().expect("a path in UTF-8");
        let command = ["--", java, "-Xmx256m", "-cp", classes, "Chains"];
        for events in ["cpu,alloc", "alloc"] {
            let folded = dir.path().join("stacks.folded");
            let output = folded.to_str().expect("a path in UTF-8");
            let options = ["-F", "4999", "--alloc-max-events", "100000", "--alloc-interval", "4KiB", "-e"];
            let program = [&options[..], &[events, "-o", output], &command[..]].concat();
            let summary = record_work(&program, &[WALKS_STACKS, SEES_ALLOCATIONS]);
            // Of several events, each has a file of its own.
            let of_each: &[(&str, bool)] = match events {
                "alloc" => &[("stacks.folded", true)],
                _ => &[("stacks.cpu.folded", false), ("stacks.alloc.folded", true)],
            };
            for (name, is_allocation) in of_each {
                let text = fs::read_to_string(dir.path().join(name)).expect("it is written");
                let mut own = 0;
                for line in text.lines() {
                    let (stack, count) = line.rsplit_once(' ').expect("a count");
                    own += u64::from(stack.contains("Chains$"));
                    // What isn't whole is no chain from its root on.
                    let is_whole = !stack.contains("[truncated") && !stack.contains("[unknown");
                    assert!(
                        !is_whole || is_chain(stack, *is_allocation),
                        "JDK {feature} {name}: {count} times {stack}"
                    );
                }
                assert!(own > 0, "JDK {feature} {name}: {summary}");
            }
            let allocation = &summary["allocation"];
            let losses = &summary["losses"];
            assert!(allocation["events"].as_u64() > Some(1000), "JDK {feature}: {allocation}, {losses}");
        }
    }
}
