//! A JVM that is asked for its perf map, as another user in another root's `/tmp`, too. Run by
//! root.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jvmprof_daemon::jitmap::attach::{AttachError, Target, request};
use jvmprof_daemon::jitmap::budget::Budget;
use jvmprof_daemon::jitmap::process_map::{ProcessMap, Writer};
use support::left::remove_left;
use support::{Workload, compile, jdks, jvmprof, open_to_all, record_json, scratch};

const SOURCE: &str = "public class Spin { public static void main(String[] a) { long s = 0; \
    for (long i = 0; ; i++) { s += step(i); if (s == 42) System.out.println(s); } } \
    static long step(long i) { return i * 31 ^ i >>> 7; } }";

struct Java(Child);

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        remove_left(self.0.id());
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

/// The groups of the calling thread besides its own.
fn other_groups() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").expect("its status");
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).expect("its groups");
    groups.split_whitespace().map(str::to_owned).collect()
}

/// Asks on a thread of its own, which becomes the JVM's user.
fn ask(java: &Java, user: u32) -> (Result<(), AttachError>, Arc<Mutex<ProcessMap>>) {
    ask_while(java, user, AtomicBool::new(false))
}

fn ask_while(
    java: &Java,
    user: u32,
    is_over: AtomicBool,
) -> (Result<(), AttachError>, Arc<Mutex<ProcessMap>>) {
    let pid = java.0.id();
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let places = vec![(root, format!("/tmp/perf-{pid}.map").into())];
    let writer = Writer { places, uid: user, started_ns: None };
    let map = Arc::new(Mutex::new(ProcessMap::new(writer, Budget::new(64 << 20))));
    let target = Target::of_pid(pid).expect("the JVM runs");
    let shared = Arc::clone(&map);
    let asking = std::thread::spawn(move || {
        let group: nix::libc::gid_t = 7;
        // SAFETY: one group is read, which is there. The C library's function would be of all
        // threads.
        let done = unsafe { nix::libc::syscall(nix::libc::SYS_setgroups, 1, &raw const group) };
        assert_eq!((done, other_groups()), (0, vec!["7".to_owned()]));
        let answer = request(&target, &shared, &is_over);
        assert!(user == 0 || other_groups().is_empty(), "it is still in groups of its own");
        answer
    });
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

#[test]
fn a_jvm_that_nobody_waits_for_is_sent_no_signal() {
    let (_, home) = jdks().into_iter().find(|(feature, _)| *feature == 17).expect("a JDK 17");
    let directory = scratch();
    open_to_all(directory.path());
    let java = java(&home, directory.path(), 0, &[]);
    let (answer, _) = ask_while(&java, 0, AtomicBool::new(true));
    assert!(matches!(answer, Err(AttachError::GivenUp { .. })), "{answer:?}");
    let pid = java.0.id();
    // The socket would be the answer to a signal.
    for left in [format!("/tmp/.attach_pid{pid}"), format!("/tmp/.java_pid{pid}")] {
        assert!(!Path::new(&left).exists(), "{left}");
    }
}

#[test]
fn what_is_put_in_the_place_of_a_jvms_socket_is_not_connected_to() {
    let (_, home) = jdks().into_iter().find(|(feature, _)| *feature == 17).expect("a JDK 17");
    let directory = scratch();
    open_to_all(directory.path());
    let java = java(&home, directory.path(), 12_345, &[]);
    let socket = format!("/tmp/.java_pid{}", java.0.id());
    let elsewhere = directory.path().join("socket");
    let listener = UnixListener::bind(&elsewhere).expect("a socket");
    fs::set_permissions(&elsewhere, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("open to all");
    listener.set_nonblocking(true).expect("nonblocking");
    symlink(&elsewhere, &socket).expect("a link");
    let (answer, _) = ask(&java, 12_345);
    assert!(matches!(answer, Err(AttachError::OtherSocket { .. })), "{answer:?}");
    assert!(listener.accept().is_err(), "the link was followed");
    // A real socket, but this process's.
    fs::rename(&elsewhere, &socket).expect("renamed");
    let (answer, _) = ask(&java, 12_345);
    assert!(matches!(answer, Err(AttachError::OtherSocket { .. })), "{answer:?}");
}

/// Runs code in anonymous memory, counts SIGQUITs, and has a library called `libjvm.so`.
const OTHER_JVM: &str = r#"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static volatile int count;
static void handler(int signal) { (void)signal; count++; }
int main(int argc, char **argv) {
    unsigned char text[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0, 0, 0x40, 0, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
    signal(SIGQUIT, handler);
    if (argc != 4 || !dlopen(argv[1], RTLD_NOW)) return 1;
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, text, sizeof text);
    for (time_t end = time(NULL) + atoi(argv[3]); time(NULL) < end;) ((void (*)(void))code)();
    FILE *out = fopen(argv[2], "w");
    fprintf(out, "%d", count);
    return fclose(out);
}
"#;
/// A library with HotSpot's marker, but none of its tables.
const MARKED: &str = "unsigned long gHotSpotVMStructs = 1;";
const UNMARKED: &str = "int J9_CreateJavaVM(void) { return 1; }";

const WARNING: &str = "a JVM wrote no perf map";

/// Records a program that has such a library; gives what was logged, and how many SIGQUITs came.
fn signals(library: &str, seconds: u32) -> (String, u32) {
    let directory = scratch();
    let program = compile(directory.path(), "program", OTHER_JVM, &["-O1", "-ldl"]);
    let library =
        compile(directory.path(), "libjvm.so", library, &["-shared", "-fPIC"]).display().to_string();
    let counted = directory.path().join("count");
    let lives = (seconds + 2).to_string();
    let load = Workload::start(&program, &[&library, &counted.display().to_string(), &lives]);
    let output = directory.path().join("out.folded").display().to_string();
    let (pid, seconds) = (load.pid().to_string(), seconds.to_string());
    let mut recording = jvmprof();
    recording.args(["record", "--attach-perfmap", "-F", "199", "-d", &seconds, "-o", &output, "-p", &pid]);
    let done = recording.output().expect("the binary runs");
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{log}");
    assert!(!Path::new(&format!("/tmp/.attach_pid{pid}")).exists(), "it is left behind");
    let end = Instant::now() + Duration::from_secs(30);
    while fs::read_to_string(&counted).map_or(true, |text| text.is_empty()) {
        assert!(Instant::now() < end, "the program hasn't ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let count = fs::read_to_string(&counted).expect("read").parse().expect("a number");
    (log, count)
}

#[test]
fn only_hotspot_is_sent_the_signal_that_others_take_for_a_dump_request() {
    let (_, count) = signals(UNMARKED, 3);
    assert_eq!(count, 0);
}

#[test]
fn a_recording_that_ends_while_it_waits_for_a_jvm_has_nothing_to_say_of_it() {
    let (log, count) = signals(MARKED, 3);
    assert_eq!(count, 1);
    assert!(!log.contains(WARNING), "{log}");
}

#[test]
fn a_jvm_that_opens_no_socket_is_told_of_and_left_alone_for_a_while() {
    let (log, count) = signals(MARKED, 9);
    assert_eq!(count, 1);
    assert_eq!((log.matches(WARNING).count(), log.matches("opened no socket").count()), (1, 1), "{log}");
}

/// OpenJ9 writes a map of its own.
#[test]
fn a_jvm_that_is_no_hotspot_is_named_by_the_map_that_it_writes() {
    let directory = scratch();
    let program = compile(directory.path(), "program", OTHER_JVM, &["-O1", "-ldl"]);
    let library = compile(directory.path(), "libjvm.so", UNMARKED, &["-shared", "-fPIC"]);
    let counted = directory.path().join("count").display().to_string();
    let load = Workload::start(&program, &[&library.display().to_string(), &counted, "30"]);
    let pid = load.pid().to_string();
    let end = Instant::now() + Duration::from_secs(20);
    let code = loop {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        match maps.lines().find(|line| line.contains(" rwxp ")) {
            Some(line) => break line.split('-').next().expect("an address").to_owned(),
            None => assert!(Instant::now() < end, "no code in {maps}"),
        }
    };
    let map = format!("/tmp/perf-{pid}.map");
    fs::write(map, format!("{code} 1000 com/acme/Order.total([I)J_hot\n")).expect("written");
    let output = directory.path().join("out.folded").display().to_string();
    let summary = record_json(&["-F", "499", "-d", "2", "-o", &output, "-p", &pid]);
    let stacks = fs::read_to_string(output).expect("a profile");
    let named = stacks.lines().filter(|line| line.contains("com/acme/Order.total")).count();
    assert!(named > 0 && !stacks.contains("[unknown Java"), "{stacks}");
    assert_eq!(summary["losses"]["unknown_jit_frames"].as_u64().unwrap_or(0), 0, "{summary}");
}
