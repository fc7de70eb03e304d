//! Owners of contended monitors whose names as the kernel keeps them, or whose places in memory,
//! are other threads' too: pools, virtual threads, threads that live for milliseconds.

use std::fs;
use std::path::Path;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::Profile;
use serde_json::Value;

use super::{Wait, waits_in};
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::KEEP_ALL;
use crate::support::{jdks, scratch};

/// Each thread of a pool, named as Tomcat's, has the monitor in a method of its own.
const POOL: &str = r#"
public class Pool {
    static class Stock { }
    static final Object stock = new Stock();
    static volatile long until, sink;

    interface Body { void once() throws Exception; }
    static Thread run(int number, Body body) {
        Thread thread = new Thread(() -> {
            try { while (System.nanoTime() < until) { body.once(); Thread.sleep(1); } } catch (Exception e) { throw new Error(e); }
        }, "http-nio-8080-exec-" + number);
        thread.start();
        return thread;
    }
    static void sells() throws Exception { synchronized (stock) { Thread.sleep(7); } }
    static void buys() throws Exception { synchronized (stock) { Thread.sleep(5); } }
    static void ships() throws Exception { synchronized (stock) { Thread.sleep(8); } }
    static void counts() { synchronized (stock) { for (long end = System.nanoTime() + 6_000_000; System.nanoTime() < end; ) sink++; } }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        until = System.nanoTime() + 4_000_000_000L;
        Thread[] threads = { run(1, Pool::sells), run(2, Pool::buys), run(3, Pool::ships), run(4, Pool::counts) };
        for (Thread thread : threads) thread.join();
        Recorder.done(args);
    }
}
"#;

/// The threads of the pool, and the methods in which they want the monitor and have it.
const EXECUTORS: [(&str, &str); 4] = [
    ("http-nio-8080-exec-1", "Pool.sells"),
    ("http-nio-8080-exec-2", "Pool.buys"),
    ("http-nio-8080-exec-3", "Pool.ships"),
    ("http-nio-8080-exec-4", "Pool.counts"),
];

/// Records the contention of a program's locks, with every wait. Returns the losses, too.
fn record(classes: &Path, home: &Path, program: &str) -> (Profile, Value) {
    let output = classes.join("x.pb.gz");
    let java = home.join("bin/java");
    let [output_path, java, classes] =
        [&*output, &*java, classes].map(|path| path.to_str().expect("a path in UTF-8"));
    let record = ["-e", "lock", "-o", output_path, "--", java, "-cp", classes, program];
    let mut summary = record_work(&[&KEEP_ALL[..], &record].concat(), &[WALKS_STACKS, READS_BLOCKERS]);
    let profile = decode(&fs::read(&output).expect("written"), DecodeLimits::default());
    (profile.expect("pprof"), summary["losses"].take())
}

fn sum<'a, 'b: 'a>(waits: impl IntoIterator<Item = &'a Wait<'b>>) -> f64 {
    waits.into_iter().map(|wait| wait.value).sum()
}

/// The name of a method without its line, which isn't always known.
fn method_of<'a>(wait: &Wait<'a>) -> &'a str {
    wait.holder_method.rsplit_once(':').map_or(wait.holder_method, |(name, _)| name)
}

#[test]
fn a_thread_of_a_pool_is_told_from_the_others_by_its_whole_name_and_its_method() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Pool", POOL);
    for (feature, home) in jdks() {
        let (profile, losses) = record(&classes, &home, "Pool");
        let (mut delay, mut known, mut named, mut located, mut right) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (waiter, wanted) in EXECUTORS {
            let waits = waits_in(&profile, "delay", wanted);
            delay += sum(&waits);
            for wait in waits.iter().filter(|wait| !wait.holder.is_empty()) {
                known += wait.value;
                // Nobody waits for himself.
                let holder = EXECUTORS.iter().find(|(name, _)| *name == wait.holder && *name != waiter);
                let Some((_, method)) = holder else {
                    println!("JDK {feature}: {waiter} waits for {}", wait.holder);
                    continue;
                };
                named += wait.value;
                if wait.holder_method.is_empty() {
                    continue;
                }
                located += wait.value;
                match method_of(wait) == *method {
                    true => right += wait.value,
                    false => println!("JDK {feature}: {} in {}", wait.holder, wait.holder_method),
                }
            }
        }
        println!(
            "JDK {feature}: holder known of {:.3}, right of {:.4}, its method of {:.3}, right of {:.4}",
            known / delay,
            named / known,
            located / delay,
            right / located
        );
        assert!(known > 0.5 * delay, "JDK {feature}: {known} of {delay}, {losses}");
        assert!(named >= 0.99 * known, "JDK {feature}: {named} of {known}, {losses}");
        assert!(located > 0.2 * delay, "JDK {feature}: {located} of {delay}, {losses}");
        assert!(right >= 0.99 * located, "JDK {feature}: {right} of {located}, {losses}");
        // And so are the stacks of those that have it.
        let (mut stacks, mut right) = (0.0, 0.0);
        for (name, method) in EXECUTORS {
            let caused = waits_in(&profile, "caused_delay", method);
            stacks += sum(&caused);
            right += sum(caused.iter().filter(|stack| stack.holder == name));
        }
        assert!(stacks > 0.0 && right >= 0.99 * stacks, "JDK {feature}: {right} of {stacks}, {losses}");
    }
}

/// Virtual threads have the monitor that a platform thread wants: asleep, and at work.
const VIRTUAL: &str = r#"
public class Virtual {
    static final Object stock = new Object();
    static volatile long until, sink;

    static void sleepsInIt() throws Exception { synchronized (stock) { Thread.sleep(9); } Thread.sleep(2); }
    static void spinsInIt() throws Exception {
        synchronized (stock) { for (long end = System.nanoTime() + 6_000_000; System.nanoTime() < end; ) sink++; }
        Thread.sleep(2);
    }
    static void wantsIt() throws Exception { synchronized (stock) { sink++; } Thread.sleep(1); }

    interface Body { void once() throws Exception; }
    static Runnable again(Body body) {
        return () -> { try { while (System.nanoTime() < until) body.once(); } catch (Exception e) { throw new Error(e); } };
    }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        until = System.nanoTime() + 3_000_000_000L;
        // Compiled for JDKs without virtual threads, too.
        java.lang.reflect.Method start = Thread.class.getMethod("startVirtualThread", Runnable.class);
        start.invoke(null, again(Virtual::sleepsInIt));
        start.invoke(null, again(Virtual::spinsInIt));
        Thread wants = new Thread(again(Virtual::wantsIt), "wants");
        wants.start();
        wants.join();
        Recorder.done(args);
    }
}
"#;

#[test]
fn a_virtual_thread_that_has_a_monitor_is_not_taken_for_its_carrier() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Virtual", VIRTUAL);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 21) {
        let (profile, losses) = record(&classes, &home, "Virtual");
        let waits = waits_in(&profile, "delay", "Virtual.wantsIt");
        assert!(sum(&waits) > 1e8, "JDK {feature}: it has waited: {losses}");
        for wait in &waits {
            assert!(["", "[virtual thread]"].contains(&wait.holder), "JDK {feature}: {}", wait.holder);
            assert_eq!(wait.holder_method, "", "JDK {feature}");
        }
    }
}

/// Threads that take a monitor once, of which every other one ends then, and more of them that
/// never do and take their places.
const REQUESTS: &str = r#"
public class Requests {
    static final Object stock = new Object();
    static volatile long until, sink;

    static void hasIt() throws InterruptedException { synchronized (stock) { Thread.sleep(6); } }
    static void works() { for (long end = System.nanoTime() + 1_000_000; System.nanoTime() < end; ) sink++; }
    static void wantsIt() { synchronized (stock) { sink++; } }

    interface Body { void once() throws Exception; }
    static void start(String name, Body body) {
        new Thread(() -> { try { body.once(); } catch (Exception e) { throw new Error(e); } }, name).start();
    }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        until = System.nanoTime() + 4_000_000_000L;
        start("wants", () -> { while (System.nanoTime() < until) { wantsIt(); Thread.sleep(1); } });
        for (int i = 0; System.nanoTime() < until; i++) {
            boolean stays = i % 2 == 0;
            // To Linux it began within 10 ms.
            start("request-with-stock-" + i, () -> { Thread.sleep(20); hasIt(); if (stays) Thread.sleep(500); });
            for (int other = 0; other < 3; other++) start("request-without-" + i, Requests::works);
            Thread.sleep(12);
        }
        Recorder.done(args);
    }
}
"#;

#[test]
fn a_thread_that_has_ended_is_not_taken_for_the_one_in_its_place() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Requests", REQUESTS);
    for (feature, home) in jdks() {
        let (profile, losses) = record(&classes, &home, "Requests");
        let waits = waits_in(&profile, "delay", "Requests.wantsIt");
        assert!(sum(&waits) > 1e8, "JDK {feature}: it has waited: {losses}");
        let known = || waits.iter().filter(|wait| !wait.holder.is_empty());
        assert!(known().next().is_some(), "JDK {feature}: none of the holders is known: {losses}");
        let has_stock = |wait: &&Wait<'_>| wait.holder.starts_with("request-with-");
        let wrong: Vec<&str> = known().filter(|wait| !has_stock(wait)).map(|wait| wait.holder).collect();
        assert!(wrong.is_empty(), "JDK {feature}: {wrong:?}");
        let elsewhere = |wait: &&Wait<'_>| !["", "Requests.hasIt"].contains(&method_of(wait));
        let elsewhere: Vec<&str> = waits.iter().filter(elsewhere).map(|wait| wait.holder_method).collect();
        assert!(elsewhere.is_empty(), "JDK {feature}: {elsewhere:?}");
    }
}
