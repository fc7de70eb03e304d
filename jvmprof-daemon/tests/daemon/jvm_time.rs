//! Metrics of where a JVM's time goes, beside what the kernel and the program itself count.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::support::waits::Measured;
use crate::support::{Workload, compile_java, jdks};
use crate::telemetry::{Daemon, sum};

/// Does little until there is a file, and then for five seconds computes, sleeps, waits and wants a
/// monitor, for less than 100 ms each time: of longer waits some are reported in parts, by chance.
/// It writes for how long it waited, by cause, and for how long the machine stopped what computed
/// while the kernel took it for running, and keeps all its threads.
const TIME: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;

public class Time {
    interface Body { void once() throws Exception; }
    static final Object monitor = new Object(), signal = new Object();
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static final List<String> causes = new ArrayList<>();
    static final AtomicReferenceArray<long[]> own = new AtomicReferenceArray<>(8);
    static final AtomicLong gaps = new AtomicLong();
    static final CountDownLatch done = new CountDownLatch(8);
    static volatile long until, sink;

    static long delayOf(RandomAccessFile schedstat) throws IOException {
        byte[] bytes = new byte[64];
        schedstat.seek(0);
        int length = schedstat.read(bytes);
        return Long.parseLong(new String(bytes, 0, length, "US-ASCII").split(" ")[1]);
    }
    static long stolen() throws IOException {
        String cpus = Files.readAllLines(Paths.get("/proc/stat")).get(0);
        return Long.parseLong(cpus.trim().split(" +")[8]) * 10_000_000L;
    }
    /// Returns the sum of the gaps in which it computed nothing.
    static long spin(long ns) {
        long gaps = 0, last = System.nanoTime();
        for (long end = last + ns; last < end; ) {
            for (int i = 0; i < 100; i++) sink += i;
            long now = System.nanoTime();
            if (now - last > 1_000_000) gaps += now - last;
            last = now;
        }
        return gaps;
    }
    static void rest() { while (true) LockSupport.park(); }

    /// Waits of other kinds than those that are measured are parks.
    static void run(String cause, Body wait) {
        int at = causes.size();
        causes.add(cause);
        new Thread(() -> {
            long wall = 0, cpu = 0, delay = 0;
            try (RandomAccessFile schedstat = new RandomAccessFile("/proc/thread-self/schedstat", "r")) {
                while (System.nanoTime() < until) {
                    LockSupport.parkNanos(1_500_000);
                    long delayed = delayOf(schedstat), ran = clocks.getCurrentThreadCpuTime(), began = System.nanoTime();
                    wait.once();
                    wall += System.nanoTime() - began;
                    cpu += clocks.getCurrentThreadCpuTime() - ran;
                    delay += delayOf(schedstat) - delayed;
                }
            } catch (Exception e) { throw new Error(e); }
            // Threads that end at once wait for nothing here, which nobody would measure.
            own.set(at, new long[] {wall, cpu, delay});
            done.countDown();
            rest();
        }).start();
    }

    public static void main(String[] args) throws Exception {
        // Enough to be sampled.
        while (!new File(args[0]).exists()) { spin(1_000_000); LockSupport.parkNanos(100_000_000); }
        long stolen = stolen();
        until = System.nanoTime() + 5_000_000_000L;
        for (int i = 0; i < 2; i++) {
            run("computes", () -> gaps.addAndGet(spin(until - System.nanoTime())));
            run("sleep", () -> Thread.sleep(80));
            run("object_wait", () -> { synchronized (signal) { signal.wait(80); } });
        }
        run("sleep", () -> { synchronized (monitor) { Thread.sleep(30); } });
        run("monitor", () -> { synchronized (monitor) { } });
        done.await();
        Map<String, long[]> sums = new TreeMap<>();
        sums.put("stolen", new long[] {stolen() - stolen, 0, 0});
        for (int at = 0; at < causes.size(); at++) {
            long[] sum = sums.computeIfAbsent(causes.get(at), cause -> new long[3]);
            for (int i = 0; i < 3; i++) sum[i] += own.get(at)[i];
        }
        long[] computes = sums.get("computes");
        sums.put("paused", new long[] {Math.max(0, gaps.get() - (computes[0] - computes[1])), 0, 0});
        File sumsFile = new File(args[1]), whole = new File(args[1] + ".whole");
        try (PrintWriter file = new PrintWriter(whole)) {
            sums.forEach((name, sum) -> file.println(name + " " + sum[0] + " " + sum[1] + " " + sum[2]));
        }
        whole.renameTo(sumsFile);
        rest();
    }
}
"#;

/// Difference between the metrics and what was counted, as a part of the time.
const TOLERANCE: f64 = 0.05;
/// What a JVM does before it is measured, in the window that is open then, in seconds.
const BEFORE: f64 = 0.1;
const CAUSES: [&str; 3] = ["sleep", "object_wait", "monitor"];

/// A JVM that is measured.
struct TimedJvm {
    feature: u32,
    jvm: Workload,
    sums: PathBuf,
}

impl TimedJvm {
    /// Returns for how long its threads have run, in seconds, as the kernel counts it.
    fn ran(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.jvm.pid())).expect("it runs");
        let ran = |task: std::io::Result<fs::DirEntry>| -> Option<f64> {
            // A thread may have ended.
            let schedstat = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            schedstat.split(' ').next()?.parse().ok()
        };
        tasks.filter_map(ran).sum::<f64>() / 1e9
    }

    /// Returns the sum of a metric's series of this JVM with this label, in seconds.
    fn metric(&self, metrics: &BTreeMap<String, f64>, name: &str, label: &str) -> f64 {
        let pid = format!("pid=\"{}\"", self.jvm.pid());
        let is_of = |series: &str| {
            series.starts_with(&format!("jvmprof_jvm_{name}_seconds_total{{"))
                && series.contains(&pid)
                && series.contains(label)
        };
        metrics.iter().filter(|(series, _)| is_of(series)).map(|(_, seconds)| seconds).sum()
    }

    /// Returns the metrics of CPU time and of waits by cause.
    fn metrics(&self, daemon: &Daemon) -> (f64, [f64; 3]) {
        let metrics = daemon.metrics();
        let waits = CAUSES.map(|cause| self.metric(&metrics, "wait", &format!("wait=\"{cause}\"")));
        (self.metric(&metrics, "cpu", ""), waits)
    }
}

#[test]
fn metrics_of_a_jvms_time_are_what_the_kernel_and_the_program_count() {
    // The distance of kept waits doesn't grow, whatever else waits on this host.
    let daemon = Daemon::start(&[], &["--offcpu-enabled", "--offcpu-max-events", "100000", "-F", "499"], &[]);
    let dir = daemon.dir.path();
    let classes = compile_java(dir, "Time", TIME);
    let classes = classes.to_str().unwrap();
    let go = dir.join("go");
    daemon.until_ready();
    let start = |(feature, home): (u32, PathBuf)| {
        let sums = dir.join(format!("sums{feature}"));
        let program = ["-cp", classes, "Time", go.to_str().unwrap(), sums.to_str().unwrap()];
        let jvm = Workload::start(&home.join("bin/java"), &program);
        TimedJvm { feature, jvm, sums }
    };
    let jvms: Vec<TimedJvm> = jdks().into_iter().map(start).collect();
    daemon.until("knowing the JVMs", |daemon| jvms.iter().all(|jvm| jvm.metrics(daemon).0 > 0.0));
    let windows = |daemon: &Daemon| sum(&daemon.metrics(), "jvmprof_windows_total");
    // What they did when they started is in windows that have ended.
    let known = windows(&daemon);
    daemon.until("having counted their start", |daemon| windows(daemon) >= known + 1.0);
    let before: Vec<_> = jvms.iter().map(|jvm| (jvm.ran(), jvm.metrics(&daemon))).collect();
    fs::write(&go, "").unwrap();
    daemon.until("done", |_| jvms.iter().all(|jvm| jvm.sums.exists()));
    let ran: Vec<f64> = jvms.iter().map(TimedJvm::ran).collect();
    let done = windows(&daemon);
    daemon.until("having counted all", |daemon| windows(daemon) >= done + 2.0);
    for ((jvm, (ran_before, (cpu_before, waits_before))), ran) in jvms.iter().zip(before).zip(ran) {
        let (cpu, waits) = jvm.metrics(&daemon);
        let (cpu, ran) = (cpu - cpu_before, ran - ran_before);
        let sums = fs::read_to_string(&jvm.sums).unwrap();
        let sums = Measured::read(&sums);
        let [stolen, paused] = ["stolen", "paused"].map(|name| sums[name].wall / 1e9);
        let text = format!("JDK {}: {cpu:.3} s of {ran:.3} s, {stolen:.3} s stolen", jvm.feature);
        println!("{text}, {paused:.3} s paused, {sums:?}");
        // A clock of a CPU goes on while the machine's host runs others. Where the kernel isn't
        // told of that, it counts it as time of the thread, and no timer has fired.
        let least = (1.0 - TOLERANCE) * (ran - paused) - BEFORE;
        let most = (1.0 + TOLERANCE) * ran + stolen + BEFORE;
        assert!(ran > 1.0 && (least..=most).contains(&cpu), "{text}, {paused:.3} s paused");
        let waited: Vec<f64> =
            waits.iter().zip(waits_before).map(|(waited, before)| waited - before).collect();
        // Waits for a CPU that are too short for a profile are a part of what they end.
        let measured = CAUSES.map(|cause| {
            let blocked = sums[cause].blocked() / 1e9;
            [blocked, blocked + sums[cause].delay / 1e9]
        });
        // Who sleeps with the monitor measures its own waits for it as sleep.
        let both = |one: [f64; 2], other: [f64; 2]| [one[0] + other[0], one[1] + other[1]];
        let causes = [
            ("sleep and monitor", waited[0] + waited[2], both(measured[0], measured[2])),
            ("object_wait", waited[1], measured[1]),
        ];
        for (cause, waited, [blocked, with_delay]) in causes {
            let (least, most) = ((1.0 - TOLERANCE) * blocked - stolen, (1.0 + TOLERANCE) * with_delay);
            let text =
                format!("JDK {} {cause}: {waited:.3} s of {blocked:.3} to {with_delay:.3} s", jvm.feature);
            println!("{text}");
            assert!(blocked > 2.0 && waits[2] > waits_before[2], "{text}");
            assert!((least..=most).contains(&waited), "{text}");
        }
    }
}
