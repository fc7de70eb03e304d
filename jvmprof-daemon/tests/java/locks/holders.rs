//! Stacks of the threads that have contended monitors, beside what a program knows: each of its
//! threads has each of its locks in one method only, and is elsewhere in between.

use std::fs;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::Profile;
use serde_json::Value;

use super::{Wait, waits_in};
use crate::support::recording::{READS_BLOCKERS, WALKS_STACKS, compile_recorded, record_work};
use crate::support::waits::KEEP_ALL;
use crate::support::{jdks, scratch};

const HELD: &str = r#"
import java.io.IOException;
import java.util.*;

public class Held {
    static class A { }
    static class B { }
    static class C { }
    static class D { }
    static final Object a = new A(), b = new B(), c = new C(), d = new D();
    static final java.nio.channels.Pipe pipe = open();
    static volatile long until, sink;

    static java.nio.channels.Pipe open() {
        try { return java.nio.channels.Pipe.open(); } catch (IOException e) { throw new Error(e); }
    }
    interface Body { void once() throws Exception; }
    static void run(String name, List<Thread> threads, Body body) {
        Thread thread = new Thread(() -> {
            try { while (System.nanoTime() < until) body.once(); } catch (Exception e) { throw new Error(e); }
        }, name);
        thread.start();
        threads.add(thread);
    }

    static void sleepsInA() throws Exception { synchronized (a) { Thread.sleep(9); } }
    static void spinsInB() { synchronized (b) { for (long end = System.nanoTime() + 12_000_000; System.nanoTime() < end; ) sink++; } }
    static void readsInC() throws Exception { synchronized (c) { pipe.source().read(java.nio.ByteBuffer.allocate(1)); } }
    static void sleepsInD() throws Exception { synchronized (d) { Thread.sleep(7); } }
    static void spinsInD() { synchronized (d) { for (long end = System.nanoTime() + 6_000_000; System.nanoTime() < end; ) sink++; } }
    static void idles() throws Exception { Thread.sleep(2); }

    static void wantsA() throws Exception { synchronized (a) { sink++; } Thread.sleep(1); }
    static void wantsB() throws Exception { synchronized (b) { sink++; } Thread.sleep(1); }
    static void wantsC() throws Exception { synchronized (c) { sink++; } Thread.sleep(1); }
    static void wantsD() throws Exception { synchronized (d) { sink++; } Thread.sleep(1); }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        until = System.nanoTime() + 4_000_000_000L;
        List<Thread> threads = new ArrayList<>();
        run("one", threads, () -> { sleepsInA(); idles(); spinsInB(); idles(); });
        run("two", threads, () -> { readsInC(); idles(); sleepsInD(); idles(); });
        run("three", threads, () -> { spinsInD(); idles(); });
        run("writer", threads, () -> { Thread.sleep(30); pipe.sink().write(java.nio.ByteBuffer.allocate(1)); });
        run("wantsA", threads, Held::wantsA);
        run("wantsB", threads, Held::wantsB);
        run("wantsC", threads, Held::wantsC);
        run("wantsD", threads, Held::wantsD);
        // The last one may still wait for a byte.
        while (threads.get(1).isAlive()) { Thread.sleep(30); pipe.sink().write(java.nio.ByteBuffer.allocate(1)); }
        for (Thread thread : threads) thread.join();
        Recorder.done(args);
    }
}
"#;

/// A method that waits for a lock, a thread that has that, the method in which it has it, and the
/// least share of the time for which that method is known: of one that runs it is if a tick of a
/// CPU's clock falls in the wait. On JDK 17 it is known of less (docs/measurements/offcpu.md).
const HOLDERS: [(&str, &str, &str, f64); 5] = [
    ("wantsA", "one", "Held.sleepsInA", 0.6),
    ("wantsB", "one", "Held.spinsInB", 0.2),
    ("wantsC", "two", "Held.readsInC", 0.3),
    ("wantsD", "two", "Held.sleepsInD", 0.5),
    ("wantsD", "three", "Held.spinsInD", 0.1),
];

/// Checks the profile by the stacks of holders: each is in the method in which its thread has the
/// monitor, and together they have the time for which a holder's method is known.
fn check_holders_stacks(feature: u32, profile: &Profile) {
    let is_of_holder = |wait: &&Wait<'_>| HOLDERS.iter().any(|(_, holder, ..)| wait.holder == *holder);
    let sum = |sample_type: &str, is_counted: &dyn Fn(&Wait<'_>) -> bool| -> f64 {
        let waits = waits_in(profile, sample_type, "java.lang.Thread.run");
        let counted = waits.iter().filter(is_of_holder).filter(|wait| is_counted(wait));
        counted.map(|wait| wait.value).sum()
    };
    let all = sum("caused_delay", &|_| true);
    let known_ns = sum("delay", &|wait| !wait.holder_method.is_empty());
    let right_of = |(wants, holder, method, _): &(&str, &str, &str, f64)| {
        let class = format!("Held${}", wants.trim_start_matches("wants"));
        let stacks = waits_in(profile, "caused_delay", method);
        let is_right = |stack: &&Wait<'_>| stack.leaf == class && stack.holder == *holder;
        let right: f64 = stacks.iter().filter(is_right).map(|stack| stack.value).sum();
        assert!(right > 0.0, "JDK {feature}: {holder} in {method} has made nobody wait");
        right
    };
    let right: f64 = HOLDERS.iter().map(right_of).sum();
    println!("JDK {feature}: {:.0} ms by the holders' stacks, right {:.4}", all / 1e6, right / all);
    assert!(right >= 0.99 * all, "JDK {feature}: {right} of {all}");
    assert!((all / known_ns - 1.0).abs() < 0.02, "JDK {feature}: {all} by stacks, {known_ns} by methods");
}

#[test]
fn a_holders_method_is_where_the_program_has_the_lock() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Held", HELD);
    for (feature, home) in jdks() {
        let output = dir.path().join("x.pb.gz");
        let java = home.join("bin/java");
        let [output, java, classes] =
            [&output, &java, &classes].map(|path| path.to_str().expect("a path in UTF-8"));
        let record = ["-e", "lock", "-o", output, "--", java, "-cp", classes, "Held"];
        let program = [&KEEP_ALL[..], &record].concat();
        let summary = record_work(&program, &[WALKS_STACKS, READS_BLOCKERS]);
        let losses = &summary["losses"];
        let profile = decode(&fs::read(output).expect("written"), DecodeLimits::default());
        let profile = profile.expect("pprof");
        let (mut all_known, mut all_right) = (0.0, 0.0);
        for (method, holder, expected, least) in HOLDERS {
            let waits = waits_in(&profile, "delay", &format!("Held.{method}"));
            let of_holder = || waits.iter().filter(|wait| wait.holder == holder);
            let delay: f64 = of_holder().map(|wait| wait.value).sum();
            let known = of_holder().filter(|wait| !wait.holder_method.is_empty());
            let (mut known_ns, mut right_ns) = (0.0, 0.0);
            for wait in known {
                known_ns += wait.value;
                // Its line isn't always known.
                let name = wait.holder_method.rsplit_once(':').map_or(wait.holder_method, |(name, _)| name);
                match name == expected {
                    true => right_ns += wait.value,
                    false => println!("JDK {feature} {method} {holder}: in {}", wait.holder_method),
                }
            }
            println!(
                "JDK {feature} {method} {holder}: {:.0} ms, known of {:.3}, right of {:.4}",
                delay / 1e6,
                known_ns / delay,
                right_ns / known_ns
            );
            assert!(
                known_ns >= least * delay,
                "JDK {feature} {method} {holder}: {known_ns} of {delay}, {losses}"
            );
            all_known += known_ns;
            all_right += right_ns;
        }
        assert!(all_right >= 0.99 * all_known, "JDK {feature}: {all_right} of {all_known}, {losses}");
        check_holders_stacks(feature, &profile);
        let stack = &summary["lock"]["holders"][0]["stack"];
        let stack: Vec<_> = stack.as_array().expect("a stack").iter().filter_map(Value::as_str).collect();
        assert!(stack.iter().any(|it| it.starts_with("java.lang.Thread.run")), "JDK {feature}: {stack:?}");
        let rows = summary["lock"]["locks"].as_array().expect("a table");
        let row = rows.iter().find(|row| row["method"] == "Held.wantsA").expect("a row");
        let method = row["holder"]["method"]["name"].as_str().expect("it is known");
        assert!(method.starts_with("Held.sleepsInA:"), "JDK {feature}: {row}");
    }
}
