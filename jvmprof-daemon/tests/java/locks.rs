//! Profiles of contended locks beside what a program knows of its own: whose lock a thread waits
//! for, of which class that is, who has it, and how long it takes.

mod contentions;
mod holders;
mod owners;

use std::fs;
use std::path::Path;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::{Profile, Sample};

use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::{KEEP_ALL, Measured};
use crate::support::{jdks, scratch};

/// Each lock has one thread that holds it, and one that waits for it again and again, and writes
/// for how long, for how long it ran meanwhile, and for how long it waited for a CPU.
const CONTENDED: &str = r#"
import java.io.*;
import java.lang.management.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.*;

public class Contended {
    static class First { }
    static class Second { }
    static final Object first = new First(), second = new Second();
    static final ReentrantLock fair = new ReentrantLock(true);
    static final ArrayBlockingQueue<String> queue = new ArrayBlockingQueue<>(1);
    static final ThreadMXBean clocks = ManagementFactory.getThreadMXBean();
    static final Map<String, long[]> sums = new TreeMap<>();
    static final List<Thread> threads = new ArrayList<>();
    static volatile long until, sink;

    interface Body { void once() throws Exception; }
    static void start(String name, Body body) {
        Thread thread = new Thread(() -> {
            try { body.once(); } catch (Exception e) { throw new Error(e); }
        }, name);
        thread.start();
        threads.add(thread);
    }
    static void holds(String name, Body body) { start(name, () -> { while (System.nanoTime() < until) body.once(); }); }
    static void wants(String name, Body body) {
        start(name, () -> {
            long[] sum = {0, 0, 0};
            try (RandomAccessFile schedstat = Recorder.schedstat()) {
                while (System.nanoTime() < until) {
                    long delayed = Recorder.delayOf(schedstat), ran = clocks.getCurrentThreadCpuTime(), began = System.nanoTime();
                    body.once();
                    sum[0] += System.nanoTime() - began;
                    sum[1] += clocks.getCurrentThreadCpuTime() - ran;
                    sum[2] += Recorder.delayOf(schedstat) - delayed;
                    Thread.sleep(1);
                }
            }
            synchronized (sums) { sums.put(name, sum); }
        });
    }
    static void spin(long ms) { for (long end = System.nanoTime() + ms * 1_000_000; System.nanoTime() < end; ) sink++; }

    static void wantsFirst() { synchronized (first) { sink++; } }
    static void wantsSecond() { synchronized (second) { sink++; } }
    static void wantsFair() { fair.lock(); fair.unlock(); }
    static void polls() throws Exception { queue.poll(7, TimeUnit.MILLISECONDS); }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        long stolen = Recorder.stolen();
        until = System.nanoTime() + 3_000_000_000L;
        holds("holder of first", () -> { synchronized (first) { Thread.sleep(12); } Thread.sleep(1); });
        holds("runs in second", () -> { synchronized (second) { spin(8); } Thread.sleep(1); });
        holds("holder of fair", () -> { fair.lock(); try { Thread.sleep(9); } finally { fair.unlock(); } });
        wants("wantsFirst", Contended::wantsFirst);
        wants("wantsSecond", Contended::wantsSecond);
        wants("wantsFair", Contended::wantsFair);
        wants("polls", Contended::polls);
        for (Thread thread : threads) thread.join();
        sums.put("stolen", new long[] {Recorder.stolen() - stolen, 0, 0});
        try (PrintWriter file = new PrintWriter(args[0])) {
            sums.forEach((name, sum) -> file.println(name + " " + sum[0] + " " + sum[1] + " " + sum[2]));
        }
        Recorder.done(args);
    }
}
"#;

/// Methods that wait for a lock, the lock's class, and the name of the thread that has it.
const LOCKS: [(&str, &str, &str); 3] = [
    ("wantsFirst", "Contended$First", "holder of first"),
    ("wantsSecond", "Contended$Second", "runs in second"),
    ("wantsFair", "java.util.concurrent.locks.ReentrantLock$FairSync", ""),
];

/// Options of collectors and headers, each with the first release that has them.
const OPTIONS: [(u32, &[&str]); 4] = [
    (8, &["-XX:+UseParallelGC"]),
    (17, &["-XX:+UseShenandoahGC", "-XX:-UseCompressedOops"]),
    (23, &["-XX:+UseZGC"]),
    (25, &["-XX:+UseCompactObjectHeaders"]),
];

/// A sample of waits, with its number of one type.
struct Wait<'a> {
    leaf: &'a str,
    blocker: &'a str,
    holder: &'a str,
    holder_method: &'a str,
    value: f64,
}

/// The samples with a number of this type whose stacks have a method.
fn waits_in<'a>(profile: &'a Profile, sample_type: &str, method: &str) -> Vec<Wait<'a>> {
    let text = |at: i64| &*profile.string_table[at as usize];
    let at = profile.sample_type.iter().position(|of| text(of.r#type) == sample_type).expect("the type");
    let function = |id: u64| profile.function.iter().find(|function| function.id == id);
    let names = |sample: &Sample| -> Vec<&'a str> {
        let locations =
            sample.location_id.iter().filter_map(|id| profile.location.iter().find(|it| it.id == *id));
        locations
            .flat_map(|location| &location.line)
            .filter_map(|line| function(line.function_id))
            .map(|function| text(function.name))
            .collect()
    };
    let of_sample = |sample: &'a Sample| {
        let names = names(sample);
        let label = |name: &str| {
            let label = sample.label.iter().find(|label| text(label.key) == name);
            label.map_or("", |label| text(label.str))
        };
        (sample.value[at] > 0 && names.contains(&method)).then(|| Wait {
            leaf: names[0],
            blocker: label("blocker"),
            holder: label("holder"),
            holder_method: label("holder_method"),
            value: sample.value[at] as f64,
        })
    };
    profile.sample.iter().filter_map(of_sample).collect()
}

#[test]
fn a_locks_class_and_its_holder_are_what_the_program_knows() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Contended", CONTENDED);
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    for (feature, home) in jdks() {
        for (_, options) in OPTIONS.iter().filter(|(first, _)| *first <= feature) {
            let case = format!("JDK {feature} {options:?}");
            let sums = dir.path().join("sums");
            let (output, java) = (dir.path().join("x.pb.gz"), home.join("bin/java"));
            let (output, java, classes, written) = (text(&output), text(&java), text(&classes), text(&sums));
            let record = ["-e", "offcpu,lock", "-o", &output, "--", &java];
            let program = ["-cp", &classes, "Contended", &written];
            let program = [&KEEP_ALL[..], &record, options, &program].concat();
            let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
            let losses = &summary["losses"];
            let measured = fs::read_to_string(&sums).expect("the program has ended well");
            let measured = Measured::read(&measured);
            let stolen = measured["stolen"].wall;
            let profile = decode(&fs::read(&output).expect("written"), DecodeLimits::default());
            let profile = profile.expect("pprof");
            for (method, class, holder) in LOCKS {
                let found = waits_in(&profile, "delay", &format!("Contended.{method}"));
                let delay: f64 = found.iter().map(|wait| wait.value).sum();
                let of = |is: &dyn Fn(&Wait<'_>) -> bool| -> f64 {
                    found.iter().filter(|wait| is(wait)).map(|wait| wait.value).sum()
                };
                let known = of(&|wait| !wait.holder.is_empty());
                let right = of(&|wait| !holder.is_empty() && wait.holder == holder);
                // A thread that is woken waits for a CPU, which isn't the lock's delay.
                let blocked = measured[method].blocked();
                println!(
                    "{case} {method}: {:.3} of {:.0} ms, {} stacks, holder known of {:.3}, right of {:.4}",
                    delay / blocked,
                    blocked / 1e6,
                    found.len(),
                    known / delay,
                    right / known.max(1.0)
                );
                assert!(
                    (0.7 * blocked - stolen..1.05 * blocked).contains(&delay),
                    "{case} {method}: {delay} of {:?}, {stolen} stolen, {losses}",
                    measured[method]
                );
                assert_eq!(of(&|wait| wait.leaf == class && wait.blocker == class), delay, "{case} {method}");
                if holder.is_empty() {
                    assert_eq!(known, 0.0, "{case} {method}: only monitors have a holder");
                } else {
                    assert!(known > 0.8 * delay, "{case} {method}: {known} of {delay}, {losses}");
                    assert!(right > 0.99 * known, "{case} {method}: {right} of {known}, {losses}");
                }
            }
            let contended = waits_in(&profile, "delay", "Contended.polls");
            let contended: Vec<_> = contended.iter().map(|wait| (wait.leaf, wait.blocker)).collect();
            assert_eq!(contended, [("", ""); 0], "{case}: a queue's condition is no lock");
            let condition = "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject";
            let polls = waits_in(&profile, "off_cpu", "Contended.polls");
            let of_queue = polls.iter().filter(|wait| wait.blocker == condition);
            let parked: f64 = of_queue.map(|wait| wait.value).sum();
            let polled = measured["polls"];
            assert!(parked > 0.3 * polled.blocked() - stolen, "{case}: {parked} of {polled:?}, {losses}");
            let is_named = |wait: &Wait<'_>| wait.leaf == format!("[wait: park: {condition}]");
            assert!(polls.iter().any(is_named), "{case}");
            let rows = summary["lock"]["locks"].as_array().expect("a table");
            let first = rows.iter().find(|row| row["method"] == "Contended.wantsFirst").expect("a row");
            assert_eq!(first["holder"]["name"], "holder of first", "{case}: {first}");
        }
    }
}

/// Such a JVM's libjvm has one path for this program, and another one for the process.
#[test]
fn the_locks_of_a_jvm_with_a_root_of_its_own_are_known() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Contended", CONTENDED);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let (root, output) = (dir.path().join("root"), dir.path().join("x.pb.gz"));
    fs::create_dir(&root).expect("the folder is writable");
    let script = format!(
        "mount --rbind / {root} && exec chroot {root} {java} -XX:+UseParallelGC -cp {classes} Contended {sums} \
         \"$@\"",
        root = root.display(),
        java = home.join("bin/java").display(),
        classes = classes.display(),
        sums = dir.path().join("sums").display()
    );
    let command = ["--", "unshare", "--mount", "sh", "-c", &script, "sh"];
    let output_path = output.to_str().expect("a path in UTF-8");
    let program = [&["-e", "lock", "-o", output_path][..], &command].concat();
    let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
    let profile = decode(&fs::read(&output).expect("written"), DecodeLimits::default());
    let profile = profile.expect("pprof");
    let (method, class, _) = LOCKS[0];
    let found = waits_in(&profile, "delay", &format!("Contended.{method}"));
    assert!(found.iter().all(|wait| (wait.leaf, wait.blocker) == (class, class)));
    let delay = |holder: &str| -> f64 {
        found.iter().filter(|wait| wait.holder == holder).map(|wait| wait.value).sum()
    };
    // The owner of a monitor isn't known at its first contentions.
    let (right, unknown) = (delay("holder of first"), delay(""));
    assert!(right > 5.0 * unknown, "{right} {unknown}: {}", summary["losses"]);
}
