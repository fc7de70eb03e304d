//! Profiles of contended locks beside what a program knows of its own: whose lock a thread waits
//! for, of which class that is, who has it, and how long it takes.

mod contentions;
mod holders;
mod owners;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::{Profile, Sample};

use crate::support::{compile_java, jdks, record_json, scratch};

/// Each lock has one thread that holds it, and one that measures how long it waits for it.
const CONTENDED: &str = r#"
import java.io.PrintWriter;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.*;

public class Contended {
    static class First { }
    static class Second { }
    static final Object first = new First(), second = new Second();
    static final ReentrantLock fair = new ReentrantLock(true);
    static final ArrayBlockingQueue<String> queue = new ArrayBlockingQueue<>(1);
    static final Map<String, Long> sums = new TreeMap<>();
    static volatile long until, sink;

    interface Body { long once() throws Exception; }
    static void run(String name, List<Thread> threads, Body body) {
        Thread thread = new Thread(() -> {
            long sum = 0;
            try { while (System.nanoTime() < until) sum += body.once(); } catch (Exception e) { throw new Error(e); }
            synchronized (sums) { sums.put(name, sum); }
        }, name);
        thread.start();
        threads.add(thread);
    }
    static void spin(long ms) { for (long end = System.nanoTime() + ms * 1_000_000; System.nanoTime() < end; ) sink++; }

    static long wantsFirst() { long t = System.nanoTime(); synchronized (first) { sink++; } return System.nanoTime() - t; }
    static long wantsSecond() { long t = System.nanoTime(); synchronized (second) { sink++; } return System.nanoTime() - t; }
    static long wantsFair() { long t = System.nanoTime(); fair.lock(); fair.unlock(); return System.nanoTime() - t; }
    static long polls() throws Exception { long t = System.nanoTime(); queue.poll(7, TimeUnit.MILLISECONDS); return System.nanoTime() - t; }

    public static void main(String[] args) throws Exception {
        // An unoptimized daemon takes seconds to read libjvm: what is measured begins after that.
        for (long end = System.nanoTime() + 4_000_000_000L; System.nanoTime() < end; ) Thread.sleep(1);
        until = System.nanoTime() + 3_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        run("holder of first", threads, () -> { synchronized (first) { Thread.sleep(12); } Thread.sleep(1); return 0; });
        run("runs in second", threads, () -> { synchronized (second) { spin(8); } Thread.sleep(1); return 0; });
        run("holder of fair", threads, () -> { fair.lock(); try { Thread.sleep(9); } finally { fair.unlock(); } return 0; });
        run("wantsFirst", threads, () -> { long waited = wantsFirst(); Thread.sleep(1); return waited; });
        run("wantsSecond", threads, () -> { long waited = wantsSecond(); Thread.sleep(1); return waited; });
        run("wantsFair", threads, () -> { long waited = wantsFair(); Thread.sleep(1); return waited; });
        run("polls", threads, Contended::polls);
        for (Thread thread : threads) thread.join();
        try (PrintWriter file = new PrintWriter(args[0])) {
            for (Map.Entry<String, Long> sum : sums.entrySet()) file.println(sum.getKey() + "=" + sum.getValue());
        }
        // Its methods are named while it runs.
        Thread.sleep(3_000);
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
    let classes = compile_java(dir.path(), "Contended", CONTENDED);
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    for (feature, home) in jdks() {
        for (_, options) in OPTIONS.iter().filter(|(first, _)| *first <= feature) {
            let case = format!("JDK {feature} {options:?}");
            let sums = dir.path().join("sums");
            let (output, java) = (dir.path().join("x.pb.gz"), home.join("bin/java"));
            // Every wait is kept.
            let keep = ["--offcpu-min", "0s", "--offcpu-interval", "1us", "--offcpu-max-events", "1000000"];
            let (output, java, classes, written) = (text(&output), text(&java), text(&classes), text(&sums));
            let record = ["-e", "offcpu,lock", "-o", &output, "--", &java];
            let program = ["-cp", &classes, "Contended", &written];
            let summary = record_json(&[&keep[..], &record, options, &program].concat());
            let measured = fs::read_to_string(&sums).expect("the program has ended well");
            let measured: BTreeMap<&str, f64> = measured
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(name, sum)| (name, sum.parse().expect("a number")))
                .collect();
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
                let ratio = delay / measured[method];
                println!(
                    "{case} {method}: {ratio:.3} of {:.0} ms, {} stacks, holder known of {:.3}, right of {:.4}",
                    measured[method] / 1e6,
                    found.len(),
                    known / delay,
                    right / known.max(1.0)
                );
                // A thread that is woken waits for a CPU, which isn't the lock's delay.
                assert!((0.3..1.05).contains(&ratio), "{case} {method}: {ratio}");
                assert_eq!(of(&|wait| wait.leaf == class && wait.blocker == class), delay, "{case} {method}");
                if holder.is_empty() {
                    assert_eq!(known, 0.0, "{case} {method}: only monitors have a holder");
                } else {
                    assert!(known > 0.8 * delay, "{case} {method}: {known} of {delay}");
                    assert!(right > 0.99 * known, "{case} {method}: {right} of {known}");
                }
            }
            let contended = waits_in(&profile, "delay", "Contended.polls");
            let contended: Vec<_> = contended.iter().map(|wait| (wait.leaf, wait.blocker)).collect();
            assert_eq!(contended, [("", ""); 0], "{case}: a queue's condition is no lock");
            let condition = "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject";
            let polls = waits_in(&profile, "off_cpu", "Contended.polls");
            let of_queue = polls.iter().filter(|wait| wait.blocker == condition);
            let parked: f64 = of_queue.map(|wait| wait.value).sum();
            assert!(parked > 0.3 * measured["polls"], "{case}: {parked} of {}", measured["polls"]);
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
    let classes = compile_java(dir.path(), "Contended", CONTENDED);
    let (_, home) = jdks().into_iter().next().expect("there is one");
    let (root, output) = (dir.path().join("root"), dir.path().join("x.pb.gz"));
    fs::create_dir(&root).expect("the folder is writable");
    let script = format!(
        "mount --rbind / {root} && exec chroot {root} {java} -XX:+UseParallelGC -cp {classes} Contended {sums}",
        root = root.display(),
        java = home.join("bin/java").display(),
        classes = classes.display(),
        sums = dir.path().join("sums").display()
    );
    let command = ["--", "unshare", "--mount", "sh", "-c", &script];
    let output_path = output.to_str().expect("a path in UTF-8");
    record_json(&[&["-e", "lock", "-o", output_path][..], &command].concat());
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
    assert!(right > 5.0 * unknown, "{right} {unknown}");
}
