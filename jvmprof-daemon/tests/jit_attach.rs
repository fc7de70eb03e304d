//! A JVM that is asked for its perf map, as another user in another root's `/tmp`, too. Run by root.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jvmprof_daemon::jitmap::attach::{AttachError, Target, request};
use jvmprof_daemon::jitmap::budget::Budget;
use jvmprof_daemon::jitmap::process_map::{ProcessMap, Writer};
use support::{jdks, open_to_all, scratch};

const SOURCE: &str = "public class Spin { public static void main(String[] a) { long s = 0; \
    for (long i = 0; ; i++) { s += step(i); if (s == 42) System.out.println(s); } } \
    static long step(long i) { return i * 31 ^ i >>> 7; } }";

struct Java(Child);

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a JVM that compiles something, as this user.
fn java(home: &Path, directory: &Path, user: u32, flags: &[&str]) -> Java {
    fs::write(directory.join("Spin.java"), SOURCE).expect("a source file");
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let child = Command::new("setpriv")
        .args(ids)
        .args(["--clear-groups", "--"])
        .arg(home.join("bin/java"))
        .args(flags)
        .arg(directory.join("Spin.java"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let java = Java(child.expect("the tests need setpriv"));
    let end = Instant::now() + Duration::from_secs(20);
    let is_up = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        maps.contains("libjvm.so") && threads > 8
    };
    while !is_up(java.0.id()) {
        assert!(Instant::now() < end, "no JVM");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(2));
    java
}

/// Asks on a thread of its own, which becomes the JVM's user.
fn ask(java: &Java, user: u32) -> (Result<(), AttachError>, Arc<Mutex<ProcessMap>>) {
    let pid = java.0.id();
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let places = vec![(root, format!("/tmp/perf-{pid}.map").into())];
    let writer = Writer { places, uid: user, started_ns: None };
    let map = Arc::new(Mutex::new(ProcessMap::new(writer, Budget::new(64 << 20))));
    let target = Target::of_pid(pid).expect("the JVM runs");
    let shared = Arc::clone(&map);
    let asking = std::thread::spawn(move || request(&target, &shared));
    (asking.join().expect("no panic"), map)
}

#[test]
fn a_jvm_writes_a_map_for_its_own_user_and_nothing_is_left_behind() {
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 17) {
        let directory = scratch();
        open_to_all(directory.path());
        for user in [0, 12_345] {
            let java = java(&home, directory.path(), user, &[]);
            let pid = java.0.id();
            for turn in 0..2 {
                let (answer, map) = ask(&java, user);
                answer.unwrap_or_else(|error| panic!("JDK {feature}, user {user}: {error}"));
                let entries = map.lock().expect("a lock").map().counters().entries;
                println!("JDK {feature}, user {user}, turn {turn}: {entries} entries");
                assert!(entries > 200, "{entries}");
                assert!(!Path::new(&format!("/tmp/perf-{pid}.map")).exists());
                assert!(!Path::new(&format!("/tmp/.attach_pid{pid}")).exists());
            }
            assert!(Path::new(&format!("/proc/{pid}")).exists(), "the JVM lives on");
            drop(java);
            let _ = fs::remove_file(format!("/tmp/.java_pid{pid}"));
        }
    }
}

#[test]
fn a_jvm_that_sigquit_would_end_is_left_alone() {
    let (_, home) = jdks().into_iter().find(|(feature, _)| *feature == 17).expect("a JDK 17");
    let directory = scratch();
    open_to_all(directory.path());
    let java = java(&home, directory.path(), 0, &["-Xrs", "-XX:+DisableAttachMechanism"]);
    let (answer, _) = ask(&java, 0);
    assert!(matches!(answer, Err(AttachError::NoHandler { .. })), "{answer:?}");
    assert!(Path::new(&format!("/proc/{}", java.0.id())).exists());
}
