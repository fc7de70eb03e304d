//! Wall-clock time of a program whose threads' waits are known.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::support::processes::{ThreadCounts, children, stolen, threads};
use crate::support::recording::{Gate, READS_BLOCKERS, Recording, WALKS_STACKS, compile_recorded};
use crate::support::{compile_java_for, jdks, jvmprof, record_json, scratch};

/// A thread that computes for as long as it has slept, however late it was woken, one that sleeps
/// all the time, one that parks for a moment again and again, and two of which one holds the lock
/// that the other one wants.
const THREADS: &str = r#"
import java.util.concurrent.locks.LockSupport;
public class Threads {
    static final Object lock = new Object();
    static volatile long sink;
    static void crunch(long ms) {
        long end = System.nanoTime() + ms * 1_000_000, sum = 0;
        while (System.nanoTime() < end) sum += sum ^ end;
        sink = sum;
    }
    static void sleep(long ms) { try { Thread.sleep(ms); } catch (InterruptedException error) { } }
    static void start(String name, Runnable work) { new Thread(work, name).start(); }
    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        start("half", () -> {
            while (true) {
                long began = System.nanoTime();
                sleep(5);
                crunch((System.nanoTime() - began) / 1_000_000);
            }
        });
        start("sleeper", () -> sleep(1_000_000));
        start("parks", () -> { while (true) LockSupport.parkNanos(200_000); });
        start("holder", () -> { while (true) { synchronized (lock) { sleep(300); } sleep(10); } });
        start("waiter", () -> { while (true) { synchronized (lock) { } sleep(1); } });
        Recorder.done(args);
    }
}
"#;

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_u64().unwrap_or_default() as f64
}

/// Records the program for some seconds of its threads' lives. Returns the summary, the stacks, and
/// what the kernel has counted of the threads a moment before the end, by their ids.
fn record_threads(java: &str, classes: &str) -> (Value, String, BTreeMap<u32, ThreadCounts>) {
    let (gate, folded) = (Gate::new(), scratch());
    let folded = folded.path().join("x.folded");
    let [begin, done] = gate.args();
    let output = ["-e", "wall", "-o", folded.to_str().expect("a path in UTF-8")];
    let program = ["--", java, "-cp", classes, "Threads", &begin, &done];
    let mut recording = Recording::start(&[&output[..], &program].concat());
    recording.wait_for(&[WALKS_STACKS, READS_BLOCKERS]);
    gate.open();
    recording.wait_until("its threads have started", |_| gate.is_done());
    std::thread::sleep(Duration::from_secs(6));
    let [pid] = children(recording.pid())[..] else { panic!("it has one child: {}", recording.log()) };
    let counts = threads(pid);
    let summary = recording.end();
    (summary, fs::read_to_string(folded).expect("it was written"), counts)
}

#[test]
fn the_time_of_each_thread_is_all_there_and_where_it_was() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_recorded(dir.path(), "Threads", THREADS);
        let java = home.join("bin/java");
        let [java, classes] = [&java, &classes].map(|path| path.to_str().expect("a path in UTF-8"));
        let stolen_before = stolen();
        let (summary, folded, counts) = record_threads(java, classes);
        let stolen = stolen() - stolen_before;
        let recorded = summary["wall"]["threads"].as_array().expect("an array");
        let duration = number(&summary, "duration_ms") * 1e6;
        let (mut sum, mut ends) = (0.0, Vec::new());
        for thread in recorded {
            let elapsed = number(thread, "elapsed_ns");
            sum += elapsed;
            assert!(elapsed <= 1.01 * duration, "JDK {feature}: {thread} of {duration} ns");
            let waits: u64 =
                thread["waits"].as_object().into_iter().flatten().filter_map(|it| it.1.as_u64()).sum();
            let parts = number(thread, "cpu_ns") + number(thread, "idle_ns") + waits as f64;
            assert_eq!(parts, elapsed, "JDK {feature}: {thread}");
            // The process's first thread was there before the recording. The others of which the
            // kernel knew at its end have the time from their start on.
            let is_whole = (elapsed / duration - 1.0).abs() < 0.01;
            assert!(is_whole || thread["pid"] != thread["tid"], "JDK {feature}: {thread} of {duration} ns");
            if let Some(counts) = counts.get(&(number(thread, "tid") as u32)).filter(|_| !is_whole) {
                ends.push(counts.started + elapsed);
            }
        }
        assert!(ends.len() >= 5, "JDK {feature}: {ends:?}: {summary}");
        let (first, last) = ends.iter().fold((f64::MAX, 0.0_f64), |(a, b), end| (a.min(*end), b.max(*end)));
        assert!(last - first < 0.01 * duration, "JDK {feature}: {ends:?}: {summary}");
        let of_file: f64 = folded
            .lines()
            .map(|line| line.rsplit_once(' ').expect("a count").1.parse::<f64>().expect("a count"))
            .sum();
        assert_eq!((of_file, number(&summary["wall"], "elapsed_ns")), (sum, sum), "JDK {feature}");
        // Of each thread, the cause of its waits and the least part of them that are of this cause.
        for (name, cause, least) in [
            ("sleeper", "sleep", 0.99),
            ("half", "sleep", 0.9),
            ("parks", "park", 0.9),
            ("holder", "sleep", 0.8),
            ("waiter", "monitor", 0.6),
        ] {
            let thread = recorded.iter().find(|it| it["name"] == name);
            let thread = thread.unwrap_or_else(|| panic!("JDK {feature}: {name} is in {summary}"));
            let counts = &counts[&(number(thread, "tid") as u32)];
            let elapsed = number(thread, "elapsed_ns");
            // The kernel's counts are a moment older than the recording's.
            let later = (elapsed - (counts.read - counts.started)).max(0.0) + 1e7;
            let seen = format!("JDK {feature}: {thread}, {counts:?}, {later} ns before, {stolen} stolen");
            let (ran, waits) = (number(thread, "cpu_ns"), &thread["waits"]);
            let tolerance = 0.01 * elapsed;
            assert!((counts.ran - tolerance..counts.ran + later + tolerance).contains(&ran), "ran: {seen}");
            let delayed = number(waits, "runnable").clamp(counts.delayed, counts.delayed + later);
            let (blocked, waited) = (elapsed - ran - delayed - stolen, number(waits, cause));
            assert!(waited >= least * blocked, "{cause}: {seen}");
            // It sleeps for no longer than it computes, and the other way round.
            assert!(name != "half" || ran.max(waited) < 0.6 * elapsed, "{seen}");
        }
    }
}

/// Threads that live for 0.7 s, and `main`. It writes of each its id, how long it says that it was
/// there, how long others did (0: nobody), and its CPU time, in nanoseconds, and ends.
const ENDS: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.nio.file.*;
import java.util.*;
public class Ends {
    interface Body { void once() throws Exception; }
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static final List<String> lines = Collections.synchronizedList(new ArrayList<String>());
    static volatile long sink;
    static String id() throws IOException { return Files.readSymbolicLink(Paths.get("/proc/thread-self")).getFileName().toString(); }
    static void crunch(long ms) {
        for (long end = System.nanoTime() + ms * 1_000_000; System.nanoTime() < end; ) for (int i = 0; i < 1_000; i++) sink += i;
    }
    static Thread start(Body body) {
        Thread thread = new Thread(() -> {
            try { body.once(); } catch (Exception e) { throw new Error(e); }
        });
        thread.start();
        return thread;
    }
    static Thread measure(Body body) {
        return start(() -> {
            String[] id = new String[1];
            long[] own = new long[2];
            long began = System.nanoTime();
            start(() -> {
                long begins = System.nanoTime();
                id[0] = id();
                body.once();
                own[1] = clocks.getCurrentThreadCpuTime();
                own[0] = System.nanoTime() - begins;
            }).join();
            File task = new File("/proc/self/task/" + id[0]);
            while (task.exists()) Thread.sleep(1);
            lines.add(id[0] + " " + own[0] + " " + (System.nanoTime() - began) + " " + own[1]);
        });
    }
    public static void main(String[] args) throws Exception {
        long began = System.nanoTime();
        for (int round = 0; round < 2; round++) {
            Thread[] threads = {
                measure(() -> Thread.sleep(700)),
                measure(() -> { crunch(300); Thread.sleep(400); }),
                measure(() -> crunch(700)),
            };
            for (Thread thread : threads) thread.join();
        }
        lines.add(id() + " " + (System.nanoTime() - began) + " 0 " + clocks.getCurrentThreadCpuTime());
        Files.write(Paths.get(args[0]), lines);
    }
}
"#;

#[test]
fn the_time_of_a_thread_that_ends_is_what_it_measured_of_itself() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_java_for(8, dir.path(), "Ends", ENDS);
        let (java, lines) = (home.join("bin/java"), dir.path().join("lines"));
        let [java, classes, written] =
            [&java, &classes, &lines].map(|path| path.to_str().expect("a path in UTF-8"));
        let summary = record_json(&["-e", "wall", "--", java, "-cp", classes, "Ends", written]);
        let threads = summary["wall"]["threads"].as_array().expect("an array");
        let lines = fs::read_to_string(&lines).expect("the program has ended well");
        assert_eq!(lines.lines().count(), 7, "JDK {feature}: {lines}");
        for line in lines.lines() {
            let numbers: Vec<f64> = line.split(' ').map(|it| it.parse().expect("a number")).collect();
            let [id, own, of_others, cpu] = numbers[..] else { panic!("four numbers: {line}") };
            let thread = threads.iter().find(|it| number(it, "tid") == id);
            let thread = thread.unwrap_or_else(|| panic!("JDK {feature}: {id} is in {summary}"));
            // `main` ends with the recording, and ends the JVM.
            let is_main = of_others == 0.0;
            let most = if is_main { number(&summary, "duration_ms") * 1e6 } else { of_others };
            let (elapsed, ran) = (number(thread, "elapsed_ns"), number(thread, "cpu_ns"));
            println!("JDK {feature}: {elapsed} ns of {own} to {most} ns, ran for {ran} of {cpu} ns");
            assert!(
                (0.99 * own..=1.01 * most).contains(&elapsed),
                "JDK {feature}: {thread} was there for {own} to {most} ns"
            );
            // It measures itself when its work is done. What it runs to its end is not in that, and
            // is no longer than what others saw of it and it did not.
            let tolerance = 0.01 * elapsed + 1e6;
            let may_run = cpu - tolerance..cpu + tolerance.max(most - own);
            assert!(is_main || may_run.contains(&ran), "JDK {feature}: {thread} ran for {cpu} ns");
            let waits: u64 =
                thread["waits"].as_object().into_iter().flatten().filter_map(|it| it.1.as_u64()).sum();
            assert_eq!(ran + number(thread, "idle_ns") + waits as f64, elapsed, "JDK {feature}: {thread}");
        }
    }
}

#[test]
fn wall_clock_time_is_of_chosen_processes_only() {
    let output = jvmprof().args(["record", "-e", "wall", "-d", "1s"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("-e wall needs processes: -p PID or NAME, or a command"), "{said}");
}
