//! Wall-clock time of a program whose threads' waits are known.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Workload, compile_java_for, jdks, jvmprof, record_json, scratch};

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
    public static void main(String[] args) {
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
        sleep(1_000_000);
    }
}
"#;

#[test]
fn the_time_of_each_thread_is_all_there_and_where_it_was() {
    for (feature, home) in jdks() {
        let dir = scratch();
        let classes = compile_java_for(8, dir.path(), "Threads", THREADS);
        let program =
            Workload::start(&home.join("bin/java"), &["-cp", classes.to_str().expect("UTF-8"), "Threads"]);
        std::thread::sleep(Duration::from_secs(2));
        let folded = dir.path().join("x.folded");
        let (pid, file) = (program.pid().to_string(), folded.to_str().expect("UTF-8"));
        let summary = record_json(&["-e", "wall", "-p", &pid, "-d", "8s", "-o", file]);
        let threads = summary["wall"]["threads"].as_array().expect("an array");
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_default() as f64;
        let duration = number(&summary, "duration_ms") * 1e6;
        let mut sum = 0.0;
        for thread in threads {
            let elapsed = number(thread, "elapsed_ns");
            sum += elapsed;
            assert!((elapsed / duration - 1.0).abs() < 0.01, "JDK {feature}: {thread} of {duration} ns");
            let waits: u64 =
                thread["waits"].as_object().into_iter().flatten().filter_map(|it| it.1.as_u64()).sum();
            let parts = number(thread, "cpu_ns") + number(thread, "idle_ns") + waits as f64;
            assert_eq!(parts, elapsed, "JDK {feature}: {thread}");
        }
        let folded = fs::read_to_string(&folded).expect("it was written");
        let of_file: f64 = folded
            .lines()
            .map(|line| line.rsplit_once(' ').expect("a count").1.parse::<f64>().expect("a count"))
            .sum();
        assert_eq!((of_file, number(&summary["wall"], "elapsed_ns")), (sum, sum), "JDK {feature}");
        // Of each thread, parts of its time that must be of this cause: at least, at most. On a
        // busy machine each waits for a CPU as well.
        for (name, part, least, most) in [
            ("sleeper", "sleep", 0.99, 1.0),
            ("half", "sleep", 0.15, 0.6),
            ("half", "cpu_ns", 0.05, 0.6),
            ("parks", "park", 0.2, 1.0),
            ("holder", "sleep", 0.8, 1.0),
            ("waiter", "monitor", 0.6, 1.0),
        ] {
            let thread = threads.iter().find(|it| it["name"] == name);
            let thread = thread.unwrap_or_else(|| panic!("JDK {feature}: {name} is in {summary}"));
            let time = if part == "cpu_ns" { number(thread, part) } else { number(&thread["waits"], part) };
            let share = time / number(thread, "elapsed_ns");
            assert!((least..=most).contains(&share), "JDK {feature}: {part} is {share} of {thread}");
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
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_default() as f64;
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
