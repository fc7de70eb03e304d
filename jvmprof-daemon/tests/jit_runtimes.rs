//! Real runtimes that write what they generate: node and CPython, each by perf map and by jitdump.
#![allow(clippy::expect_used, reason = "a test ends by its first surprise")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use support::{record_json, scratch};

/// Stacks, root first, and how often each was seen.
type Stacks = Vec<(Vec<String>, u64)>;

fn record(directory: &Path, command: &[&str]) -> (Value, Stacks) {
    let output = directory.join("out.folded").display().to_string();
    let summary = record_json(&[&["-F", "499", "-o", &output, "--"], command].concat());
    let text = fs::read_to_string(&output).expect("a folded profile");
    let parse = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        (stack.split(';').map(str::to_owned).collect(), count.parse().expect("a number"))
    };
    (summary, text.lines().map(parse).collect())
}

/// Samples whose stack has this function.
fn inclusive(stacks: &Stacks, function: &str) -> u64 {
    let has = |frames: &[String]| frames.iter().any(|frame| frame == function);
    stacks.iter().filter(|(frames, _)| has(frames)).map(|(_, count)| count).sum()
}

fn unknown(stacks: &Stacks) -> u64 {
    inclusive(stacks, "[jit: unknown]")
}

/// The share of its samples that node's own profiler gives to a function and what it calls.
fn of_cpu_prof(profile: &Value) -> BTreeMap<String, f64> {
    let nodes = profile["nodes"].as_array().expect("nodes");
    let id = |value: &Value| value.as_u64().expect("an id");
    let mut parents = BTreeMap::new();
    let mut names = BTreeMap::new();
    for node in nodes {
        names.insert(id(&node["id"]), node["callFrame"]["functionName"].as_str().expect("a name"));
        for child in node["children"].as_array().into_iter().flatten() {
            parents.insert(id(child), id(&node["id"]));
        }
    }
    let samples = profile["samples"].as_array().expect("samples");
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for sample in samples {
        let mut at = Some(id(sample));
        let mut seen: Vec<&str> = Vec::new();
        while let Some(node) = at {
            seen.extend(names.get(&node).copied().filter(|name| !name.is_empty()));
            at = parents.get(&node).copied();
        }
        seen.sort_unstable();
        seen.dedup();
        for name in seen {
            *counts.entry(name.to_owned()).or_default() += 1.0 / samples.len() as f64;
        }
    }
    counts
}

/// One at a time: shares of time are compared with shares of CPU time.
static ALONE: Mutex<()> = Mutex::new(());

fn node(flags: &[&str]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    let script = directory.path().join("work.js");
    fs::write(&script, include_str!("jit/work.js")).expect("a script");
    let (own, script) = (directory.path().display().to_string(), script.display().to_string());
    let folder = format!("--cpu-prof-dir={own}");
    let log = format!("--logfile={own}/v8.log");
    let command = [
        &["node", "--cpu-prof", &folder, "--cpu-prof-name=own.cpuprofile", "--no-logfile-per-isolate", &log],
        flags,
        &[&script, "5000"],
    ]
    .concat();
    let (summary, stacks) = record(directory.path(), &command);
    let own = fs::read_to_string(directory.path().join("own.cpuprofile")).expect("node's own profile");
    let own = of_cpu_prof(&serde_json::from_str(&own).expect("JSON"));
    // Node's profiler knows its first thread only. On a busy machine the stacks of the first moments, before node's unwind
    // rows have been read, may not reach its begin.
    let functions = ["primes", "words", "square"];
    let is_first = |frames: &[String]| {
        frames.iter().any(|frame| frame.starts_with("node::Start") || functions.contains(&&**frame))
    };
    let all: u64 = stacks.iter().filter(|(frames, _)| is_first(frames)).map(|(_, count)| count).sum();
    assert!(all > 300, "{all} samples of node's first thread");
    println!("{flags:?}: {} samples, {}", summary["samples"], summary["losses"]);
    assert!(unknown(&stacks) * 100 <= all, "{} of {all} have unknown frames", unknown(&stacks));
    for function in functions {
        let (ours, theirs) = (inclusive(&stacks, function) as f64 / all as f64, own[function]);
        println!("  {function}: {:.1} % here, {:.1} % by --cpu-prof", ours * 100.0, theirs * 100.0);
        // They sample time, not CPU time: others on the machine make a difference.
        assert!(theirs > 0.05 && (ours - theirs).abs() < 0.08, "{function}: {ours}, {theirs}");
    }
}

#[test]
fn node_is_named_by_its_perf_map_as_by_its_own_profiler() {
    node(&["--perf-basic-prof"]);
    node(&["--perf-basic-prof", "--interpreted-frames-native-stack"]);
}

#[test]
fn node_is_named_by_its_jitdump_as_by_its_own_profiler() {
    node(&["--perf-prof", "--perf-prof-delete-file"]);
}

/// Whatever it was compiled with: most builds keep no frame pointers.
fn python(flag: &str) {
    let python = std::env::var("JVMPROF_TEST_PYTHON").expect("JVMPROF_TEST_PYTHON names a CPython");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    let script = directory.path().join("work.py");
    fs::write(&script, include_str!("jit/work.py")).expect("a script");
    let script = script.display().to_string();
    let (summary, stacks) = record(directory.path(), &[&python, "-X", flag, &script, "5"]);
    let (fib, total) = (inclusive(&stacks, "fib"), inclusive(&stacks, "Order.total"));
    println!("{} samples, {}: fib {fib}, Order.total {total}", summary["samples"], summary["losses"]);
    assert_eq!(unknown(&stacks), 0);
    assert!(fib + total > 100 && fib > 10 && total > 10);
    // The interpreter calls the module, which calls the function, which calls itself.
    let is_ours = |frames: &[String]| frames.iter().any(|frame| frame == "fib" || frame == "Order.total");
    for (frames, _) in stacks.iter().filter(|(frames, _)| is_ours(frames)) {
        assert!(frames.iter().any(|frame| frame == "<module>"), "{frames:?}");
        assert!(frames[0].contains("start") || frames[0].contains("main"), "{frames:?}");
    }
}

#[test]
#[ignore = "needs CPython 3.12 or later, which JVMPROF_TEST_PYTHON names"]
fn python_is_named_by_its_perf_map_and_its_stacks_are_whole() {
    python("perf");
}

#[test]
#[ignore = "needs CPython 3.13 or later, which JVMPROF_TEST_PYTHON names"]
fn python_is_named_by_its_jitdump_and_its_stacks_are_whole() {
    python("perf_jit");
}
