//! Virtual threads that wait and aren't mounted, counted in the heap.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::processes::wait_until;
use crate::support::recording::{Recording, WALKS_STACKS};
use crate::support::{Workload, compile_java_for, jdks, scratch};

/// Virtual threads that wait for ever, so many in each method, in sets and in executors.
const WAITING: &str = r#"
import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.*;

public class Waiting {
    interface Task { void run() throws Exception; }
    static final ReentrantLock lock = new ReentrantLock();
    static final LinkedBlockingQueue<String> queue = new LinkedBlockingQueue<>();
    static final Object monitor = new Object(), signal = new Object();
    static final List<Socket> accepted = new ArrayList<>();
    static final List<Thread> threads = Collections.synchronizedList(new ArrayList<>());
    static int port, expected;

    static void sleeps() throws Exception { Thread.sleep(1_000_000); }
    static void locks() { lock.lock(); }
    static void takes() throws Exception { queue.take(); }
    static void parks() { LockSupport.park(); }
    static void reads() throws Exception { new Socket("127.0.0.1", port).getInputStream().read(); }
    static void enters() { synchronized (monitor) { System.out.println("entered"); } }
    static void waits() throws Exception { synchronized (signal) { signal.wait(); } }

    static void start(int count, Executor executor, Task task) {
        expected += count;
        for (int i = 0; i < count; i++)
            executor.execute(() -> {
                threads.add(Thread.currentThread());
                try { task.run(); } catch (Exception e) { throw new Error(e); }
            });
    }
    /// Until all of them have left their carriers.
    static void awaitAll() throws Exception {
        while (threads.size() < expected) Thread.sleep(10);
        for (Thread thread : threads) while (thread.getState() == Thread.State.RUNNABLE) Thread.sleep(10);
    }

    public static void main(String[] args) throws Exception {
        lock.lock();
        ServerSocket server = new ServerSocket(0, 100);
        port = server.getLocalPort();
        ExecutorService pool = Executors.newVirtualThreadPerTaskExecutor();
        start(300, Thread::startVirtualThread, Waiting::sleeps);
        start(200, pool, Waiting::locks);
        start(150, Thread::startVirtualThread, Waiting::takes);
        start(70, pool, Waiting::parks);
        start(30, Thread::startVirtualThread, Waiting::reads);
        for (int i = 0; i < 30; i++) accepted.add(server.accept());
        // Before, a monitor keeps the carrier.
        boolean monitors = Runtime.version().feature() >= 24;
        synchronized (monitor) {
            if (monitors) start(20, pool, Waiting::waits);
            if (monitors) start(10, pool, Waiting::enters);
            awaitAll();
            new File(args[0]).createNewFile();
            Thread.sleep(1_000_000);
        }
    }
}
"#;

const LOCK: &str = "java.util.concurrent.locks.ReentrantLock$NonfairSync";
const CONDITION: &str = "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject";
/// Cause, blocker, method and number of threads.
const EXPECTED: [(&str, &str, &str, u64); 7] = [
    ("sleep", "", "Waiting.sleeps", 300),
    ("park", LOCK, "Waiting.locks", 200),
    ("park", CONDITION, "Waiting.takes", 150),
    ("park", "", "Waiting.parks", 70),
    ("socket", "", "Waiting.reads", 30),
    ("object_wait", "", "Waiting.waits", 20),
    ("monitor", "", "Waiting.enters", 10),
];

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Records a JVM of this class once it has made its file, until it can be read; returns what is
/// said of its virtual threads then.
fn counted(java: &Path, flags: &[&str], classes: &Path, class: &str) -> Value {
    let dir = scratch();
    let ready = dir.path().join("ready");
    let arguments = [flags, &["-cp", text(classes), class, text(&ready)]].concat();
    let jvm = Workload::start(java, &arguments);
    wait_until("its threads have started", || ready.exists());
    let mut recording = Recording::start(&["-e", "offcpu", "-p", &jvm.pid().to_string()]);
    recording.wait_for(&[WALKS_STACKS]);
    // What a count needs beside that is read meanwhile.
    std::thread::sleep(Duration::from_secs(2));
    let summary = recording.end();
    let [counted] = &summary["virtual_threads"].as_array().expect("it has virtual threads")[..] else {
        panic!("one JVM was recorded: {summary}")
    };
    assert_eq!(counted["pid"], jvm.pid());
    counted.clone()
}

#[test]
fn virtual_threads_are_counted_by_what_they_wait_for_and_where() {
    let dir = scratch();
    let classes = compile_java_for(21, dir.path(), "Waiting", WAITING);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 21) {
        let layouts = [
            &["-XX:+UseG1GC"][..],
            &["-XX:+UseSerialGC", "-XX:-UseCompressedOops", "-Xint"],
            &["-XX:+UseZGC"],
        ];
        for flags in layouts {
            let counted = counted(&home.join("bin/java"), flags, &classes, "Waiting");
            let has_monitors = feature >= 24;
            let expected: BTreeMap<_, _> = EXPECTED
                .into_iter()
                .filter(|(wait, ..)| has_monitors || !["monitor", "object_wait"].contains(wait))
                .map(|(wait, blocker, method, threads)| ((wait, blocker, method), threads))
                .collect();
            let rows = counted["waits"].as_array().expect("a table");
            let word = |row: &'_ Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
            let found: BTreeMap<_, _> = rows
                .iter()
                .map(|row| ["wait", "blocker", "method"].map(|key| word(row, key)))
                .zip(rows.iter().map(|row| row["threads"].as_u64().expect("a number")))
                .collect();
            // The JDK's own, which wait for sockets.
            let of_jdk = |[_, _, method]: &&[String; 3]| method.starts_with("sun.nio.ch.");
            let own: u64 = found.keys().filter(of_jdk).map(|row| found[row]).sum();
            let of_program = found.iter().filter(|(row, _)| !of_jdk(row));
            let of_program: BTreeMap<_, _> = of_program
                .map(|([wait, blocker, method], threads)| ((&**wait, &**blocker, &**method), *threads))
                .collect();
            assert_eq!(of_program, expected, "JDK {feature} {flags:?}");
            let all = expected.values().sum::<u64>() + own;
            let number = |key: &str| counted[key].as_u64();
            assert_eq!(number("waiting"), Some(all), "JDK {feature} {flags:?}: {counted}");
            assert_eq!((number("stacks"), number("whole_stacks")), (Some(all), Some(all)), "{counted}");
            assert_eq!(counted["is_estimate"], false);
            let sleeps = rows.iter().find(|row| row["method"] == "Waiting.sleeps").expect("asserted");
            let stack = sleeps["stack"].as_array().expect("a stack");
            assert_eq!(stack.last().expect("frames"), "jdk.internal.vm.Continuation.enter", "{sleeps}");
        }
    }
}

/// Virtual threads that wake all the time, while collections move their frames.
const MOVED: &str = r#"
import java.io.File;
import java.util.concurrent.locks.*;

public class Moved {
    interface Wait { void once() throws Exception; }
    static volatile Object sink;
    static void naps() throws Exception { Thread.sleep(3); }
    static void dozes() { LockSupport.parkNanos(2_000_000); }
    static void rests() throws Exception { Thread.sleep(1_000_000); }
    static int deep(int depth) throws Exception { if (depth > 0) return deep(depth - 1) + 1; naps(); return 0; }
    static void start(Wait wait) {
        Thread.startVirtualThread(() -> { try { while (true) wait.once(); } catch (Exception e) { } });
    }
    public static void main(String[] args) throws Exception {
        for (int i = 0; i < 100; i++) {
            start(Moved::naps); start(Moved::dozes); start(() -> deep(20)); start(Moved::rests);
        }
        new File(args[0]).createNewFile();
        Object[] kept = new Object[20_000];
        for (int i = 0; ; i++) {
            sink = kept[i % kept.length] = new byte[1_000];
            if (i % 400 == 0) Thread.sleep(1);
        }
    }
}
"#;

#[test]
fn collections_and_threads_that_go_on_change_neither_counts_nor_names() {
    let dir = scratch();
    let classes = compile_java_for(21, dir.path(), "Moved", MOVED);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 21) {
        for collector in ["-XX:+UseG1GC", "-XX:+UseParallelGC", "-XX:+UseZGC"] {
            let flags = ["-Xmx256m", collector];
            let counted = counted(&home.join("bin/java"), &flags, &classes, "Moved");
            let number = |key: &str| counted[key].as_u64().expect("a number");
            // ZGC may not rest for long enough here.
            if collector == "-XX:+UseZGC" && counted["problem"].is_string() {
                continue;
            }
            // Of a set that is read in part the number is an estimate.
            assert_eq!(counted["is_estimate"], false, "JDK {feature} {collector}: {counted}");
            let all: u64 = ["waiting", "runnable", "mounted"].into_iter().map(number).sum();
            // Each state of a started thread counts, and what can't be read is a problem rather
            // than a thread less. Until recordings have shown that no thread is missing, some may
            // be.
            assert!((380..=400).contains(&all), "JDK {feature} {collector}: {counted}");
            assert_eq!(number("stacks"), number("whole_stacks"), "JDK {feature} {collector}: {counted}");
            for row in counted["waits"].as_array().expect("a table") {
                let (wait, method) = (&row["wait"], row["method"].as_str().expect("a name"));
                let is_right = match method {
                    "Moved.naps" | "Moved.rests" => wait == "sleep",
                    "Moved.dozes" => wait == "park",
                    _ => false,
                };
                assert!(is_right && row["blocker"].is_null(), "JDK {feature} {collector}: {row}");
                let stack = row["stack"].as_array().expect("a stack");
                let depth = stack.iter().filter(|name| *name == "Moved.deep").count();
                assert!(
                    depth == 0 || depth == 21 && method == "Moved.naps",
                    "JDK {feature} {collector}: {row}"
                );
            }
        }
    }
}
