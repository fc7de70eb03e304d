//! Reports on JVMs: inspect, doctor, labels. Needs root and the JDKs of `JVMPROF_TEST_JDKS`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::processes::{LONGEST_WAIT, let_it_run, until_it_has_run};
use crate::support::recording::{Recording, WALKS_STACKS};
use crate::support::{LOAD, Workload, compile_java, jdks, jvmprof, record_json, scratch};

fn start(home: &Path, classes: &Path, flags: &[&str], depth: &str) -> Workload {
    let mut args = vec!["-XX:+PreserveFramePointer", "-Xss8m"];
    args.extend(flags);
    args.extend(["-cp", classes.to_str().unwrap(), "Load", depth]);
    Workload::start(&home.join("bin/java"), &args)
}

/// Asks for a perf map until the JVM is up and its hot methods are compiled.
fn write_perf_map(home: &Path, pid: u32, until: &str) -> PathBuf {
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let deadline = Instant::now() + LONGEST_WAIT;
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
fn a_jvm_that_starts_and_ends_within_the_recording_keeps_its_samples() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
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

/// What `inspect --json` tells of a process.
fn inspect(pid: u32, more: &[&str]) -> serde_json::Value {
    let output = jvmprof().args(["inspect", &pid.to_string(), "--json"]).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn inspect_tells_what_a_jvm_is_made_of_and_what_is_at_an_address() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    for (feature, home) in jdks() {
        let args = ["-XX:+UseSerialGC", "-cp", classes.to_str().unwrap(), "Load", "0"];
        let load = Workload::start(&home.join("bin/java"), &args);
        let deadline = Instant::now() + LONGEST_WAIT;
        // Until its hot loop is compiled.
        let report = loop {
            let report = inspect(load.pid(), &[]);
            if report["jvm"]["nmethods"]["C2"].as_u64().is_some_and(|count| count > 0) {
                break report;
            }
            assert!(Instant::now() < deadline, "JDK {feature}: {report}");
            std::thread::sleep(Duration::from_millis(200));
        };
        let (jvm, labels) = (&report["jvm"], &report["labels"]);
        let version = if feature == 8 { "1.8.0_".to_owned() } else { feature.to_string() };
        assert!(labels["jvm_version"].as_str().unwrap().starts_with(&version), "JDK {feature}: {labels}");
        assert_eq!((&labels["runtime"], &labels["jvm_main_class"]), (&"jvm".into(), &"Load".into()));
        let flags = jvm["flags"].as_array().unwrap();
        let set = flags.iter().find(|flag| flag["name"] == "UseSerialGC").unwrap_or_else(|| panic!("{jvm}"));
        assert_eq!((&set["value"], &set["origin"]), (&"true".into(), &"command_line".into()));
        let threads = jvm["threads"].as_object().unwrap().values();
        assert!(threads.map(|count| count.as_u64().unwrap()).sum::<u64>() >= 5, "{jvm}");
        let heaps = jvm["code_heaps"].as_array().unwrap();
        assert!(heaps.iter().any(|heap| heap["used_bytes"].as_u64() > Some(0)), "{jvm}");
        // The first blob of a heap lies there, in one of them at least.
        let found = heaps.iter().any(|heap| {
            let at = format!("{:#x}", heap["start"].as_u64().unwrap() + 0x400);
            let place = inspect(load.pid(), &["--pc", &at]);
            place["place"]["code"]["blob"].as_str().is_some_and(|blob| !blob.is_empty())
        });
        assert!(found, "JDK {feature}: {jvm}");
    }
    let own = inspect(std::process::id(), &["--pc", "0x10"]);
    assert_eq!(own["jvm_problem"]["reason"], "not_hotspot");
    assert_eq!((&own["place"]["code"], &own["place"]["native"]), (&().into(), &().into()));
}

#[test]
fn a_recorded_jvm_has_labels_and_names_tell_how_methods_ran_if_that_is_asked_for() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    for (feature, home) in jdks() {
        let args = ["-cp", classes.to_str().unwrap(), "Load", "0"];
        let load = Workload::start(&home.join("bin/java"), &args);
        // The JVM has started.
        until_it_has_run(load.pid(), Duration::from_secs(1));
        let (pprof, folded) = (dir.path().join("x.pb.gz"), dir.path().join("x.folded"));
        let (pid, pprof, folded) =
            (load.pid().to_string(), pprof.to_str().unwrap(), folded.to_str().unwrap());
        let options = ["--java-frame-types", "-o", pprof, "-o", folded];
        let mut recording = Recording::start(&[&["-p", &pid][..], &options].concat());
        recording.wait_for(&[WALKS_STACKS]);
        let_it_run(load.pid(), Duration::from_secs(1));
        recording.end();
        let folded = fs::read_to_string(folded).unwrap();
        assert!(folded.contains("Load.main_[") && folded.contains("Load.hash_["), "JDK {feature}: {folded}");
        let raw =
            Command::new("go").args(["tool", "pprof", "-raw", pprof]).output().expect("the tests need go");
        let raw = String::from_utf8_lossy(&raw.stdout).into_owned();
        let version = if feature == 8 { "1.8.0_".to_owned() } else { feature.to_string() };
        for label in [
            "runtime:[jvm]".to_owned(),
            "jvm_main_class:[Load]".to_owned(),
            format!("jvm_version:[{version}"),
        ] {
            assert!(raw.contains(&label), "JDK {feature}: no {label} in {raw}");
        }
    }
}

#[test]
fn doctor_and_inspect_tell_of_a_running_jvm() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
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
    assert_eq!((&jvm["main_class"], &jvm["names_compiled_code"]), (&"Load".into(), &true.into()), "{jvm}");
    assert!(jvm["version"].as_str().unwrap().starts_with("17."), "{jvm}");
    assert!(jvm["stub_rows_percent"].as_f64().unwrap() > 95.0, "{jvm}");
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

/// Runs the program as a user without rights, who may enter its folder.
fn as_nobody(dir: &Path, args: &[&str]) -> std::process::Output {
    let program = dir.join("jvmprof");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_jvmprof"), &program).unwrap();
        crate::support::open_to_all(dir);
    }
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    setpriv.arg(program).args(args).output().expect("the tests need setpriv")
}

#[test]
fn who_may_not_look_is_told_so_instead_of_that_there_is_nothing() {
    let dir = scratch();
    let classes = compile_java(dir.path(), "Load", LOAD);
    let (_, home) = jdks().into_iter().next_back().unwrap();
    let load = start(&home, &classes, &[], "0");
    let pid = load.pid().to_string();
    let doctor = String::from_utf8_lossy(&as_nobody(dir.path(), &["doctor"]).stdout).into_owned();
    assert!(!doctor.contains("no JVM runs"), "{doctor}");
    assert!(
        doctor.contains("processes can't be looked at, and may be JVMs, for lack of CAP_SYS_PTRACE"),
        "{doctor}"
    );
    let java = doctor.lines().find_map(|line| line.trim().strip_prefix("called java: "));
    assert!(java.is_some_and(|pids| pids.split(", ").any(|it| it == pid)), "{pid}: {doctor}");

    let inspect = String::from_utf8_lossy(&as_nobody(dir.path(), &["inspect", &pid]).stdout).into_owned();
    assert!(
        inspect.contains("its memory and mappings can't be seen, for lack of CAP_SYS_PTRACE"),
        "{inspect}"
    );
    assert!(!inspect.contains("native"), "{inspect}");
    let output = as_nobody(dir.path(), &["inspect", &pid, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["hidden"].as_str().is_some_and(|fix| fix.contains("setcap cap_sys_ptrace")), "{report}");
    assert_eq!(report["labels"].get("runtime"), None, "{report}");

    let output = as_nobody(dir.path(), &["ps", "--json"]);
    let table: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(table["hidden"]["count"].as_u64() > Some(0), "{table}");
}

#[test]
fn a_jvm_is_listed_and_found_by_its_main_class() {
    let dir = scratch();
    let source = LOAD.replace("class Load", "class FoundByName");
    let classes = compile_java(dir.path(), "FoundByName", &source);
    let (feature, home) = jdks().into_iter().next_back().unwrap();
    let java = home.join("bin/java");
    let args = ["-XX:+UseSerialGC", "-Xmx300m", "-cp", classes.to_str().unwrap(), "FoundByName", "0"];
    let load = Workload::start(&java, &args);
    let deadline = Instant::now() + LONGEST_WAIT;
    let line = loop {
        let output = jvmprof().args(["ps", "--json"]).output().unwrap();
        let table: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let jvms = table["jvms"].as_array().unwrap().iter();
        let found =
            jvms.filter(|jvm| jvm["main_class"] == "FoundByName").find(|jvm| jvm["pid"] == load.pid());
        match found {
            Some(jvm) if jvm["cpu_percent"].as_f64() > Some(1.0) => break jvm.clone(),
            _ => assert!(Instant::now() < deadline, "{table}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(line["version"].as_str().unwrap().starts_with(&feature.to_string()), "{line}");
    let text = String::from_utf8(jvmprof().arg("ps").output().unwrap().stdout).unwrap();
    let row = text.lines().find(|line| line.contains("FoundByName")).unwrap_or_else(|| panic!("{text}"));
    assert!(text.contains("MAIN CLASS AND FLAGS"), "{text}");
    assert!(row.contains(" -XX:+UseSerialGC") && row.contains(" -XX:MaxHeapSize=300m"), "{text}");
    let heap = line["flags"].as_array().unwrap().iter().find(|flag| flag["name"] == "MaxHeapSize");
    assert_eq!(heap.map(|flag| &flag["value"]), Some(&(300 << 20).to_string().into()), "{line}");

    let summary = record_json(&["-p", "FoundByName", "-F", "499", "-d", "1s"]);
    assert!(summary["samples"].as_u64().unwrap() > 5, "{summary}");
    let _second = Workload::start(&java, &args);
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        let output = jvmprof().args(["inspect", "FoundByName"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(64) {
            assert!(stderr.contains("2 processes are called \"FoundByName\": choose by pid"), "{stderr}");
            assert!(stderr.contains(&load.pid().to_string()), "{stderr}");
            break;
        }
        assert!(Instant::now() < deadline, "the second JVM isn't seen: {stderr}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
