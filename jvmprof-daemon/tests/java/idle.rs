//! Threads of real JVMs that have nothing to do, under each collector, beside threads that wait in
//! the program's own code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jvmprof_daemon::profile::pprof::decode::{DecodeLimits, decode};
use jvmprof_daemon::proto::pprof::{Profile, Sample};
use serde_json::Value;

use crate::support::recording::{Gate, READS_BLOCKERS, Recording, WALKS_STACKS, compile_recorded};
use crate::support::{Workload, jdks, scratch};

/// Pools, timers, acceptors and selectors without work; and one method for each way in which
/// the program's own code waits, whoever runs it. Those wake all the time, so that each has many
/// waits that end.
const IDLE: &str = r#"
import java.io.*;
import java.lang.reflect.Method;
import java.net.*;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;

public class Idle {
    interface Body { void once() throws Exception; }
    static final Object monitor = new Object(), signal = new Object();
    static final BlockingQueue<String> queue = new LinkedBlockingQueue<>();
    static final CompletableFuture<String> never = new CompletableFuture<>();
    static InputStream in;
    static Object cleaner;

    static void naps() throws Exception { Thread.sleep(100); }
    static void gets() throws Exception { try { never.get(100, TimeUnit.MILLISECONDS); } catch (TimeoutException none) { } }
    static void takes() throws Exception { queue.poll(100, TimeUnit.MILLISECONDS); }
    static void holds() throws Exception { synchronized (monitor) { Thread.sleep(100); } Thread.sleep(2); }
    static void enters() throws Exception { synchronized (monitor) { } Thread.sleep(1); }
    static void reads() throws Exception { try { in.read(); } catch (SocketTimeoutException none) { } }
    static void pooled() throws Exception { Thread.sleep(100); }
    static void forked() { LockSupport.parkNanos(100_000_000); }
    static void timed() throws Exception { synchronized (signal) { signal.wait(100); } }

    static void once(Body body) {
        try { body.once(); } catch (Exception e) { throw new Error(e); }
    }
    static void repeat(Body body) { while (true) once(body); }
    static Thread start(String name, Body body) {
        Thread thread = new Thread(() -> repeat(body), name);
        thread.start();
        return thread;
    }
    static TimerTask task(Runnable work) {
        return new TimerTask() { public void run() { work.run(); } };
    }
    /// Calls a method that older releases don't have.
    static void call(Object on, Class<?> of, String name, Class<?>[] types, Object... arguments) throws Exception {
        Method method;
        try { method = of.getMethod(name, types); } catch (NoSuchMethodException none) { return; }
        method.invoke(on, arguments);
    }

    public static void main(String[] args) throws Exception {
        Recorder.await(args);
        ThreadPoolExecutor pool = new ThreadPoolExecutor(3, 3, 1, TimeUnit.DAYS, new LinkedBlockingQueue<Runnable>());
        pool.prestartAllCoreThreads();
        Executors.newScheduledThreadPool(1).schedule(() -> { }, 1, TimeUnit.HOURS);
        ForkJoinPool fork = new ForkJoinPool(3);
        CountDownLatch workers = new CountDownLatch(3);
        for (int i = 0; i < 3; i++) fork.execute(() -> once(() -> { workers.countDown(); workers.await(); }));
        ForkJoinPool.commonPool().execute(() -> { });
        new Timer("later").schedule(task(() -> { }), 3_600_000);
        new Timer("without a task");
        ServerSocket server = new ServerSocket(0), silent = new ServerSocket(0);
        start("accepts", () -> server.accept());
        ServerSocketChannel channel = ServerSocketChannel.open().bind(null);
        start("accepts channels", () -> channel.accept());
        Selector selector = Selector.open();
        start("selects", () -> selector.select());
        try { cleaner = Class.forName("java.lang.ref.Cleaner").getMethod("create").invoke(null); } catch (ClassNotFoundException none) { }
        call(new CompletableFuture<String>(), CompletableFuture.class, "orTimeout", new Class<?>[] { long.class, TimeUnit.class }, 1L, TimeUnit.HOURS);
        InputStream unheard = new Socket("127.0.0.1", silent.getLocalPort()).getInputStream();
        for (Body body : new Body[] { () -> unheard.read(), () -> Thread.sleep(3_600_000) }) {
            Runnable work = () -> repeat(body);
            call(null, Thread.class, "startVirtualThread", new Class<?>[] { Runnable.class }, work);
        }

        Socket socket = new Socket("127.0.0.1", silent.getLocalPort());
        socket.setSoTimeout(100);
        in = socket.getInputStream();
        start("gets", Idle::gets);
        start("takes", Idle::takes);
        start("holds", Idle::holds);
        start("enters", Idle::enters);
        start("reads", Idle::reads);
        pool.execute(() -> repeat(Idle::pooled));
        fork.execute(() -> repeat(() -> forked()));
        new Timer("timed").schedule(task(() -> repeat(Idle::timed)), 0);
        Thread naps = start("naps", Idle::naps);
        Recorder.file(args, 1).createNewFile();
        naps.join();
    }
}
"#;

/// The methods in which the program's own code waits.
const WAITING: [&str; 9] = ["naps", "gets", "takes", "holds", "enters", "reads", "pooled", "forked", "timed"];

/// Methods of the library in which an idle thread is, in each JDK.
const IDLE_IN: [&str; 4] = [
    "java.util.concurrent.ThreadPoolExecutor.getTask",
    "java.util.concurrent.ForkJoinPool.runWorker",
    "java.util.TimerThread.mainLoop",
    "java.lang.Thread.join",
];

/// Causes of waits of threads that have something to do: by no rule they are idle.
const FOR_A_CPU: [&str; 2] = ["runnable", "cpu_quota"];

/// Options of JVMs: the first and the last release that they are for, and whether each JDK of these
/// has them.
const OPTIONS: [(u32, u32, bool, &[&str]); 7] = [
    (8, u32::MAX, true, &["-XX:+UseSerialGC"]),
    (8, u32::MAX, true, &["-XX:+UseParallelGC"]),
    (8, u32::MAX, true, &["-XX:+UseG1GC"]),
    (11, u32::MAX, false, &["-XX:+UseZGC"]),
    (21, 23, false, &["-XX:+UseZGC", "-XX:+ZGenerational"]),
    (11, u32::MAX, false, &["-XX:+UseShenandoahGC"]),
    (24, u32::MAX, false, &["-XX:+UseShenandoahGC", "-XX:ShenandoahGCMode=generational"]),
];
const COMMON_OPTIONS: [&str; 3] =
    ["-Xmx64m", "-XX:+UnlockExperimentalVMOptions", "-XX:+UseStringDeduplication"];

/// A sample of waits.
struct Wait<'a> {
    pid: &'a str,
    cause: &'a str,
    is_idle: bool,
    /// Of the program's main thread, which isn't the launcher's first one of that name.
    is_of_main: bool,
    /// Leaf first.
    names: Vec<&'a str>,
    waited_ns: f64,
}

impl Wait<'_> {
    /// Returns the method of the program's own in which it waits.
    fn own_method(&self) -> Option<&'static str> {
        let is_in = |method: &&&str| {
            self.names.iter().any(|name| name.strip_prefix("Idle.").is_some_and(|own| own == **method))
        };
        WAITING.iter().find(is_in).copied()
    }
}

/// Returns the samples of a profile that are of waits.
fn waits(profile: &Profile) -> Vec<Wait<'_>> {
    let text = |at: i64| &*profile.string_table[at as usize];
    let at = profile.sample_type.iter().position(|of| text(of.r#type) == "off_cpu").expect("the type");
    let function = |id: u64| profile.function.iter().find(|function| function.id == id);
    let locations: BTreeMap<u64, Vec<&str>> = profile
        .location
        .iter()
        .map(|location| {
            let functions = location.line.iter().filter_map(|line| function(line.function_id));
            (location.id, functions.map(|function| text(function.name)).collect())
        })
        .collect();
    let of_sample = |sample: &Sample| {
        let label = |name: &str| sample.label.iter().find(|label| text(label.key) == name);
        let value = |name: &str| label(name).map_or("", |label| text(label.str));
        Wait {
            pid: value("pid"),
            cause: value("wait"),
            is_idle: value("idle") == "true",
            is_of_main: value("thread_name") == "java" && value("thread_id") != value("pid"),
            names: sample.location_id.iter().filter_map(|id| locations.get(id)).flatten().copied().collect(),
            waited_ns: sample.value[at] as f64,
        }
    };
    profile.sample.iter().filter(|sample| sample.value[at] > 0).map(of_sample).collect()
}

/// Returns the options of the JVMs of a JDK to test.
fn options_of(feature: u32, java: &Path, repository: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (first, last, is_everywhere, options) in OPTIONS {
        if !(first..=last).contains(&feature) {
            continue;
        }
        let mut options: Vec<String> =
            COMMON_OPTIONS.iter().chain(options).map(|option| (*option).to_owned()).collect();
        if feature >= 17 {
            options.push("-Xlog:async".to_owned());
        }
        let with_recorder = (feature >= 11 && found.is_empty()).then(|| {
            let recorder = [
                "-XX:StartFlightRecording=disk=false",
                &format!("-XX:FlightRecorderOptions=repository={repository}"),
            ]
            .map(str::to_owned);
            [&options[..], &recorder].concat()
        });
        // Images without Flight Recorder have the same collectors.
        let mut tried = with_recorder.into_iter().chain([options]);
        let supported = tried.find(|options| can_start(java, options));
        assert!(supported.is_some() || !is_everywhere, "JDK {feature} can't start");
        found.extend(supported);
    }
    found
}

/// Returns true if a JVM starts with these options.
fn can_start(java: &Path, options: &[String]) -> bool {
    let mut java = Command::new(java);
    java.args(options).arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    java.status().expect("java runs").success()
}

/// Checks the waits of a JVM; `losses` of the recording say what was not seen.
fn check(case: &str, waits: &[&Wait<'_>], losses: &Value) {
    let sum = |is_counted: &dyn Fn(&Wait<'_>) -> bool| -> f64 {
        waits.iter().filter(|wait| is_counted(wait)).map(|wait| wait.waited_ns).sum()
    };
    for method in WAITING {
        let waited = sum(&|wait| wait.own_method() == Some(method));
        let idle = sum(&|wait| wait.own_method() == Some(method) && wait.is_idle);
        let is_busy = waited > 1e9 && idle == 0.0;
        assert!(is_busy, "{case}: {method} has waited {waited} ns, idle {idle}: {losses}");
    }
    for method in IDLE_IN {
        let idle = sum(&|wait| wait.is_idle && wait.names.contains(&method));
        assert!(idle > 3e9, "{case}: {method} was idle for {idle} ns: {losses}");
    }
    let mut others: BTreeMap<String, f64> = BTreeMap::new();
    for wait in waits.iter().filter(|wait| wait.own_method().is_none() && !wait.is_idle) {
        *others.entry(wait.names.join(" < ")).or_default() += wait.waited_ns;
    }
    let (all, not_idle) = (sum(&|wait| wait.own_method().is_none()), others.values().sum::<f64>());
    println!("{case}: {:.4} of {:.0} s isn't idle", not_idle / all, all / 1e9);
    assert!(not_idle < 0.02 * all, "{case}: {not_idle} of {all} ns isn't idle: {others:#?}, {losses}");
}

#[test]
fn threads_without_work_are_idle_under_each_collector_and_others_are_not() {
    let dir = scratch();
    let classes = compile_recorded(dir.path(), "Idle", IDLE);
    let classes = classes.to_str().expect("a path in UTF-8");
    for (feature, home) in jdks() {
        let java = home.join("bin/java");
        let dir = scratch();
        let path = |name: &str| dir.path().join(name).to_str().expect("a path in UTF-8").to_owned();
        let jvms: Vec<(Vec<String>, Gate, Workload)> = options_of(feature, &java, &path("recorder"))
            .into_iter()
            .map(|options| {
                let gate = Gate::new();
                let [begin, done] = gate.args();
                let program = ["-cp", classes, "Idle", &begin, &done];
                let arguments: Vec<&str> = options.iter().map(String::as_str).chain(program).collect();
                let jvm = Workload::start(&java, &arguments);
                (options, gate, jvm)
            })
            .collect();
        // With wall-clock time, all threads that wait at the end are inspected, and not some 200.
        let output = path("x.pb.gz");
        let pids: Vec<u32> = jvms.iter().map(|(.., jvm)| jvm.pid()).collect();
        let texts: Vec<String> = pids.iter().map(u32::to_string).collect();
        let mut arguments = vec!["-e", "offcpu,wall", "-o", &output];
        arguments.extend(texts.iter().flat_map(|pid| ["-p", pid]));
        let mut recording = Recording::start(&arguments);
        // Threads whose waits were named are distinguished from others.
        recording.wait_for_all(&pids, &[WALKS_STACKS]);
        // Blockers in a heap of ZGC without generations aren't read.
        let has = |options: &[String], option: &str| options.iter().any(|it| it == option);
        let names_blockers = |options: &[String]| {
            feature >= 23 || !has(options, "-XX:+UseZGC") || has(options, "-XX:+ZGenerational")
        };
        let named = jvms.iter().filter(|(options, ..)| names_blockers(options));
        let named: Vec<u32> = named.map(|(.., jvm)| jvm.pid()).collect();
        assert!(named.len() + 1 >= jvms.len(), "JDK {feature}: all but one of ZGC");
        recording.wait_for_all(&named, &[READS_BLOCKERS]);
        jvms.iter().for_each(|(_, gate, _)| gate.open());
        recording.wait_until("all threads have started", |_| jvms.iter().all(|(_, gate, _)| gate.is_done()));
        std::thread::sleep(Duration::from_secs(4));
        let summary = recording.end();
        let profile = decode(&fs::read(&output).expect("written"), DecodeLimits::default());
        let profile = profile.expect("pprof");
        let waits = waits(&profile);
        for ((options, ..), pid) in jvms.iter().zip(&texts) {
            // The main thread has waited for this test, too, before it waited for another one.
            let is_of = |wait: &&Wait<'_>| {
                let is_for_test =
                    wait.is_of_main && !wait.is_idle && !wait.names.contains(&"java.lang.Thread.join");
                wait.pid == pid && !is_for_test && !FOR_A_CPU.contains(&wait.cause)
            };
            let of_jvm: Vec<&Wait<'_>> = waits.iter().filter(is_of).collect();
            check(&format!("JDK {feature} {options:?}"), &of_jvm, &summary["losses"]);
        }
    }
}
