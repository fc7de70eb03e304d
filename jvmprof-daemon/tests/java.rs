//! JVMs as they are profiled today: with frame pointers and a perf map. Needs root and the JDKs of `JVMPROF_TEST_JDKS`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Workload, jdks, jvmprof, record_json, scratch};

const LOAD: &str = r"
public class Load {
    static volatile long sink;
    static int hash(byte[] data) { int h = 7; for (byte b : data) h = h * 31 + b; return h; }
    static void outer(byte[] data) { for (int i = 0; i < 100; i++) sink += hash(data); }
    static int descend(int n) {
        if (n == 0) { long s = 0; for (int i = 0; i < 200000; i++) s += i * i; sink = s; return 1; }
        return descend(n - 1) + 1;
    }
    public static void main(String[] args) {
        int depth = Integer.parseInt(args[0]);
        byte[] data = new byte[100_000];
        while (true) if (depth > 0) descend(depth); else outer(data);
    }
}
";

/// Compiled by a JDK that has a compiler, for the oldest that is tested.
fn compile(dir: &Path) -> PathBuf {
    fs::write(dir.join("Load.java"), LOAD).unwrap();
    let javac = jdks().into_iter().map(|(_, home)| home.join("bin/javac")).find(|javac| javac.is_file());
    let javac = javac.expect("one of the JDKs needs a javac");
    let compiled =
        Command::new(javac).args(["--release", "11", "-d"]).arg(dir).arg(dir.join("Load.java")).status();
    assert!(compiled.unwrap().success());
    dir.to_owned()
}

fn start(home: &Path, classes: &Path, flags: &[&str], depth: &str) -> Workload {
    let mut args = vec!["-XX:+PreserveFramePointer", "-Xss8m"];
    args.extend(flags);
    args.extend(["-cp", classes.to_str().unwrap(), "Load", depth]);
    Workload::start(&home.join("bin/java"), &args)
}

/// Asks for a perf map until the JVM is up and its hot methods are compiled.
fn write_perf_map(home: &Path, pid: u32, until: &str) -> PathBuf {
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_secs(1));
        let asked = Command::new(home.join("bin/jcmd")).args([&pid.to_string(), "Compiler.perfmap"]).output();
        assert!(asked.is_ok(), "{} has no jcmd", home.display());
        if fs::read_to_string(&map).is_ok_and(|text| text.contains(until)) {
            return map;
        }
    }
    panic!("no {until} in {} after a minute", map.display());
}

#[test]
fn compiled_java_is_named_and_whole_down_to_the_threads_start() {
    let dir = scratch();
    let classes = compile(dir.path());
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 17) {
        let load = start(&home, &classes, &[], "0");
        let map = write_perf_map(&home, load.pid(), "Load.hash");
        let (pprof, folded) = (dir.path().join("x.pb.gz"), dir.path().join("x.folded"));
        let summary = record_json(&[
            "-p",
            &load.pid().to_string(),
            "-d",
            "3s",
            "-o",
            pprof.to_str().unwrap(),
            "-o",
            folded.to_str().unwrap(),
        ]);
        fs::remove_file(map).unwrap();
        let (samples, whole) = (summary["samples"].as_u64().unwrap(), summary["complete"].as_u64().unwrap());
        assert!(samples > 100, "JDK {feature}: {summary}");
        assert!(whole * 100 >= samples * 99, "JDK {feature}: {summary}");
        let folded = fs::read_to_string(folded).unwrap();
        let of_main: u64 = folded
            .lines()
            .filter(|line| line.contains("thread_native_entry") || line.contains("JavaMain"))
            .filter(|line| {
                line.contains("Load.main") || line.contains("Load.outer") || line.contains("Load.hash")
            })
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert!(of_main * 10 >= samples * 9, "JDK {feature}: {of_main} of {samples}\n{folded}");
        let top = support::go_pprof_top(&pprof);
        assert!(top.keys().any(|name| name.starts_with("Load.")), "JDK {feature}: {top:?}");
    }
}

#[test]
fn interpreted_recursion_1000_deep_is_whole() {
    let dir = scratch();
    let classes = compile(dir.path());
    for (feature, home) in jdks() {
        let load = start(&home, &classes, &["-Xint"], "1000");
        std::thread::sleep(Duration::from_secs(3));
        let folded = dir.path().join("x.folded");
        let summary =
            record_json(&["-p", &load.pid().to_string(), "-d", "2s", "-o", folded.to_str().unwrap()]);
        let (samples, whole) = (summary["samples"].as_u64().unwrap(), summary["complete"].as_u64().unwrap());
        assert!(samples > 50 && whole * 100 >= samples * 99, "JDK {feature}: {summary}");
        let deep: u64 = fs::read_to_string(folded)
            .unwrap()
            .lines()
            .filter(|line| line.matches("[unknown Java").count() >= 1000)
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert!(deep * 10 >= samples * 8, "JDK {feature}: {deep} of {samples}");
    }
}

#[test]
fn a_jvm_that_starts_and_ends_within_the_recording_keeps_its_samples() {
    let dir = scratch();
    let classes = compile(dir.path());
    let (_, home) = jdks().into_iter().next_back().unwrap();
    let java = home.join("bin/java");
    let summary = record_json(&[
        "--",
        java.to_str().unwrap(),
        "-XX:+PreserveFramePointer",
        "-cp",
        classes.to_str().unwrap(),
        "-version",
    ]);
    let (taken, samples) =
        (summary["kernel"]["taken"].as_u64().unwrap(), summary["samples"].as_u64().unwrap());
    assert!(samples > 0, "{summary}");
    assert_eq!(taken, samples, "{summary}");
}

#[test]
fn doctor_and_inspect_tell_of_a_running_jvm() {
    let dir = scratch();
    let classes = compile(dir.path());
    let (_, home) = jdks().into_iter().find(|(feature, _)| *feature == 17).unwrap();
    let load = start(&home, &classes, &[], "0");
    let map = write_perf_map(&home, load.pid(), "Load.hash");
    let json = |args: &[&str]| -> serde_json::Value {
        let output = jvmprof().args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let doctor = json(&["doctor", "--json"]);
    let jvms = doctor["jvms"].as_array().unwrap();
    let jvm = jvms.iter().find(|jvm| jvm["pid"] == load.pid()).unwrap_or_else(|| panic!("{doctor}"));
    assert_eq!(jvm["frame_pointers"], true);
    assert!(jvm["perf_map_bytes"].as_u64().unwrap() > 1000, "{jvm}");
    let inspect = json(&["inspect", &load.pid().to_string(), "--json"]);
    fs::remove_file(map).unwrap();
    assert_eq!(inspect["labels"]["runtime"], "jvm");
    assert!(inspect["perf_map_entries"].as_u64().unwrap() > 100, "{inspect}");
    let libjvm = inspect["mappings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["path"].as_str().unwrap().ends_with("libjvm.so"));
    assert!(libjvm.unwrap()["symbols"].as_u64().unwrap() > 100, "{inspect}");
}
