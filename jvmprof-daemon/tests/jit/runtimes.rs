//! Real runtimes that write what they generate, into perf maps and jitdumps: node, CPython,
//! wasmtime and .NET.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::recording::record_folded;
use crate::shares::{Shares, Stacks, of_cpu_prof};
use crate::support::scratch;
use serde_json::Value;

fn record(directory: &Path, command: &[&str]) -> (Value, Stacks) {
    record_at("499", directory, command)
}

fn record_at(frequency: &str, directory: &Path, command: &[&str]) -> (Value, Stacks) {
    let (summary, stacks) = record_folded(directory, frequency, command);
    let split = |(stack, count): (String, u64)| (stack.split(';').map(str::to_owned).collect(), count);
    (summary, stacks.into_iter().map(split).collect())
}

fn has(frames: &[String], function: &str) -> bool {
    frames.iter().any(|frame| frame == function)
}

/// Samples whose stack has this function.
fn inclusive(stacks: &Stacks, function: &str) -> u64 {
    stacks.iter().filter(|(frames, _)| has(frames, function)).map(|(_, count)| count).sum()
}

fn unknown(stacks: &Stacks) -> u64 {
    inclusive(stacks, "[jit: unknown]")
}

/// One at a time: shares of time are compared with shares of CPU time.
static ALONE: Mutex<()> = Mutex::new(());

/// Node's own profiler; not together with `--interpreted-frames-native-stack`, or it may wait for
/// itself for ever: its signal handler then takes a lock that the thread may hold.
const CPU_PROF: [&str; 2] = ["--cpu-prof", "--cpu-prof-name=own.cpuprofile"];

/// Runs a script in node, and gives what was seen here and by node's own profiler, if that was
/// asked for.
fn node(flags: &[&str], script: &str, args: &[&str]) -> (Stacks, Option<Stacks>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    fs::write(directory.path().join("script.js"), script).expect("a script");
    let command = [&["node"], flags, &["script.js"], args].concat();
    let (summary, stacks) = record(directory.path(), &command);
    println!("{flags:?}: {} samples, {}", summary["samples"], summary["losses"]);
    let own = fs::read_to_string(directory.path().join("own.cpuprofile")).ok();
    (stacks, own.map(|own| of_cpu_prof(&own)))
}

/// Runs three functions that take the same part of the time in each run. `own`: what node's own
/// profiler said of another run; gives what it said of this one.
fn small_functions(flags: &[&str], own: Option<Stacks>) -> Stacks {
    let (stacks, seen) = node(flags, include_str!("programs/work.js"), &["5000"]);
    let own = own.or(seen).expect("node's own profile");
    // Node's profiler knows its first thread only. On a busy machine the stacks of the first
    // moments, before node's unwind rows have been read, may not reach its begin.
    let functions = ["primes", "words", "square"];
    let is_first = |frames: &[String]| {
        frames.iter().any(|frame| frame.starts_with("node::Start") || functions.contains(&&**frame))
    };
    let (ours, theirs) = (Shares::of(&stacks, is_first), Shares::of(&own, |_| true));
    let unknown = unknown(&stacks);
    assert!(ours.all > 300, "{} samples of node's first thread", ours.all);
    assert!(unknown * 100 <= ours.all, "{unknown} of {} have unknown frames", ours.all);
    for function in functions {
        let (ours, theirs) = (ours.of_function(function), theirs.of_function(function));
        println!("  {function}: {:.1} % here, {:.1} % by --cpu-prof", ours * 100.0, theirs * 100.0);
        // They sample time, not CPU time: others on the machine make a difference.
        assert!(theirs > 0.05 && (ours - theirs).abs() < 0.08, "{function}: {ours}, {theirs}");
    }
    own
}

#[test]
fn node_is_named_by_its_perf_map_as_by_its_own_profiler() {
    let own = small_functions(&[CPU_PROF[0], CPU_PROF[1], "--perf-basic-prof"], None);
    small_functions(&["--perf-basic-prof", "--interpreted-frames-native-stack"], Some(own));
}

#[test]
fn node_is_named_by_its_jitdump_as_by_its_own_profiler() {
    small_functions(&[CPU_PROF[0], CPU_PROF[1], "--perf-prof"], None);
}

/// What `cargo xtask test` has fetched from npm and PyPI. Deep stacks of code that was generated
/// long before; V8 has told of none of the time since. For so many ms of CPU time.
const DEEP: &str = "
function leaf(n) { let h = 7; for (let i = 0; i < 2000; i++) h = Math.imul(h, 31) + i + n | 0; return h; }
function deeper(n) { return n === 0 ? leaf(n) : deeper(n - 1) + 1 | 0; }
let sum = 0;
while (process.cpuUsage().user < 5e6) for (let i = 0; i < 1000; i++) sum = sum + deeper(40) | 0;
console.error(sum !== 0);
";

#[test]
fn however_many_frames_wait_for_what_node_collects_they_all_get_their_names() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    fs::write(directory.path().join("deep.js"), DEEP).expect("a script");
    let command = ["node", "--perf-prof", "--perf-prof-delete-file", "deep.js"];
    let (summary, stacks) = record_at("997", directory.path(), &command);
    let deep: Stacks = stacks.into_iter().filter(|(frames, _)| has(frames, "deeper")).collect();
    let frames: u64 = deep.iter().map(|(frames, count)| frames.len() as u64 * count).sum();
    println!("{frames} frames in stacks of {}, {}", inclusive(&deep, "leaf"), summary["losses"]);
    assert!(frames > 80_000, "more than there is room for");
    assert_eq!(unknown(&deep), 0);
}

fn packages() -> PathBuf {
    let folder = std::env::var("JVMPROF_TEST_PACKAGES");
    PathBuf::from(folder.expect("JVMPROF_TEST_PACKAGES names a folder with packages: run `cargo xtask test`"))
}

/// Thousands of functions, that are compiled, compiled better, and thrown away.
#[test]
#[ignore = "needs TypeScript, below the folder that JVMPROF_TEST_PACKAGES names"]
fn the_typescript_compiler_is_named_by_nodes_perf_map_as_by_nodes_own_profiler() {
    let package = packages().join("node_modules/typescript").display().to_string();
    // A function that is inlined or interpreted has a frame in node's own profile only.
    let flags = [CPU_PROF[0], CPU_PROF[1], "--perf-basic-prof", "--no-turbo-inlining", "--always-sparkplug"];
    let (stacks, own) = node(&flags, include_str!("programs/compiler.js"), &[&package, "6000"]);
    // Collecting garbage is no function's time in node's own profile.
    let is_ours = |frames: &[String]| {
        has(frames, "checkAll") && !frames.iter().any(|frame| frame.contains("CollectGarbage"))
    };
    let (ours, theirs) =
        (Shares::of(&stacks, is_ours), Shares::of(&own.expect("node's own profile"), is_ours));
    let unknown = unknown(&stacks);
    println!("  {} samples here, {} by --cpu-prof, {unknown} unknown", ours.all, theirs.all);
    assert!(ours.all > 500 && theirs.all > 1000);
    assert!(unknown * 100 <= ours.all, "{unknown} of {} have unknown frames", ours.all);
    let mut compared = Vec::new();
    // Some are no functions: `(root)`.
    for (function, their_share) in theirs.largest(50).into_iter().filter(|(name, _)| !name.starts_with('(')) {
        let (our_share, all) = (ours.of_function(function), (ours.all + theirs.all) as f64);
        let share = (our_share * ours.all as f64 + their_share * theirs.all as f64) / all;
        // Of the difference of two shares.
        let error = (share * (1.0 - share) * (1.0 / ours.all as f64 + 1.0 / theirs.all as f64)).sqrt();
        compared.push((function, our_share, their_share, error));
    }
    let within = |errors: f64, more: f64| {
        let is_within =
            |(_, ours, theirs, error): &&(_, f64, f64, f64)| (ours - theirs).abs() <= errors * error + more;
        compared.iter().filter(is_within).count()
    };
    let [two, three] = [2.0, 3.0].map(|errors| within(errors, 1e-9));
    println!("  of {} within 2 standard errors {two}, within 3 {three}", compared.len());
    // A moment in which others have the CPU is many samples of one function in node's own profile.
    assert_eq!(within(4.0, 0.02), compared.len(), "{compared:?}");
}

fn python() -> String {
    std::env::var("JVMPROF_TEST_PYTHON").expect("JVMPROF_TEST_PYTHON names a CPython")
}

/// Whatever it was compiled with: most builds keep no frame pointers.
fn functions_in_python(flag: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    fs::write(directory.path().join("work.py"), include_str!("programs/work.py")).expect("a script");
    let (summary, stacks) = record(directory.path(), &[&python(), "-X", flag, "work.py", "5"]);
    let (fib, total) = (inclusive(&stacks, "fib"), inclusive(&stacks, "Order.total"));
    println!("{} samples, {}: fib {fib}, Order.total {total}", summary["samples"], summary["losses"]);
    assert_eq!(unknown(&stacks), 0);
    assert!(fib + total > 100 && fib > 10 && total > 10);
    // The interpreter calls the module, which calls the function, which calls itself.
    for (frames, _) in stacks.iter().filter(|(frames, _)| has(frames, "fib") || has(frames, "Order.total")) {
        assert!(has(frames, "<module>"), "{frames:?}");
        assert!(frames[0].contains("start") || frames[0].contains("main"), "{frames:?}");
    }
}

#[test]
#[ignore = "needs CPython 3.12 or later, which JVMPROF_TEST_PYTHON names"]
fn python_is_named_by_its_perf_map_and_its_stacks_are_whole() {
    functions_in_python("perf");
}

#[test]
#[ignore = "needs CPython 3.13 or later, which JVMPROF_TEST_PYTHON names"]
fn python_is_named_by_its_jitdump_and_its_stacks_are_whole() {
    functions_in_python("perf_jit");
}

/// Two functions, each for a part of the time that is known: one that calls itself and one that
/// loops.
struct TwoFunctions {
    /// What calls them is called so, or has this in its name.
    entry: &'static str,
    names: [&'static str; 2],
    /// Percent of the samples that may hit code of which the runtime tells nothing.
    unknown_percent: u64,
}

const IN_WASM: TwoFunctions =
    TwoFunctions { entry: "array_to_wasm_trampoline", names: ["fib", "mix"], unknown_percent: 0 };
/// Seen: one sample of 1,585 in code that the map of .NET does not have.
const IN_DOTNET: TwoFunctions =
    TwoFunctions { entry: "Work.Main", names: ["Work.Fib", "Work.Mix"], unknown_percent: 1 };

impl TwoFunctions {
    fn is_seen(&self, frames: &[String]) -> bool {
        self.names.iter().any(|name| has(frames, name))
    }

    /// From the program's begin through the runtime to one loop, or to calls of one function by
    /// itself.
    fn is_whole(&self, frames: &[String]) -> bool {
        let entry = frames.iter().position(|frame| frame.contains(self.entry));
        let inner = &frames[entry.map_or(frames.len(), |at| at + 1)..];
        // The kernel, or a helper of the runtime, may be at the end.
        let [fib, mix] = self.names.map(|name| inner.iter().take_while(|frame| *frame == name).count());
        let is_begin = |frame: &String| frame.contains("start") || frame.contains("main");
        (fib > 0 || mix == 1) && frames.iter().take(3).any(is_begin)
    }

    /// Runs until both have their CPU time in the file `spent`.
    fn assert_shares(&self, directory: &Path, command: &[&str]) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (summary, stacks) = record(directory, command);
        let spent = fs::read_to_string(directory.join("spent")).expect("the program came to its end");
        let spent: Vec<f64> = spent.split_whitespace().map(|time| time.parse().expect("a number")).collect();
        let count = |stacks: &[&(Vec<String>, u64)]| stacks.iter().map(|(_, count)| count).sum::<u64>();
        let seen: Vec<_> = stacks.iter().filter(|(frames, _)| self.is_seen(frames)).collect();
        let cut: Vec<_> = seen.iter().copied().filter(|(frames, _)| !self.is_whole(frames)).collect();
        let all = count(&seen);
        let ours = inclusive(&stacks, self.names[0]) as f64 / all as f64;
        let theirs = spent[0] / (spent[0] + spent[1]);
        println!("{} samples, {all} of both, {} cut: {cut:?}", summary["samples"], count(&cut));
        println!("  {}: {ours:.3} here, {theirs:.3} by the program's clock", self.names[0]);
        assert!(unknown(&stacks) * 100 <= self.unknown_percent * all, "{} unknown", unknown(&stacks));
        assert!(all > 500, "{stacks:?}");
        // In a function's first instructions its caller is skipped.
        assert!(count(&cut) * 100 <= all, "{cut:?}");
        assert!((ours - theirs).abs() < 0.05, "{ours} here, {theirs} by the program's clock");
    }
}

fn wasm(profiler: &str) {
    let directory = scratch();
    fs::write(directory.path().join("wasm.py"), include_str!("programs/wasm.py")).expect("a script");
    let path = format!("PYTHONPATH={}", packages().join("python").display());
    IN_WASM.assert_shares(directory.path(), &["env", &path, &python(), "wasm.py", profiler, "3"]);
}

#[test]
#[ignore = "needs wasmtime, below the folder that JVMPROF_TEST_PACKAGES names"]
fn wasmtime_is_named_by_its_perf_map_and_its_stacks_are_whole() {
    wasm("perfmap");
}

#[test]
#[ignore = "needs wasmtime, below the folder that JVMPROF_TEST_PACKAGES names"]
fn wasmtime_is_named_by_its_jitdump_and_its_stacks_are_whole() {
    wasm("jitdump");
}

/// Of a distribution that is smaller than .NET's own: there is no library for languages.
const DOTNET_CONFIG: &str = r#"{ "runtimeOptions": {
    "framework": { "name": "Microsoft.NETCore.App", "version": "3.1.0" },
    "configProperties": { "System.Globalization.Invariant": true } } }"#;

#[test]
#[ignore = "needs mcs, and .NET below the folder that JVMPROF_TEST_PACKAGES names"]
fn dotnet_is_named_by_its_perf_map_and_its_stacks_are_whole() {
    let directory = scratch();
    let inside = |name: &str| directory.path().join(name);
    fs::write(inside("Work.cs"), include_str!("programs/Work.cs")).expect("a source file");
    fs::write(inside("Work.runtimeconfig.json"), DOTNET_CONFIG).expect("a configuration");
    let mut mcs = Command::new("mcs");
    let done = mcs.args(["-optimize+", "-out:Work.dll", "Work.cs"]).current_dir(directory.path()).status();
    assert!(done.expect("the tests need mcs").success());
    let dotnet = packages().join("python/dotnetcore2/bin/dotnet").display().to_string();
    // Its name before .NET 5.
    let command = ["env", "COMPlus_PerfMapEnabled=1", &dotnet, "Work.dll", "3"];
    IN_DOTNET.assert_shares(directory.path(), &command);
}
