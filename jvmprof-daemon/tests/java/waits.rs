//! Profiles of waits beside what programs measure of their own.

mod cpu_quota;
mod slow_files;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::allocation::wait_until;
use crate::support::{Workload, compile_java, jdks, record_json, scratch};

/// Measures each of its waits, one kind a method, and writes their sums to a file.
const ORACLE: &str = r#"
import java.io.*;
import java.lang.management.ManagementFactory;
import java.net.*;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.*;
import java.util.concurrent.locks.LockSupport;

public class Oracle {
    interface Wait { long once() throws Exception; }
    static final Object monitor = new Object(), signal = new Object();
    static final Map<String, Long> sums = new TreeMap<>();
    static InputStream in;
    static long until;
    static volatile long sink;

    static long enters() { long t = System.nanoTime(); synchronized (monitor) { } return System.nanoTime() - t; }
    static long sleeps() throws Exception { long t = System.nanoTime(); Thread.sleep(5); return System.nanoTime() - t; }
    static long parks() { long t = System.nanoTime(); LockSupport.parkNanos(4_000_000); return System.nanoTime() - t; }
    static long waits() throws Exception {
        synchronized (signal) { long t = System.nanoTime(); signal.wait(6); return System.nanoTime() - t; }
    }
    static long reads() throws Exception { long t = System.nanoTime(); in.read(); return System.nanoTime() - t; }
    /// What a thread that only computes doesn't get of the time.
    static long computes() {
        long t = System.nanoTime(), cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        while (System.nanoTime() < until) for (int i = 0; i < 10_000; i++) sink += i;
        return System.nanoTime() - t - (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu);
    }

    /// What the machine's host took of its CPUs: a thread's CPU time is without it, and to the
    /// kernel the thread was running all the same.
    static long stolen() throws Exception {
        String cpus = Files.readAllLines(Paths.get("/proc/stat")).get(0);
        return Long.parseLong(cpus.trim().split(" +")[8]) * 10_000_000L;
    }

    static Thread run(String name, Wait wait) {
        Thread thread = new Thread(() -> {
            long sum = 0;
            try { while (System.nanoTime() < until) sum += wait.once(); } catch (Exception e) { throw new Error(e); }
            synchronized (sums) { sums.merge(name, sum, Long::sum); }
        });
        thread.start();
        return thread;
    }

    public static void main(String[] args) throws Exception {
        // An unoptimized daemon takes seconds to read libjvm: what is measured begins after that.
        for (long end = System.nanoTime() + 5_000_000_000L; System.nanoTime() < end; ) Thread.sleep(1);
        ServerSocket server = new ServerSocket(0);
        in = new Socket("127.0.0.1", server.getLocalPort()).getInputStream();
        OutputStream out = server.accept().getOutputStream();
        long stolen = stolen();
        until = System.nanoTime() + 4_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        run("holds", () -> { synchronized (monitor) { Thread.sleep(15); } Thread.sleep(1); return 0; });
        run("writes", () -> { Thread.sleep(7); out.write(1); return 0; });
        threads.add(run("enters", () -> { long waited = enters(); Thread.sleep(1); return waited; }));
        threads.add(run("sleeps", Oracle::sleeps));
        threads.add(run("parks", Oracle::parks));
        threads.add(run("waits", Oracle::waits));
        threads.add(run("reads", Oracle::reads));
        for (int i = 0; i < 4; i++) threads.add(run("computes", Oracle::computes));
        Thread.sleep(4_500);
        out.write(1);
        for (Thread thread : threads) thread.join();
        sums.put("stolen", stolen() - stolen);
        try (PrintWriter file = new PrintWriter(args[0])) {
            for (Map.Entry<String, Long> sum : sums.entrySet()) file.println(sum.getKey() + " " + sum.getValue());
        }
        // Its methods are named while it runs.
        Thread.sleep(3_000);
    }
}
"#;

const CAUSES: [(&str, &str); 6] = [
    ("enters", "monitor"),
    ("sleeps", "sleep"),
    ("parks", "park"),
    ("waits", "object_wait"),
    ("reads", "socket"),
    ("computes", "runnable"),
];

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Sums that a program has written: a method and its nanoseconds on each line.
fn sums_of(text: &str) -> BTreeMap<&str, f64> {
    let sums = text.lines().filter_map(|line| line.split_once(' '));
    sums.map(|(method, sum)| (method, sum.parse().expect("a number"))).collect()
}

/// Sums of a file of folded stacks, by cause, of those with this frame.
pub(crate) fn waited(folded: &str, frame: &str) -> BTreeMap<String, f64> {
    let frame = format!(";{frame};");
    let mut sums = BTreeMap::new();
    for line in folded.lines().filter(|line| line.contains(&frame)) {
        let (stack, value) = line.rsplit_once(' ').expect("a stack and its value");
        let leaf = stack.rsplit(';').next().expect("a frame");
        let cause = leaf.strip_prefix("[wait: ").and_then(|leaf| leaf.strip_suffix(']'));
        // Behind it stand that the wait is idle, and the class of a monitor or blocker.
        let cause = cause.map(|cause| cause.split([',', ':']).next().unwrap_or(cause));
        let value: f64 = value.parse().expect("a number");
        *sums.entry(cause.expect("the leaf is the cause").to_owned()).or_default() += value;
    }
    sums
}

#[test]
fn sums_by_cause_are_what_the_program_measures() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Oracle", ORACLE);
    for (feature, home) in jdks() {
        let (folded, sums, java) =
            (dir.path().join("x.folded"), dir.path().join("sums"), home.join("bin/java"));
        // Every wait is kept.
        let options = ["--offcpu-min", "0s", "--offcpu-interval", "1us", "--offcpu-max-events", "1000000"];
        let program = ["-e", "offcpu", "-o", text(&folded), "--", text(&java), "-cp", text(&classes)];
        let summary = record_json(&[&options[..], &program, &["Oracle", text(&sums)]].concat());
        let folded = fs::read_to_string(&folded).expect("written");
        let measured = fs::read_to_string(&sums).expect("the program has ended well");
        let measured = sums_of(&measured);
        // While the daemon reads a JVM that has just started, methods have no names.
        let unnamed = waited(&folded, "[unknown Java: read too late]");
        for (method, cause) in CAUSES {
            let of_causes = waited(&folded, &format!("Oracle.{method}"));
            let sum: f64 = of_causes.values().sum();
            // Nobody but the threads that compute uses the CPUs much. What is stolen of a CPU is
            // in the wait of a thread that wants it, not in that of the one that has it.
            let stolen = if cause == "runnable" { measured["stolen"] } else { 0.0 };
            let (least, most) = (measured[method] - stolen, measured[method]);
            let (measured, ratio) = (most, sum / most);
            let of = |cause: &str| of_causes.get(cause).copied().unwrap_or_default();
            let unnamed = unnamed.get(cause).copied().unwrap_or_default() / measured;
            println!(
                "JDK {feature} {method}: {ratio:.4} of {:.0} ms, {:.0} ms stolen, at most {unnamed:.4} without names, {of_causes:?}",
                measured / 1e6,
                stolen / 1e6
            );
            // What the calls themselves compute is in none of the waits; a thread may be preempted
            // outside of what it measures.
            let is_complete = sum / least + unnamed > 0.97;
            assert!(ratio < 1.02 && is_complete, "JDK {feature} {method}: {ratio} {of_causes:?}");
            // A thread that is woken waits for a CPU.
            let own = of(cause);
            let woken = if cause == "runnable" { 0.0 } else { of("runnable") };
            let other = sum - own - woken - of("safepoint");
            // Threads that compute also load classes and are stopped.
            let (least, most) = if cause == "runnable" { (0.9, 0.1) } else { (0.3, 0.02) };
            assert!(own > least * sum && other < most * sum, "JDK {feature} {method}: {of_causes:?}");
        }
        let lost = &summary["losses"]["ring_buffer_full"];
        assert!(lost.is_null(), "JDK {feature}: {lost}");
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

#[test]
fn a_thread_that_is_stuck_is_seen_while_it_is() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Stuck", STUCK);
    for (feature, home) in jdks() {
        let stuck = dir.path().join(format!("stuck{feature}"));
        let jvm = Workload::start(&home.join("bin/java"), &["-cp", text(&classes), "Stuck", text(&stuck)]);
        wait_until("all are stuck", || stuck.exists());
        let summary = record_json(&["-e", "offcpu,lock", "-d", "5s", "-p", &jvm.pid().to_string()]);
        let rows = summary["off_cpu"]["methods"].as_array().expect("a table");
        let stuck = rows.iter().find(|row| row["name"] == "Stuck.stuck").expect("they wait");
        let seconds = stuck["waited_ns"].as_f64().expect("a number") / 1e9;
        let recorded = summary["duration_ms"].as_f64().expect("a number") / 1e3;
        assert!(
            (0.88..1.05).contains(&(seconds / recorded / 3.0)),
            "JDK {feature}: {seconds} s, {recorded} s"
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
    const SECONDS: u32 = 5;
    let dir = scratch();
    let classes = compile_java(dir.path(), "Pool", POOL);
    for (feature, home) in jdks() {
        let ready = dir.path().join(format!("ready{feature}"));
        let size = THREADS.to_string();
        let program = ["-Xss256k", "-cp", text(&classes), "Pool", text(&ready), &size];
        let jvm = Workload::start(&home.join("bin/java"), &program);
        wait_until("the pool has its threads", || ready.exists());
        let duration = format!("{SECONDS}s");
        let summary = record_json(&["-e", "offcpu", "-d", &duration, "-p", &jvm.pid().to_string()]);
        let number = |key: &str| summary["off_cpu"][key].as_u64().expect("a number");
        // About 200 stacks of threads that wait on, and those of the JVM's own that wake.
        assert!(number("events") < 600, "JDK {feature}: {}", summary["off_cpu"]);
        let seconds = number("waited_ns") as f64 / 1e9;
        let recorded = summary["duration_ms"].as_f64().expect("a number") / 1e3;
        // What 200 stacks say is off by 7 %.
        let least = 0.7 * f64::from(THREADS) * f64::from(SECONDS);
        let most = 1.3 * f64::from(THREADS + 50) * recorded;
        assert!((least..most).contains(&seconds), "JDK {feature}: {seconds} s in {recorded} s");
    }
}
