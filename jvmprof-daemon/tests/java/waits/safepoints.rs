//! Waits for collections and at safepoints, beside what the JVM says of both.

use std::collections::BTreeMap;
use std::fs;

use super::text;
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::{KEEP_ALL, Measured, TOLERANCE, waited};
use crate::support::{jdks, scratch};

/// A thread that has the heap collected again and again, and two that compute meanwhile. It writes
/// how long the calls took, as the oracle of waits does, how long the collections took as the JVM
/// counts them, from when until when, and for how long the thread that stops all others waited for
/// a CPU meanwhile.
const STOPS: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.nio.file.*;

public class Stops {
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static volatile boolean isDone;
    static volatile long sink;

    static void collects() { System.gc(); }
    static void computes() { while (!isDone) for (int i = 0; i < 10_000; i++) sink += i; }

    static long collected() {
        long ms = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) ms += Math.max(0, bean.getCollectionTime());
        return ms;
    }
    /// The thread that stops the others, by its counts.
    static RandomAccessFile stopping() throws IOException {
        for (File task : new File("/proc/self/task").listFiles()) {
            try {
                String name = new String(Files.readAllBytes(task.toPath().resolve("comm"))).trim();
                if (name.equals("VM Thread")) return new RandomAccessFile(task + "/schedstat", "r");
            } catch (IOException ended) { }
        }
        throw new IOException("there is no VM Thread");
    }

    public static void main(String[] args) throws Exception {
        // A collection of so many objects takes some 100 ms.
        long[][][] live = new long[1_000][1_000][8];
        Recorder.await(args);
        Thread[] threads = { new Thread(Stops::computes), new Thread(Stops::computes) };
        for (Thread thread : threads) thread.start();
        Thread.sleep(200);
        long wall = 0, cpu = 0, delay = 0, stops = 0, stolen = Recorder.stolen(), before = collected(), began = System.nanoTime();
        try (RandomAccessFile schedstat = Recorder.schedstat(); RandomAccessFile stopping = stopping()) {
            stops = Recorder.delayOf(stopping);
            while (System.nanoTime() - began < 3_000_000_000L) {
                long delayed = Recorder.delayOf(schedstat), ran = clocks.getCurrentThreadCpuTime(), called = System.nanoTime();
                collects();
                wall += System.nanoTime() - called;
                cpu += clocks.getCurrentThreadCpuTime() - ran;
                delay += Recorder.delayOf(schedstat) - delayed;
                Thread.sleep(20);
            }
            stops = Recorder.delayOf(stopping) - stops;
        }
        long ended = System.nanoTime(), collected = collected() - before;
        isDone = true;
        for (Thread thread : threads) thread.join();
        sink = live[999][999].length;
        try (PrintWriter file = new PrintWriter(args[0])) {
            file.println("collects " + wall + " " + cpu + " " + delay);
            file.println("collected " + collected * 1_000_000 + " 0 0");
            file.println("stopping 0 0 " + stops);
            file.println("stolen " + (Recorder.stolen() - stolen) + " 0 0");
            file.println("from " + began + " 0 0");
            file.println("until " + ended + " 0 0");
        }
        Recorder.done(args);
    }
}
"#;

/// Threads that compute.
const COMPUTING: f64 = 2.0;
/// The first JDK that logs the times of each safepoint.
const LOGS_TIMES: u32 = 13;

/// Returns for how long threads were stopped in this time at least and at most, as the JVM has
/// logged it, in nanoseconds.
fn logged(log: &str, [from, until]: [f64; 2]) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for line in log.lines() {
        let line = line.strip_prefix('[').and_then(|line| line.split_once("ns]"));
        let Some((time, safepoint)) = line.filter(|(_, rest)| rest.contains("At safepoint: ")) else {
            continue;
        };
        let time: f64 = time.trim().parse().expect("the time of a line");
        let number = |name: &str| -> f64 {
            let (_, rest) = safepoint.split_once(name).unwrap_or_else(|| panic!("{name} in {safepoint}"));
            rest.split_whitespace().next().expect("a number").parse().expect("a number")
        };
        if (from..until).contains(&time) {
            sums[0] += number("At safepoint: ");
            sums[1] += number("Total: ");
        }
    }
    sums
}

/// Sums of waits whose stacks have no method of the program, by cause: those of threads of the JVM,
/// and those that weren't whole.
fn waited_elsewhere(folded: &str) -> BTreeMap<String, f64> {
    let of_others = folded.lines().filter(|line| !line.contains(";Stops."));
    let mut sums = BTreeMap::new();
    for (stack, value) in of_others.filter_map(|line| line.rsplit_once(' ')) {
        let ends: Vec<&str> = stack.rsplitn(3, ';').take(2).collect();
        *sums.entry(ends.join(" of ")).or_default() += value.parse::<f64>().expect("a number");
    }
    sums
}

#[test]
fn waits_for_collections_and_at_safepoints_are_as_long_as_the_jvm_says() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Stops", STOPS);
    for (feature, home) in jdks() {
        let path = |name: &str| dir.path().join(format!("{name}{feature}"));
        let (folded, sums, log) = (dir.path().join("x.folded"), path("sums"), path("safepoints.log"));
        let java = home.join("bin/java");
        // Callers wait in functions of their collector's.
        let collector = if feature < 21 { "-XX:+UseParallelGC" } else { "-XX:+UseG1GC" };
        let logging = format!("-Xlog:safepoint=info:file={}:timenanos", log.display());
        let mut program = vec!["-e", "offcpu", "-o", text(&folded), "--", text(&java), collector];
        program.extend((feature >= LOGS_TIMES).then_some(&*logging));
        program.extend(["-Xms400m", "-Xmx400m", "-cp", text(&classes), "Stops", text(&sums)]);
        let ready = [WALKS_STACKS, READS_BLOCKERS];
        let summary = record_work(&[&KEEP_ALL[..], &program].concat(), &ready);
        let folded = fs::read_to_string(&folded).expect("written");
        let measured = fs::read_to_string(&sums).expect("the program has ended well");
        let measured = Measured::read(&measured);
        let number = |name: &str| measured[name].wall;
        let (calls, collected, stolen) = (measured["collects"], number("collected"), number("stolen"));
        let of_calls = waited(&folded, "Stops.collects");
        let of_computing = waited(&folded, "Stops.computes");
        let cause = |sums: &BTreeMap<String, f64>, name: &str| sums.get(name).copied().unwrap_or_default();
        let (called, stopped) = (cause(&of_calls, "gc"), cause(&of_computing, "safepoint") / COMPUTING);
        // Also to the JVM a thread has stopped that waits for a CPU on its way to or from the stop.
        let queued = cause(&of_computing, "runnable") / COMPUTING;
        println!(
            "JDK {feature} {collector}: gc {:.4} of {:.0} ms of calls, {:.4} of the collections' {:.0} ms; \
             stopped for {:.0} ms; {of_calls:?}, {of_computing:?}",
            called / calls.blocked(),
            calls.blocked() / 1e6,
            called / collected,
            collected / 1e6,
            stopped / 1e6
        );
        assert!(collected > 1e9, "JDK {feature}: {measured:?}");
        let expected = calls.blocked();
        let least = (1.0 - TOLERANCE) * expected - stolen;
        assert!(
            (least..=(1.0 + TOLERANCE) * expected).contains(&called),
            "JDK {feature}: {called} of {measured:?}, {of_calls:?}, {:?} elsewhere, lost: {}",
            waited_elsewhere(&folded),
            summary["losses"]
        );
        let times = (feature >= LOGS_TIMES).then(|| {
            let log = fs::read_to_string(&log).expect("the JVM's log");
            logged(&log, [number("from"), number("until")])
        });
        // A call also waits until all are stopped, and for the thread that collects to have a CPU.
        let before = measured["stopping"].delay + times.map_or(0.0, |[least, most]| most - least);
        assert!(
            (1.0 - TOLERANCE) * collected <= called && 0.75 * (called - before) <= collected,
            "JDK {feature}: waited for {called}, for {before} before collections, {measured:?}"
        );
        // All are stopped while the heap is collected, and go on before the call is over.
        assert!(
            (1.0 - TOLERANCE) * collected - stolen - queued <= stopped
                && stopped <= (1.0 + TOLERANCE) * calls.wall,
            "JDK {feature}: stopped for {stopped}, {measured:?}, {of_computing:?}, lost: {}",
            summary["losses"]
        );
        if let Some([least, most]) = times {
            println!("JDK {feature}: stopped for {:.0} to {:.0} ms by the log", least / 1e6, most / 1e6);
            assert!(
                (1.0 - TOLERANCE) * least - stolen - queued <= stopped && stopped <= (1.0 + TOLERANCE) * most,
                "JDK {feature}: stopped for {stopped}, {least} to {most} by the log, {of_computing:?}"
            );
        }
    }
}
