//! Contexts that Java code publishes through a library, by the foreign function interface.

mod datadog;
mod java_writer;
mod virtual_threads;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use crate::support::recording::{Recording, SEES_ALLOCATIONS, WALKS_STACKS};
use crate::support::thread_context::{
    Labels, WITH_LABELS, WRITER, are_of_one_request_or_none, are_of_request, gcc, process_context,
    samples_of, samples_of_pprof,
};
use crate::support::{Workload, compile_java_for, jdks, scratch};

/// Platform and virtual threads that work on one request after the other.
const SHOP: &str = r#"
import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.ThreadLocalRandom;
public class Shop {
    static final Linker LINKER = Linker.nativeLinker();
    static MethodHandle attach, detach;
    static volatile long sink;
    static void work(long rounds) { long sum = sink; for (long i = 0; i < rounds; i++) sum += sum ^ i; sink = sum; }
    static void request_0() { work(3000); }
    static void request_1() { work(3000); }
    static void request_2() { work(3000); }
    static void request_3() { work(3000); }
    static void request_4() { work(3000); }
    static void request_5() { work(3000); }
    static void request_6() { work(3000); }
    static void request_7() { work(3000); }
    static void serve(boolean yields) {
        try {
            while (true) {
                int number = ThreadLocalRandom.current().nextInt(8);
                attach.invokeExact(number, number & 1);
                switch (number) {
                    case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2();
                    case 3 -> request_3(); case 4 -> request_4(); case 5 -> request_5();
                    case 6 -> request_6(); default -> request_7();
                }
                detach.invokeExact(number & 1);
                if (yields) Thread.yield();
            }
        } catch (Throwable error) { throw new RuntimeException(error); }
    }
    public static void main(String[] args) throws Throwable {
        SymbolLookup library = SymbolLookup.libraryLookup(args[1], Arena.global());
        FunctionDescriptor one = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT);
        FunctionDescriptor two = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT);
        attach = LINKER.downcallHandle(library.find("attach").get(), two);
        detach = LINKER.downcallHandle(library.find("detach").get(), one);
        FunctionDescriptor text = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);
        MethodHandle publish = LINKER.downcallHandle(library.find("publish").get(), text);
        publish.invokeExact(Arena.global().allocateFrom(args[0]));
        for (int i = 0; i < 4; i++) Thread.ofVirtual().start(() -> serve(true));
        for (int i = 0; i < 2; i++) Thread.ofPlatform().start(() -> serve(false));
    }
}
"#;

#[test]
fn samples_of_java_code_have_the_trace_of_their_request_on_virtual_threads_too() {
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 22) {
        let dir = scratch();
        let library = dir.path().join("libwriter.so");
        gcc("gcc", &library, &[WRITER], &["-shared", "-fPIC"]);
        let classes = compile_java_for(22, dir.path(), "Shop", SHOP);
        let [classes, library] = [&classes, &library].map(|path| path.to_str().expect("a path in UTF-8"));
        let context = process_context("tls_v1");
        // Methods of their own, so that the stack says which request it is.
        let options = ["--enable-native-access=ALL-UNNAMED", "-XX:CompileCommand=dontinline,Shop::request_*"];
        let arguments =
            [&options[..], &["-XX:CompileCommand=quiet", "-cp", classes, "Shop", &context, library]];
        let java = home.join("bin/java");
        let samples = samples_of(&[(&java, arguments.concat())], &WITH_LABELS).remove(0);
        let mut by_kind: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for (number, labels) in &samples.of_requests {
            let (labels, kind) = without_kind(labels);
            assert!(are_of_request(*number, &labels), "JDK {feature}, request {number}: {labels:?}");
            *by_kind.entry(kind).or_default() += 1;
        }
        for labels in &samples.in_attach {
            let (labels, _) = without_kind(labels);
            assert!(are_of_one_request_or_none(&labels), "JDK {feature}, a record being written: {labels:?}");
        }
        for kind in ["java", "virtual"] {
            let stacks = by_kind.get(&Some(kind.to_owned())).copied().unwrap_or_default();
            assert!(stacks > 0, "JDK {feature}, {kind}: {by_kind:?}");
        }
    }
}

/// Returns labels without the kind of the thread, and that.
fn without_kind(labels: &Labels) -> (Labels, Option<String>) {
    let mut labels = labels.clone();
    let kind = labels.remove("thread_kind");
    (labels, kind)
}

/// Platform threads whose requests allocate and sleep, and that do so between two of them, too.
const BANK: &str = r#"
import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.ThreadLocalRandom;
public class Bank {
    static final Linker LINKER = Linker.nativeLinker();
    static MethodHandle attach, detach;
    static void request_0() throws Exception { for (int i = 0; i < 100; i++) kept = new byte[10_000]; Thread.sleep(5); }
    static void request_1() throws Exception { for (int i = 0; i < 100; i++) kept = new byte[10_000]; Thread.sleep(5); }
    static void request_2() throws Exception { for (int i = 0; i < 100; i++) kept = new byte[10_000]; Thread.sleep(5); }
    static void request_3() throws Exception { for (int i = 0; i < 100; i++) kept = new byte[10_000]; Thread.sleep(5); }
    static void between() throws Exception { for (int i = 0; i < 50; i++) kept = new byte[10_000]; Thread.sleep(3); }
    static volatile byte[] kept;
    static void serve() {
        try {
            while (true) {
                int number = ThreadLocalRandom.current().nextInt(4);
                attach.invokeExact(number, number & 1);
                switch (number) {
                    case 0 -> request_0(); case 1 -> request_1(); case 2 -> request_2(); default -> request_3();
                }
                detach.invokeExact(number & 1);
                between();
            }
        } catch (Throwable error) { throw new RuntimeException(error); }
    }
    public static void main(String[] args) throws Throwable {
        SymbolLookup library = SymbolLookup.libraryLookup(args[1], Arena.global());
        FunctionDescriptor one = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT);
        FunctionDescriptor two = FunctionDescriptor.ofVoid(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT);
        attach = LINKER.downcallHandle(library.find("attach").get(), two);
        detach = LINKER.downcallHandle(library.find("detach").get(), one);
        FunctionDescriptor text = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);
        MethodHandle publish = LINKER.downcallHandle(library.find("publish").get(), text);
        publish.invokeExact(Arena.global().allocateFrom(args[0]));
        for (int i = 0; i < 2; i++) Thread.ofPlatform().start(Bank::serve);
    }
}
"#;

/// Waits until a process has published its context.
fn until_published(pid: u32) {
    let started = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").contains("OTEL_CTX") {
        assert!(started.elapsed() < Duration::from_mins(2), "no context is published");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The labels of a request, and what the sample waited for.
fn split(labels: &Labels) -> (Labels, Option<String>) {
    let of_request = ["http_route", "span_id", "trace_id"];
    let own = labels.iter().filter(|(name, _)| of_request.contains(&name.as_str()));
    (own.map(|(name, value)| (name.clone(), value.clone())).collect(), labels.get("wait").cloned())
}

#[test]
fn allocations_and_waits_that_have_ended_have_the_trace_of_their_request_too() {
    let (feature, home) = jdks().into_iter().rfind(|(feature, _)| *feature >= 22).expect("a JDK 25");
    let dir = scratch();
    let (library, output) = (dir.path().join("libwriter.so"), dir.path().join("bank.pb.gz"));
    gcc("gcc", &library, &[WRITER], &["-shared", "-fPIC"]);
    let classes = compile_java_for(22, dir.path(), "Bank", BANK);
    let [classes, library, file] =
        [&classes, &library, &output].map(|path| path.to_str().expect("a path in UTF-8"));
    let context = process_context("tls_v1");
    // Methods of their own, so that the stack says which request it is.
    let options = ["--enable-native-access=ALL-UNNAMED", "-XX:CompileCommand=dontinline,Bank::*"];
    let arguments = [&options[..], &["-XX:CompileCommand=quiet", "-cp", classes, "Bank", &context, library]];
    let jvm = Workload::start(&home.join("bin/java"), &arguments.concat());
    until_published(jvm.pid());
    let pid = jvm.pid().to_string();
    let record = ["-e", "alloc,offcpu", "-p", &pid, "-o", file];
    let mut recording = Recording::start(&[&record[..], &WITH_LABELS].concat());
    recording.wait_for(&[WALKS_STACKS, SEES_ALLOCATIONS]);
    std::thread::sleep(Duration::from_secs(4));
    let summary = recording.end();
    let samples = samples_of_pprof(&fs::read(&output).expect("written"));
    // The requests that allocated, and those that slept.
    let mut requests = [BTreeSet::new(), BTreeSet::new()];
    for (number, labels) in &samples.of_requests {
        let (own, wait) = split(labels);
        // There is none before the process's context was found.
        if !own.is_empty() {
            assert!(are_of_request(*number, &own), "JDK {feature}, request {number}: {labels:?}");
            match wait.as_deref() {
                None => requests[0].insert(*number),
                Some("sleep") => requests[1].insert(*number),
                Some(_) => true,
            };
        }
    }
    let mut outside = [0, 0];
    for labels in &samples.between {
        let (own, wait) = split(labels);
        assert!(own.is_empty(), "JDK {feature}, between two requests: {labels:?}");
        outside[usize::from(wait.is_some())] += 1;
    }
    // Of two threads no more than two waits haven't ended.
    let all = BTreeSet::from([0, 1, 2, 3]);
    assert_eq!(requests, [all.clone(), all], "JDK {feature}: {summary}");
    assert!(outside.iter().all(|samples| *samples > 0), "JDK {feature}: {outside:?} {summary}");
}
