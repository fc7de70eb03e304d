//! How often threads wait for locks, by the waits that chance has kept, beside what a program
//! counts of its own.

use std::collections::BTreeMap;
use std::fs;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};

use super::waits_in;
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::{jdks, scratch};

/// Counts how often each thread finds its lock taken and waits for it, and writes that with the
/// variance of what a profile makes of it: of each wait the chance that it isn't kept, by the
/// chance that it is.
const COUNTED: &str = r#"
import java.io.PrintWriter;
import java.lang.management.*;
import java.util.*;
import java.util.concurrent.locks.*;

public class Counted {
    static final double INTERVAL = 10_000_000;
    static final long LEAST = 100_000;
    static final ThreadMXBean threadBean = ManagementFactory.getThreadMXBean();
    static final ReentrantLock first = new ReentrantLock(true), second = new ReentrantLock(true);
    static final Object monitor = new Object();
    static final Map<String, String> sums = new TreeMap<>();
    static volatile long until, sink;

    interface Body { boolean once() throws Exception; }
    static void run(String name, List<Thread> threads, Body body) {
        Thread thread = new Thread(() -> {
            long contentions = 0;
            double variance = 0;
            try {
                while (System.nanoTime() < until) {
                    long began = System.nanoTime();
                    boolean isTaken = body.once();
                    long waited = System.nanoTime() - began;
                    if (isTaken && waited >= LEAST) {
                        double kept = 1 - Math.exp(-waited / INTERVAL);
                        contentions++;
                        variance += (1 - kept) / kept;
                    }
                    Thread.sleep(1);
                }
            } catch (Exception e) { throw new Error(e); }
            synchronized (sums) { sums.put(name, contentions + " " + variance); }
        }, name);
        thread.start();
        threads.add(thread);
    }
    static void hold(ReentrantLock lock, long ms) throws Exception { lock.lock(); try { Thread.sleep(ms); } finally { lock.unlock(); } }
    static void holdMonitor(long ms) throws Exception { synchronized (monitor) { Thread.sleep(ms); } }
    static long blocked() { return threadBean.getThreadInfo(Thread.currentThread().getId()).getBlockedCount(); }

    static boolean waitsBriefly() { boolean isTaken = first.isLocked(); first.lock(); first.unlock(); return isTaken; }
    static boolean waitsLonger() { boolean isTaken = second.isLocked(); second.lock(); second.unlock(); return isTaken; }
    static boolean wantsMonitor() { long before = blocked(); synchronized (monitor) { sink++; } return blocked() != before; }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        until = System.nanoTime() + 5_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        // Who has a fair lock again has waited for the other one to leave it.
        run("holder of first", threads, () -> { while (System.nanoTime() < until) hold(first, 3); return false; });
        run("holder of second", threads, () -> { while (System.nanoTime() < until) hold(second, 14); return false; });
        run("holder of monitor", threads, () -> { holdMonitor(12); Thread.sleep(3); return false; });
        run("waitsBriefly", threads, Counted::waitsBriefly);
        run("waitsLonger", threads, Counted::waitsLonger);
        run("wantsMonitor", threads, Counted::wantsMonitor);
        for (Thread thread : threads) thread.join();
        try (PrintWriter file = new PrintWriter(args[0])) {
            for (Map.Entry<String, String> sum : sums.entrySet()) file.println(sum.getKey() + "=" + sum.getValue());
        }
        Recorder.done(args);
    }
}
"#;

/// The first release in which a thread that waits for a monitor sleeps until it is woken.
const SLEEPS_ONCE: u32 = 24;
/// Waits that aren't as the program believes: a woken thread finds the lock taken again, or is
/// late.
const OTHERS: f64 = 0.03;

#[test]
fn the_number_of_contentions_is_what_the_program_counts_though_chance_keeps_a_part_of_them() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Counted", COUNTED);
    for (feature, home) in jdks() {
        let [sums, output, java] =
            [dir.path().join("sums"), dir.path().join("x.pb.gz"), home.join("bin/java")];
        let [written, output_path, java, classes] =
            [&sums, &output, &java, &classes].map(|path| path.to_str().expect("a path in UTF-8"));
        let keep = ["--offcpu-min", "100us", "--offcpu-interval", "10ms", "--offcpu-max-events", "1000000"];
        let record = ["-e", "lock", "-o", output_path, "--", java, "-XX:+UseParallelGC"];
        let program = [&keep[..], &record, &["-cp", classes, "Counted", written]].concat();
        let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
        let losses = &summary["losses"];
        let sums = fs::read_to_string(&sums).expect("the program has ended well");
        let counts: BTreeMap<&str, [f64; 2]> = sums
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, numbers)| {
                let (count, variance) = numbers.split_once(' ').expect("two numbers");
                (name, [count, variance].map(|number| number.parse().expect("a number")))
            })
            .collect();
        let profile = decode(&fs::read(&output).expect("written"), DecodeLimits::default());
        let profile = profile.expect("pprof");
        for method in ["waitsBriefly", "waitsLonger", "wantsMonitor"] {
            let case = format!("JDK {feature} {method}");
            let [counted, variance] = counts[method];
            let found = waits_in(&profile, "contentions", &format!("Counted.{method}"));
            let estimated: f64 = found.iter().map(|wait| wait.value).sum();
            let error = 4.0 * variance.sqrt() + OTHERS * counted;
            println!("{case}: {estimated} of {counted}, {error:.0} at most");
            // The waits that are kept are fewer than that.
            let case = format!("{case}: {estimated} of {counted}, {error}, {losses}");
            assert!(counted > 100.0 && error < 0.5 * counted, "{case}");
            assert!(estimated > counted - error, "{case}");
            if method != "wantsMonitor" || feature >= SLEEPS_ONCE {
                assert!(estimated < counted + error, "{case}");
            }
        }
    }
}
