//! Profiles of waits beside what programs measure of their own.

mod cpu_quota;
mod safepoints;
mod slow_files;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::processes::wait_until;
use crate::support::recording::{READS_BLOCKERS, Recording, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::{KEEP_ALL, Measured, TOLERANCE, waited, waited_for};
use crate::support::{Workload, compile_java, jdks, scratch};

/// Measures each of its waits, one kind a method, and writes their sums to a file: for how long
/// they took, for how long the thread ran meanwhile, and for how long it waited for a CPU.
const ORACLE: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.net.*;
import java.nio.channels.Selector;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.*;

public class Oracle {
    interface Body { void once() throws Exception; }
    static class Entered { }
    static class Signal { }
    static final Object monitor = new Entered(), signal = new Signal();
    static final ReentrantLock lock = new ReentrantLock();
    static final ReentrantReadWriteLock shared = new ReentrantReadWriteLock();
    static final Semaphore permit = new Semaphore(1);
    static final LinkedBlockingQueue<Integer> empty = new LinkedBlockingQueue<>();
    static final ArrayBlockingQueue<Integer> full = new ArrayBlockingQueue<>(1);
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static final Map<String, long[]> sums = new TreeMap<>();
    static InputStream in;
    static Selector selector;
    static volatile long until, sink;

    static void enters() { synchronized (monitor) { } }
    static void sleeps() throws Exception { Thread.sleep(10); }
    static void parks() { LockSupport.parkNanos(8_000_000); }
    static void waits() throws Exception { synchronized (signal) { signal.wait(12); } }
    static void reads() throws Exception { in.read(); }
    static void selects() throws Exception { selector.select(9); }
    static void takes() throws Exception { empty.take(); }
    static void puts() throws Exception { full.put(1); }
    static void locks() { lock.lock(); lock.unlock(); }
    static void writeLocks() { shared.writeLock().lock(); shared.writeLock().unlock(); }
    static void acquires() throws Exception { permit.acquire(); permit.release(); }
    static void computes() { while (System.nanoTime() < until) for (int i = 0; i < 10_000; i++) sink += i; }

    static Thread start(Body body) {
        Thread thread = new Thread(() -> {
            try { body.once(); } catch (Exception e) { throw new Error(e); }
        });
        thread.start();
        return thread;
    }
    /// Measures a kind of wait, with a pause before each.
    static Thread run(String name, long pause, Body wait) {
        return start(() -> {
            long wall = 0, cpu = 0, delay = 0;
            try (RandomAccessFile schedstat = Recorder.schedstat()) {
                while (System.nanoTime() < until) {
                    if (pause > 0) Thread.sleep(pause);
                    long delayed = Recorder.delayOf(schedstat), ran = clocks.getCurrentThreadCpuTime(), began = System.nanoTime();
                    wait.once();
                    wall += System.nanoTime() - began;
                    cpu += clocks.getCurrentThreadCpuTime() - ran;
                    delay += Recorder.delayOf(schedstat) - delayed;
                }
            }
            long[] own = {wall, cpu, delay};
            synchronized (sums) { sums.merge(name, own, (a, b) -> new long[] {a[0] + b[0], a[1] + b[1], a[2] + b[2]}); }
        });
    }
    /// Has the others wait.
    static void repeat(Body body) { start(() -> { while (System.nanoTime() < until) body.once(); }); }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        ServerSocket server = new ServerSocket(0);
        in = new Socket("127.0.0.1", server.getLocalPort()).getInputStream();
        OutputStream out = server.accept().getOutputStream();
        selector = Selector.open();
        full.put(1);
        long stolen = Recorder.stolen();
        until = System.nanoTime() + 4_000_000_000L;
        repeat(() -> { synchronized (monitor) { Thread.sleep(15); } Thread.sleep(1); });
        repeat(() -> { lock.lock(); try { Thread.sleep(12); } finally { lock.unlock(); } Thread.sleep(1); });
        repeat(() -> { shared.readLock().lock(); try { Thread.sleep(11); } finally { shared.readLock().unlock(); } Thread.sleep(1); });
        repeat(() -> { permit.acquire(); try { Thread.sleep(13); } finally { permit.release(); } Thread.sleep(1); });
        repeat(() -> { Thread.sleep(7); out.write(1); });
        repeat(() -> { Thread.sleep(9); empty.add(1); });
        repeat(() -> { Thread.sleep(8); full.poll(); });
        List<Thread> threads = new ArrayList<>();
        threads.add(run("enters", 1, Oracle::enters));
        threads.add(run("sleeps", 0, Oracle::sleeps));
        threads.add(run("parks", 0, Oracle::parks));
        threads.add(run("waits", 0, Oracle::waits));
        threads.add(run("reads", 0, Oracle::reads));
        threads.add(run("selects", 0, Oracle::selects));
        threads.add(run("takes", 0, Oracle::takes));
        threads.add(run("puts", 0, Oracle::puts));
        threads.add(run("locks", 1, Oracle::locks));
        threads.add(run("writeLocks", 1, Oracle::writeLocks));
        threads.add(run("acquires", 1, Oracle::acquires));
        for (int i = 2 * Runtime.getRuntime().availableProcessors(); i > 0; i--) threads.add(run("computes", 0, Oracle::computes));
        Thread.sleep(4_500);
        // Some wait for what nobody does any more.
        out.write(1);
        empty.add(1);
        full.poll();
        for (Thread thread : threads) thread.join();
        sums.put("stolen", new long[] {Recorder.stolen() - stolen, 0, 0});
        try (PrintWriter file = new PrintWriter(args[0])) {
            sums.forEach((name, sum) -> file.println(name + " " + sum[0] + " " + sum[1] + " " + sum[2]));
        }
        Recorder.done(args);
    }
}
"#;

const CONDITION: &str = "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject";

/// The methods, the cause of their waits, and the class of the monitor or blocker; empty: there is
/// none.
const CAUSES: [(&str, &str, &str); 12] = [
    ("enters", "monitor", "Oracle$Entered"),
    ("sleeps", "sleep", ""),
    ("parks", "park", ""),
    ("waits", "object_wait", "Oracle$Signal"),
    ("reads", "socket", ""),
    ("selects", "poll", ""),
    ("takes", "park", CONDITION),
    ("puts", "park", CONDITION),
    ("locks", "park", "java.util.concurrent.locks.ReentrantLock$NonfairSync"),
    ("writeLocks", "park", "java.util.concurrent.locks.ReentrantReadWriteLock$NonfairSync"),
    ("acquires", "park", "java.util.concurrent.Semaphore$NonfairSync"),
    ("computes", "runnable", ""),
];

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn sums_by_cause_are_what_the_program_measures() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Oracle", ORACLE);
    for (feature, home) in jdks() {
        let (folded, sums, java) =
            (dir.path().join("x.folded"), dir.path().join("sums"), home.join("bin/java"));
        let program = ["-e", "offcpu", "-o", text(&folded), "--", text(&java), "-cp", text(&classes)];
        let program = [&KEEP_ALL[..], &program, &["Oracle", text(&sums)]].concat();
        let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
        let losses = &summary["losses"];
        let folded = fs::read_to_string(&folded).expect("written");
        let measured = fs::read_to_string(&sums).expect("the program has ended well");
        let measured = Measured::read(&measured);
        let stolen = measured["stolen"].wall;
        // While the daemon reads a JVM that has just started, methods have no names.
        let unnamed = waited(&folded, "[unknown Java: read too late]");
        for (method, cause, class) in CAUSES {
            let case = format!("JDK {feature} {method}");
            let leaves = waited_for(&folded, &format!("Oracle.{method}"));
            let of_causes = waited(&folded, &format!("Oracle.{method}"));
            let of = |cause: &str| of_causes.get(cause).copied().unwrap_or_default();
            let (sum, own, measured) = (of_causes.values().sum::<f64>(), of(cause), measured[method]);
            let unnamed_of = |cause: &str| unnamed.get(cause).copied().unwrap_or_default();
            let unnamed = unnamed_of(cause);
            // A thread that is woken waits for a CPU, as one does that computes.
            let is_for_a_cpu = cause == "runnable";
            let expected = if is_for_a_cpu { measured.delay } else { measured.blocked() };
            println!(
                "{case}: {:.4} of {:.0} ms, runnable {:.0} of {:.0} ms, {:.0} ms stolen, {:.0} ms \
                 without names at most, {leaves:?}",
                own / expected,
                expected / 1e6,
                of("runnable") / 1e6,
                measured.delay / 1e6,
                stolen / 1e6,
                unnamed / 1e6
            );
            assert!(expected > 5e8, "{case} has waited: {measured:?}");
            // What is stolen of a CPU is nobody's wait by its switches, and in the measured time.
            let least = (1.0 - TOLERANCE) * expected - unnamed - if is_for_a_cpu { 0.0 } else { stolen };
            let most = (1.0 + TOLERANCE) * expected;
            assert!(
                (least..=most).contains(&own),
                "{case}: {own} ns of {measured:?}, {stolen} stolen, {leaves:?}, {losses}"
            );
            let queued = (of("runnable") - measured.delay).abs();
            assert!(
                queued <= TOLERANCE * measured.wall + unnamed_of("runnable"),
                "{case}: {measured:?}, {leaves:?}, {losses}"
            );
            let woken = if is_for_a_cpu { 0.0 } else { of("runnable") };
            let other = sum - own - woken - of("safepoint");
            // Threads that compute also load classes.
            let most = if is_for_a_cpu { 0.1 } else { 0.02 };
            assert!(other < most * sum, "{case}: {leaves:?}, {losses}");
            let own_leaf = if class.is_empty() { cause.to_owned() } else { format!("{cause}: {class}") };
            let of_class = leaves.get(&own_leaf).copied().unwrap_or_default();
            assert!(of_class >= 0.98 * own, "{case}: {own_leaf} is {of_class} of {own} ns, {leaves:?}");
        }
        assert!(losses["ring_buffer_full"].is_null(), "JDK {feature}: {losses}");
    }
}

/// Its threads wait for a monitor that nobody leaves; once all do, it makes a file.
const STUCK: &str = r#"
public class Stuck {
    static final Object monitor = new Object();
    static void stuck() { synchronized (monitor) { System.out.println("free"); } }
    public static void main(String[] args) throws Exception {
        synchronized (monitor) {
            Thread[] threads = new Thread[3];
            for (int i = 0; i < 3; i++) { threads[i] = new Thread(Stuck::stuck); threads[i].start(); }
            for (Thread thread : threads) while (thread.getState() != Thread.State.BLOCKED) Thread.sleep(10);
            new java.io.File(args[0]).createNewFile();
            Thread.sleep(1_000_000);
        }
    }
}
"#;

/// Records the waits of a process until its JVM has been readable for five seconds. Returns the
/// summary, and for how long a wait was seen, at least and at most, that goes on all the time, in
/// seconds: since the JVM could be read, and since the recording began.
fn record_waits(jvm: &Workload, events: &str) -> (Value, [f64; 2]) {
    let mut recording = Recording::start(&["-e", events, "-p", &jvm.pid().to_string()]);
    recording.wait_for(&[WALKS_STACKS, READS_BLOCKERS]);
    let readable = Instant::now();
    std::thread::sleep(Duration::from_secs(5));
    let least = readable.elapsed().as_secs_f64();
    let summary = recording.end();
    let most = summary["duration_ms"].as_f64().expect("a number") / 1e3;
    (summary, [least, most])
}

#[test]
fn a_thread_that_is_stuck_is_seen_while_it_is() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Stuck", STUCK);
    for (feature, home) in jdks() {
        let stuck = dir.path().join(format!("stuck{feature}"));
        let jvm = Workload::start(&home.join("bin/java"), &["-cp", text(&classes), "Stuck", text(&stuck)]);
        wait_until("all are stuck", || stuck.exists());
        let (summary, [least, most]) = record_waits(&jvm, "offcpu,lock");
        let rows = summary["off_cpu"]["methods"].as_array().expect("a table");
        let stuck = rows.iter().find(|row| row["name"] == "Stuck.stuck").expect("they wait");
        let seconds = stuck["waited_ns"].as_f64().expect("a number") / 1e9;
        assert!(
            (0.98 * 3.0 * least..1.05 * 3.0 * most).contains(&seconds),
            "JDK {feature}: {seconds} s in {least} to {most} s: {summary}"
        );
        let causes = summary["off_cpu"]["causes"].as_array().expect("a table");
        assert!(causes.iter().any(|row| row["name"] == "monitor"), "JDK {feature}: {causes:?}");
        let locks = summary["lock"]["locks"].as_array().expect("a table");
        let lock = locks.iter().find(|row| row["method"] == "Stuck.stuck").expect("a lock");
        assert_eq!(lock["name"], "java.lang.Object", "JDK {feature}: {lock}");
        // To the kernel it is the launcher's, `java`.
        assert_eq!(lock["holder"]["name"], "main", "JDK {feature}: {lock}");
    }
}

/// A pool whose threads have nothing to do, and had nothing to do before.
const POOL: &str = r#"
import java.util.concurrent.*;
public class Pool {
    public static void main(String[] args) throws Exception {
        int size = Integer.parseInt(args[1]);
        ThreadPoolExecutor pool =
            new ThreadPoolExecutor(size, size, 1, TimeUnit.DAYS, new LinkedBlockingQueue<Runnable>());
        pool.prestartAllCoreThreads();
        new java.io.File(args[0]).createNewFile();
        Thread.sleep(1_000_000);
    }
}
"#;

#[test]
fn thousands_of_idle_threads_are_all_seen_by_some_hundred_stacks() {
    const THREADS: u32 = 1_500;
    let dir = scratch();
    let classes = compile_java(dir.path(), "Pool", POOL);
    for (feature, home) in jdks() {
        let ready = dir.path().join(format!("ready{feature}"));
        let size = THREADS.to_string();
        let program = ["-Xss256k", "-cp", text(&classes), "Pool", text(&ready), &size];
        let jvm = Workload::start(&home.join("bin/java"), &program);
        wait_until("the pool has its threads", || ready.exists());
        let (summary, [least, most]) = record_waits(&jvm, "offcpu");
        let number = |key: &str| summary["off_cpu"][key].as_u64().expect("a number");
        // About 200 stacks of threads that wait on, and those of the JVM's own that wake.
        assert!((number("events") as f64) < 200.0 + 80.0 * most, "JDK {feature}, {most} s: {summary}");
        let seconds = number("waited_ns") as f64 / 1e9;
        // What 200 stacks say is off by 7 %.
        let (least, most) = (0.7 * f64::from(THREADS) * least, 1.3 * f64::from(THREADS + 50) * most);
        assert!(
            (least..most).contains(&seconds),
            "JDK {feature}: {seconds} s, not {least} to {most}: {summary}"
        );
    }
}
