//! `jvmprof record` from its command line to its files, on real processes and JVMs. Needs root,
//! gcc, Go and the JDKs of `JVMPROF_TEST_JDKS`.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::processes::{LONGEST_WAIT, let_it_run, until_it_has_run, until_it_samples};
use crate::support::recording::{Recording, WALKS_STACKS};
use crate::support::{
    KilledChild, LOAD, Workload, compile, compile_java, jdks, jvmprof, record_json, scratch,
};

const RECURSE: &str = r"
#include <stdlib.h>
volatile unsigned long sink;
__attribute__((noinline)) void leaf(void) { for (int i = 0; i < 200000; i++) sink += i * i; }
__attribute__((noinline)) int descend(int n) { if (n == 0) { leaf(); return 1; } return descend(n - 1) + (int)sink; }
int main(int argc, char **argv) { for (;;) descend(atoi(argv[1])); }
";

/// Samples whose stack (root first) satisfies a condition, and all samples, of a folded file.
fn share(folded: &str, condition: impl Fn(&[&str]) -> bool) -> (u64, u64) {
    let (mut with, mut all) = (0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a folded line ends in its count");
        let count: u64 = count.parse().expect("a count is a number");
        let frames: Vec<&str> = stack.split(';').collect();
        all += count;
        with += if condition(&frames) { count } else { 0 };
    }
    (with, all)
}

#[test]
fn recursion_1000_deep_is_whole_down_to_the_programs_start() {
    let dir = scratch();
    // -O0: every function, the leaf too, sets up its frame pointer.
    let program = compile(dir.path(), "recurse", RECURSE, &["-O0", "-fno-omit-frame-pointer"]);
    let out = dir.path().join("x.folded");
    let (output, program) = (out.to_str().unwrap(), program.to_str().unwrap());
    let summary = record_json(&["-F", "499", "-d", "2s", "-o", output, "--", program, "1000"]);
    let folded = fs::read_to_string(&out).unwrap();
    let (whole, all) = share(&folded, |frames| {
        frames[0] == "_start" && frames.iter().filter(|name| **name == "descend").count() == 1001
    });
    assert!(all > 50, "{all} samples: {summary}");
    // The rest is the recursion on its way down or up, and the program's loading.
    assert!(whole * 100 >= all * 90, "{whole} of {all}");
    assert!(
        summary["complete"].as_u64().unwrap() * 1000 >= summary["samples"].as_u64().unwrap() * 990,
        "{summary}"
    );
}

#[test]
fn a_command_is_profiled_with_its_children_and_told_to_end_with_the_recording() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O0", "-fno-omit-frame-pointer"]);
    let script = format!("{0} 10 & a=$!; {0} 20 & b=$!; trap \"kill $a $b\" TERM; wait", program.display());
    let summary = record_json(&["-F", "499", "-d", "1s", "--", "sh", "-c", &script]);
    assert!(summary["samples"].as_u64().unwrap() > 50, "{summary}");
    let top: Vec<&str> =
        summary["top"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(top.first(), Some(&"leaf"), "{summary}");
}

#[test]
fn functions_of_a_program_that_is_gone_with_its_file_system_have_their_names() {
    let dir = scratch();
    let source = RECURSE.replace("for (;;)", "for (int i = 0; i < 6000; i++)");
    let program = compile(dir.path(), "recurse", &source, &["-O1", "-static"]);
    let out = dir.path().join("x.folded");
    let script =
        format!("mount -t tmpfs none /mnt && cp {} /mnt/program && exec /mnt/program 3", program.display());
    record_json(&["-o", out.to_str().unwrap(), "--", "unshare", "--mount", "sh", "-c", &script]);
    let folded = fs::read_to_string(&out).unwrap();
    let (named, _) = share(&folded, |frames| frames.contains(&"leaf"));
    let (nameless, _) = share(&folded, |frames| frames.iter().any(|frame| frame.starts_with("program+0x")));
    assert!(named > 20, "{folded}");
    // Of musl and libc's start files some code has no symbol.
    assert!(nameless * 20 <= named, "{folded}");
}

#[test]
fn a_command_that_ends_at_once_ends_the_recording() {
    let summary = record_json(&["--", "true"]);
    assert!(summary["duration_ms"].as_u64().unwrap() < 20_000, "{summary}");
}

/// The kernel's own figure of the peak goes on with that of the program that was there before.
#[test]
fn the_memory_of_what_started_it_is_not_its_own() {
    let run = "import os, sys\nmemory = b'x' * (400 << 20)\nos.execv(sys.argv[1], sys.argv[1:])";
    let out = std::process::Command::new("python3")
        .args(["-c", run, env!("CARGO_BIN_EXE_jvmprof"), "record", "--json", "--", "true"])
        .output()
        .expect("this test runs python3");
    let error = String::from_utf8_lossy(&out.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).expect(&error);
    let peak = summary["daemon"]["peak_rss_bytes"].as_u64().expect("bytes");
    assert!((10 << 20..300 << 20).contains(&peak), "{peak} bytes: {summary}");
}

#[test]
fn go_pprof_agrees_with_the_folded_stacks() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O1", "-fno-omit-frame-pointer"]);
    let (pprof, folded) = (dir.path().join("x.pb.gz"), dir.path().join("x.folded"));
    record_json(&[
        "-d",
        "2s",
        "-o",
        pprof.to_str().unwrap(),
        "-o",
        folded.to_str().unwrap(),
        "--",
        program.to_str().unwrap(),
        "3",
    ]);
    let top = crate::support::go_pprof_top(&pprof);
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    for line in fs::read_to_string(&folded).unwrap().lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let leaf = stack.rsplit(';').next().unwrap().trim_end_matches("_[k]");
        *own.entry(leaf.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
    assert_eq!(top, own);
}

#[test]
fn a_full_ring_buffer_is_counted_and_the_rest_goes_on() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O1", "-fno-omit-frame-pointer"]);
    let summary = record_json(&[
        "-d",
        "1s",
        "-F",
        "9999",
        "--ring-buffer-kib",
        "4",
        "--",
        program.to_str().unwrap(),
        "200",
    ]);
    let (taken, samples) =
        (summary["kernel"]["taken"].as_u64().unwrap(), summary["samples"].as_u64().unwrap());
    let lost = summary["losses"]["ring_buffer_full"].as_u64().unwrap_or(0);
    assert!(lost > 0, "{summary}");
    assert!(samples > 0, "{summary}");
    assert_eq!(samples + lost, taken, "every sample arrived or is counted: {summary}");
}

#[test]
fn ctrl_c_and_sigterm_write_what_was_collected() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O1", "-fno-omit-frame-pointer"]);
    let load = Workload::start(&program, &["10"]);
    for signal in ["INT", "TERM"] {
        let out = dir.path().join(format!("{signal}.folded"));
        let mut recording = jvmprof();
        recording.args(["record", "-F", "499", "-p", &load.pid().to_string(), "-o"]).arg(&out);
        let mut recording = KilledChild(recording.stderr(Stdio::null()).spawn().unwrap());
        until_it_samples(recording.id());
        let_it_run(load.pid(), Duration::from_secs(1));
        crate::support::signal(recording.id(), signal);
        assert!(recording.wait().unwrap().success());
        let (leaf, all) = share(&fs::read_to_string(&out).unwrap(), |frames| frames.last() == Some(&"leaf"));
        assert!(all > 20 && leaf * 10 > all * 8, "SIG{signal}: {leaf} of {all}");
    }
}

#[test]
fn a_process_that_ends_during_the_recording_keeps_its_samples() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O1", "-fno-omit-frame-pointer"]);
    let load = Workload::start(&program, &["10"]);
    let pid = load.pid();
    let recording = Recording::start(&["-p", &pid.to_string(), "-d", "1h"]);
    until_it_samples(recording.pid());
    let_it_run(pid, Duration::from_secs(1));
    drop(load);
    let (log, summary) = recording.wait_for_end();
    assert!(summary["samples"].as_u64().unwrap() > 20, "{summary}");
    assert!(log.contains("the recorded processes have ended"), "{log}");
    assert_eq!(summary["top"][0]["name"], "leaf", "{summary}");
}

/// Beside JVMs of other tests, whose programs are called `java`.
#[test]
fn a_jvm_is_found_by_the_name_of_its_program_unless_several_have_it() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    let (_, home) = jdks().into_iter().next_back().unwrap();
    // The kernel keeps 15 bytes of it.
    let name = "jvm-found-by-comm";
    let program = dir.path().join(name);
    std::os::unix::fs::symlink(home.join("bin/java"), &program).unwrap();
    let arguments = ["-cp", classes.to_str().unwrap(), "Load", "0"];
    let load = Workload::start(&program, &arguments);
    // Exec closes files, by which it is seen, before it names the process.
    let comm = || fs::read_to_string(format!("/proc/{}/comm", load.pid())).unwrap();
    let started = Instant::now();
    while comm().trim_end() != &name[..15] {
        assert!(started.elapsed() < LONGEST_WAIT, "it is called {}", comm());
        thread::sleep(Duration::from_millis(10));
    }
    // The JVM has started.
    until_it_has_run(load.pid(), Duration::from_secs(1));
    for name in [name, &name[..15]] {
        let mut recording = Recording::start(&["-p", name]);
        recording.wait_for(&[WALKS_STACKS]);
        let_it_run(load.pid(), Duration::from_secs(1));
        let summary = recording.end();
        let jvms = summary["jvms"].as_array().unwrap();
        assert!(jvms.len() == 1 && jvms[0]["pid"] == load.pid(), "{name}: {summary}");
        assert!(summary["samples"].as_u64().unwrap() > 20, "{name}: {summary}");
    }
    let second = Workload::start(&program, &arguments);
    let output = jvmprof().args(["record", "-p", name, "-d", "1s"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains(&format!("2 processes are called \"{name}\": choose by pid")), "{stderr}");
    let listed = |pid: u32| stderr.lines().any(|line| line.trim_start().starts_with(&format!("{pid} ")));
    assert!(listed(load.pid()) && listed(second.pid()), "{stderr}");
}

#[test]
fn a_hostile_perf_map_costs_nothing_but_its_lines() {
    let dir = scratch();
    let program = compile(dir.path(), "recurse", RECURSE, &["-O1", "-fno-omit-frame-pointer"]);
    let load = Workload::start(&program, &["10"]);
    let map = format!("/tmp/perf-{}.map", load.pid());
    let mut hostile = b"ffffffffffffffff ffffffffffffffff huge\n0 0 nothing\nzz 10 x\n1000 10\n".to_vec();
    hostile.extend(b"7f0000000000 100 \xff\xfe not utf-8\n7f0000000080 100 overlapping\n");
    hostile.extend(vec![b'a'; 1 << 20]);
    hostile.extend(b"\n7f0000001000 10 cut sho");
    fs::write(&map, hostile).unwrap();
    let summary = record_json(&["-p", &load.pid().to_string(), "-d", "1s"]);
    fs::remove_file(&map).unwrap();
    assert_eq!(summary["top"][0]["name"], "leaf", "{summary}");
}

/// Arguments, exit code, and what the message must name.
#[test]
fn what_can_not_be_is_said_and_said_early() {
    let dir = scratch();
    let unwritable = dir.path().join("no/such/folder/x.svg");
    let unwritable = unwritable.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 20] = [
        (&["record", "-d", "abc"], 64, "must be a time, such as 10s"),
        (&["record", "-p", "no-such-program"], 64, "no process is called \"no-such-program\""),
        (&["record", "-p", ""], 64, "must be a pid, a program's name or a JVM's main class"),
        (&["record", "-p", "-5"], 64, "must be a pid, a program's name or a JVM's main class"),
        (&["record", "--", ""], 64, "no command behind --"),
        (&["record", "--"], 64, "no command behind --"),
        (&["record", "-e", "locks"], 64, "must be cpu (CPU time), alloc"),
        (&["record", "-e", "wall"], 64, "-e wall needs processes"),
        (&["record", "--thread-kind", "gc,jit"], 64, "values: java, virtual, gc, compiler, vm, native]"),
        (&["record", "--json=/no/folder/x", "--", "true"], 64, "cannot write /no/folder/x"),
        (&["record", "-d", "1s", "-o", "/proc/x.svg"], 64, "cannot write /proc/x.svg: "),
        (&["inspect", "1", "--pc", "zz"], 64, "must be an address such as 0x7f1234abcd"),
        (&["inspect", "no-such-program"], 64, "no process is called \"no-such-program\""),
        (&["record", "-p", "4194305", "-o", "x.svg"], 64, "there is no process 4194305"),
        (&["record", "-d", "1s", "-o", "x.png"], 64, ".pb.gz (pprof), .folded, .svg, .html"),
        (&["record", "-d", "1s", "-o", unwritable], 64, unwritable),
        (&["record", "-F", "0", "-o", "x.svg"], 64, "0 is not in 1..=20000"),
        (&["record", "--no-such-flag"], 64, "--no-such-flag"),
        (&["inspect", "4194305"], 64, "there is no process 4194305"),
        (&["daemon", "--remote-store-address", "not an address"], 64, "not an address"),
    ];
    for (args, code, message) in cases {
        let output = jvmprof().args(args).current_dir(dir.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert!(!stderr.contains(".jvmprof-"), "a temporary name means nothing to anybody: {stderr}");
    }
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was left behind");
}

/// As with `jvmprof inspect PID | head -1`.
#[test]
fn who_reads_may_have_had_enough() {
    let pid = std::process::id().to_string();
    for args in [&["inspect", &pid][..], &["doctor"], &["record", "--json", "--", "true"]] {
        let mut command = jvmprof();
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(!error.contains("panicked") && !error.contains("Broken pipe"), "{args:?}: {error}");
        // What `doctor` says depends on the host.
        assert!(ended.status.success() || args == ["doctor"], "{args:?}: {error}");
    }
}

#[test]
fn without_privileges_the_message_tells_what_to_do() {
    let dir = scratch();
    // The binary has to be reachable for a user who may not enter root's folders.
    let copy = dir.path().join("jvmprof");
    fs::copy(env!("CARGO_BIN_EXE_jvmprof"), &copy).unwrap();
    crate::support::open_to_all(dir.path());
    let run = |args: &str| {
        let command = format!("{} {args}", copy.display());
        std::process::Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--inh-caps=-all",
                "sh",
                "-c",
                &command,
            ])
            .output()
            .unwrap()
    };
    let recorded = run("record -d 1s --json");
    let stderr = String::from_utf8_lossy(&recorded.stderr);
    assert_eq!(recorded.status.code(), Some(1), "{stderr}");
    let said =
        "profiling needs CAP_BPF and CAP_PERFMON, which this process hasn't: run as root (sudo), or `setcap";
    assert!(stderr.contains(said) && stderr.contains("jvmprof doctor"), "{stderr}");
    assert!(!stderr.contains("os error"), "nothing is buried: {stderr}");
    let daemon = run("daemon");
    let stderr = String::from_utf8_lossy(&daemon.stderr);
    assert_eq!(daemon.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(said), "{stderr}");
    let unwritable = run("record -d 1s -o /x.svg");
    let stderr = String::from_utf8_lossy(&unwritable.stderr);
    assert!(!stderr.contains(".jvmprof-"), "{stderr}");
    let doctor = run("doctor");
    let stdout = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(1), "{stdout}");
    for needed in ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "setcap cap_bpf+ep"] {
        assert!(stdout.contains(needed), "{needed}: {stdout}");
    }
}
