//! Real programs under load: their stacks are whole, and say what `perf` says. Needs root, gcc,
//! g++, musl-gcc, rustc, go, node, python3, perf and the JDKs of `JVMPROF_TEST_JDKS`.
//! `JVMPROF_TEST_SAMPLES=10000` takes as many samples of each.

mod perf;
mod signals;
mod starts;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::support::processes::until_it_has_run;
use crate::support::{Workload, compile_java_for, go_cache, jdks, record_json, scratch};
use perf::{CallGraph, Load};
use serde_json::Value;

/// One load at a time: each has two busy threads.
static TURN: Mutex<()> = Mutex::new(());

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/whole_stacks/programs").join(name)
}

/// Compiles one of the programs: `compiler flags... -o directory/program source`.
fn build(directory: &Path, compiler: &str, flags: &[&str], file: &str) -> PathBuf {
    let program = directory.join("program");
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(&program).arg(source(file)).current_dir(directory);
    command.env("GOCACHE", go_cache()).env("GOFLAGS", "").env("CGO_ENABLED", "0");
    let status = command.status().unwrap_or_else(|error| panic!("this test runs {compiler}: {error}"));
    assert!(status.success(), "{compiler} {flags:?} {file}");
    program
}

/// Samples a load until there are enough, and looks at what isn't whole.
fn check(name: &str, program: &Path, arguments: &[&str]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = std::env::var("JVMPROF_TEST_SAMPLES").ok().and_then(|text| text.parse().ok());
    let wanted: u64 = wanted.unwrap_or(1_500);
    let load = Workload::start(program, arguments);
    // Starts are another test's.
    until_it_has_run(load.pid(), Duration::from_millis(500));
    let pid = load.pid().to_string();
    let (mut samples, mut whole, mut losses) = (0, 0, Vec::new());
    while samples < wanted {
        let summary = record_json(&["-p", &pid, "-F", "999", "-d", "3s"]);
        let number = |key: &str| summary[key].as_u64().expect("a number");
        samples += number("samples");
        whole += number("complete");
        let cut = |(reason, _): &(&String, &Value)| reason.starts_with("truncated");
        let lost = summary["losses"].as_object().into_iter().flatten().filter(cut);
        losses.extend(lost.map(|(reason, count)| format!("{reason}: {count}")));
    }
    let cut = samples - whole;
    println!("{name}: {whole} of {samples} whole, {:.3} % {losses:?}", 100.0 * whole as f64 / samples as f64);
    // A few samples more or less are chance.
    assert!(cut <= 3 + samples / 1000, "{name}: {cut} of {samples} are cut: {losses:?}");
}

#[test]
fn stacks_of_c_without_frame_pointers_are_whole() {
    let directory = scratch();
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread", "-s"];
    check("C", &build(directory.path(), "gcc", &flags, "load.c"), &[]);
}

#[test]
fn stacks_of_cxx_that_throws_are_whole() {
    let directory = scratch();
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread", "-s"];
    check("C++", &build(directory.path(), "g++", &flags, "load.cc"), &[]);
}

/// Frames are removed without end.
#[test]
fn stacks_of_cxx_that_does_nothing_but_throw_are_whole() {
    for frame_pointer in ["-fomit-frame-pointer", "-fno-omit-frame-pointer"] {
        let directory = scratch();
        let flags = ["-O2", frame_pointer, "-pthread", "-s", "-DTHROW_ONLY"];
        check(&format!("C++ {frame_pointer}"), &build(directory.path(), "g++", &flags, "load.cc"), &[]);
    }
}

#[test]
fn stacks_of_static_musl_are_whole() {
    for strip in ["-g0", "-s"] {
        let directory = scratch();
        let flags = ["-O2", "-fomit-frame-pointer", "-static", strip];
        check(&format!("musl {strip}"), &build(directory.path(), "musl-gcc", &flags, "load.c"), &[]);
    }
}

#[test]
fn stacks_of_rust_are_whole() {
    let directory = scratch();
    check("Rust", &build(directory.path(), "rustc", &["-O", "--edition=2021"], "load.rs"), &[]);
}

#[test]
fn stacks_of_go_are_whole() {
    for flags in
        [&["build"][..], &["build", "-ldflags=-s -w"], &["build", "-ldflags=-s -w", "-buildmode=pie"]]
    {
        let directory = scratch();
        check(&format!("go {flags:?}"), &build_go(directory.path(), flags), &[]);
    }
}

/// Goroutines that call C, which calls Go, and so on.
#[test]
fn stacks_of_go_that_c_calls_are_whole() {
    let directory = scratch();
    let program = directory.path().join("program");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg(source("cgo/main.go")).arg(source("cgo/callback.go"));
    command.env("GOCACHE", go_cache()).env("GOFLAGS", "").env("CGO_ENABLED", "1");
    assert!(command.status().expect("this test runs go").success(), "go build");
    check("cgo", &program, &[]);
}

fn build_go(directory: &Path, flags: &[&str]) -> PathBuf {
    build(directory, "go", flags, "load.go")
}

#[test]
fn stacks_of_node_are_whole() {
    check("node", Path::new("/usr/bin/node"), &[&source("load.js").to_string_lossy()]);
}

#[test]
fn stacks_of_cpython_are_whole() {
    check("CPython", Path::new("/usr/bin/python3"), &[&source("load.py").to_string_lossy()]);
}

#[test]
fn stacks_of_a_jvm_under_collection_and_compilation_are_whole() {
    let directory = scratch();
    let text = std::fs::read_to_string(source("Load.java")).expect("the load's source");
    let classes = compile_java_for(17, directory.path(), "Load", &text);
    for (feature, home) in jdks().into_iter().filter(|(feature, _)| *feature >= 17) {
        let classes = classes.to_string_lossy();
        let arguments = ["-XX:+UseParallelGC", "-Xmx256m", "-cp", &classes, "Load"];
        check(&format!("JDK {feature}"), &home.join("bin/java"), &arguments);
    }
}

/// Functions by themselves and with what they call.
fn compare_with_perf(directory: &Path, load: &Load<'_>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    perf::compare(directory, load);
}

#[test]
fn functions_of_c_are_those_of_perf() {
    let directory = scratch();
    let flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
    compare_with_perf(directory.path(), &Load::of(&build(directory.path(), "gcc", &flags, "load.c")));
}

#[test]
fn functions_of_cxx_are_those_of_perf() {
    let directory = scratch();
    let flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
    compare_with_perf(directory.path(), &Load::of(&build(directory.path(), "g++", &flags, "load.cc")));
}

#[test]
fn functions_of_rust_are_those_of_perf() {
    let directory = scratch();
    let flags = ["-O", "-g", "--edition=2021"];
    compare_with_perf(directory.path(), &Load::of(&build(directory.path(), "rustc", &flags, "load.rs")));
}

/// Debian's is stripped: its exported functions have names, unless its debug file is installed.
#[test]
fn functions_of_cpython_are_those_of_perf() {
    let source = source("load.py");
    let arguments = [&*source.to_string_lossy()];
    let load = Load { arguments: &arguments, ..Load::of(Path::new("/usr/bin/python3")) };
    compare_with_perf(scratch().path(), &load);
}

/// perf finds no callers of the code that V8 generates.
#[test]
fn functions_of_node_are_those_of_perf() {
    let source = source("load.js");
    let arguments = [&*source.to_string_lossy()];
    let load =
        Load { arguments: &arguments, last: &[perf::GENERATED], ..Load::of(Path::new("/usr/bin/node")) };
    compare_with_perf(scratch().path(), &load);
}

/// perf finds no callers by Go's `.debug_frame`; its frame pointers end where a goroutine's stack
/// grows.
#[test]
fn functions_of_go_are_those_of_perf() {
    let directory = scratch();
    let program = build_go(directory.path(), &["build"]);
    let call_graph = CallGraph::FramePointer;
    let load = Load { call_graph, last: &["runtime.morestack"], ..Load::of(&program) };
    compare_with_perf(directory.path(), &load);
}
