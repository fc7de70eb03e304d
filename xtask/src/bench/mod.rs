//! `cargo xtask bench`: costs of profiling on this machine, and a comparison with perf.
//!
//! These are ratios and counters rather than tests: the numbers depend on the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, bail};
use clap::ArgGroup;
use serde::{Deserialize, Serialize};

use self::jvm::JvmCost;
use self::perf::PerfComparison;
use crate::files;
use crate::paths;
use crate::run::{self, command_line, require_root, run};
use crate::setup::build;
use crate::zoo::JdkRequest;

mod collector;
mod compare_builds;
mod generated_code_names;
mod jvm;
mod perf;
mod slowdown;
mod statistics;
mod thread_context;
mod waits;

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("by_turns").args(["slowdown", "switches"])))]
#[command(group(ArgGroup::new("pushes").args(["collector", "traffic"])))]
pub(crate) struct BenchArgs {
    /// Measure only the loads in JVMs
    #[arg(long)]
    jvm: bool,
    /// Measure only the cost of reading perf maps and unwind rows
    #[arg(long, conflicts_with_all = ["jvm", "json"])]
    files: bool,
    /// Compare only the names of code that is generated in turn at one address: jvmprof, perf,
    /// profile-bee
    #[arg(long, conflicts_with_all = ["jvm", "files", "json"])]
    jit_alternate: bool,
    /// Compare only the cost of this older program and of the one to measure, by turns on one
    /// running JVM
    #[arg(long, conflicts_with_all = ["jvm", "files", "jit_alternate", "json"], value_name = "OLD")]
    compare: Option<PathBuf>,
    /// Measure only how much slower programs of some seconds are while the host is profiled
    #[arg(long, conflicts_with_all = ["jvm", "files", "jit_alternate", "compare", "json"])]
    slowdown: bool,
    /// Measure only what profiles of waits cost threads that wake one another, 100,000 times a
    /// second on each CPU
    #[arg(long, conflicts_with_all = ["jvm", "files", "jit_alternate", "compare", "json"])]
    switches: bool,
    /// Measure only a collector that daemons of several hosts push to, over TLS with a token
    #[arg(long, conflicts_with_all = ["jvm", "files", "jit_alternate", "compare", "slowdown", "switches", "json"])]
    collector: bool,
    /// Measure only what the daemon of one host sends a minute by each protocol, of CPU time and
    /// then of all events
    #[arg(long, conflicts_with_all = ["jvm", "files", "jit_alternate", "compare", "slowdown", "switches", "json"])]
    traffic: bool,
    /// Measure only what the contexts of threads cost a sample in the kernel, in so many pairs of
    /// recordings, without and with `--thread-context` by turns
    #[arg(
        long,
        conflicts_with_all = ["jvm", "files", "jit_alternate", "compare", "slowdown", "switches", "collector", "traffic", "json"],
        num_args = 0..=1,
        default_missing_value = "20",
        value_name = "PAIRS",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    thread_context: Option<u32>,
    /// Compare only what jvmprof, Java Flight Recorder and async-profiler say of the waits of a
    /// program that measures them itself, `--seconds` long
    #[arg(
        long,
        conflicts_with_all = [
            "jvm", "files", "jit_alternate", "compare", "slowdown", "switches", "collector", "thread_context", "json",
        ]
    )]
    waits: bool,
    /// A JDK of that program, got where it is missing; with its home if it isn't where xtask looks
    /// (repeatable) [default: 25]
    #[arg(long, requires = "waits", value_name = "N[=HOME]")]
    jdk: Vec<JdkRequest>,
    /// How long daemons push to the collector
    #[arg(long, default_value_t = 10, requires = "pushes", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Daemons, each of which is another host to the collector
    #[arg(long, default_value_t = 10, requires = "collector", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// JVMs that all of these daemons profile
    #[arg(long, default_value_t = 10, requires = "pushes", value_name = "N")]
    jvms: u32,
    /// Rounds, in each of which a program runs once alone and once beside each profiler
    #[arg(long, default_value_t = 20, requires = "by_turns", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Programs that are slowed down
    #[arg(
        long,
        requires = "slowdown",
        value_delimiter = ',',
        default_value = "compute",
        value_name = "KIND"
    )]
    workloads: Vec<slowdown::Workload>,
    /// Command of another profiler of the whole host, its words separated by spaces, in the same
    /// rounds (repeatable)
    #[arg(long = "peer", requires = "slowdown", value_name = "COMMAND")]
    peers: Vec<String>,
    /// The library of async-profiler, as an agent of the JVM in the same rounds
    #[arg(long, requires = "slowdown", value_name = "LIBRARY")]
    async_profiler: Option<PathBuf>,
    /// Measurements of each program at each frequency
    #[arg(long, default_value_t = 5, requires = "compare", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The program to measure [default: a release build of this checkout]
    #[arg(long, value_name = "PATH")]
    jvmprof: Option<PathBuf>,
    /// The program of profile-bee [default: the one on PATH, if there is one]
    #[arg(long, requires = "jit_alternate", value_name = "PATH")]
    profile_bee: Option<PathBuf>,
    /// Stack depths to measure, in frames
    #[arg(long, value_delimiter = ',', default_value = "20,100,1000", value_name = "FRAMES")]
    depths: Vec<u32>,
    /// Seconds of each recording
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Samples per second and CPU while the cost is measured; the comparison with perf is at 99
    #[arg(short = 'F', long, default_value_t = 499, value_name = "HZ")]
    frequency: u32,
    /// Leave the comparison with perf out
    #[arg(long)]
    no_perf: bool,
    /// Print one JSON object on stdout instead of the tables
    #[arg(long)]
    json: bool,
}

/// The part of `jvmprof record --json` that benchmarks need.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RecordSummary {
    pub(crate) samples: u64,
    /// Samples whose stack is whole.
    pub(crate) complete: u64,
    /// Samples with the labels of a request, where these were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thread_context_samples: Option<u64>,
    /// Lost samples by reason.
    pub(crate) losses: BTreeMap<String, u64>,
    pub(crate) kernel: KernelProgramStats,
    pub(crate) daemon: Daemon,
    pub(crate) top: Vec<Function>,
}

impl RecordSummary {
    /// Returns the run time of the kernel program per sample that it took.
    pub(crate) fn kernel_ns_per_sample(&self) -> Option<f64> {
        per(self.kernel.run_time_ns as f64, self.kernel.taken)
    }

    /// Returns the share of samples whose stack is whole.
    pub(crate) fn whole_percent(&self) -> f64 {
        self.complete as f64 * 100.0 / self.samples.max(1) as f64
    }

    /// Returns the CPU time after the first sample, per thousand samples.
    pub(crate) fn running_cpu_ms_per_1000_samples(&self) -> Option<f64> {
        let running = self.daemon.cpu_ms - self.daemon.startup_cpu_ms.unwrap_or(0.0);
        per(running * 1e3, self.samples)
    }
}

fn per(value: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| value / count as f64)
}

/// The kernel's own statistics of the perf-event program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KernelProgramStats {
    pub(crate) run_time_ns: u64,
    pub(crate) run_count: u64,
    /// Runs that took a sample. The others interrupted a process that isn't profiled, and cost next
    /// to nothing.
    pub(crate) taken: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Daemon {
    /// User and system time of all its threads.
    pub(crate) cpu_ms: f64,
    /// The part of it until the first sample; absent if there was none.
    pub(crate) startup_cpu_ms: Option<f64>,
    pub(crate) peak_rss_bytes: u64,
}

/// A function with its samples.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    #[serde(rename = "self")]
    pub(crate) own: u64,
    pub(crate) total: u64,
}

/// The cost at one depth.
#[derive(Debug, Serialize)]
struct Cost {
    depth: u32,
    /// Run time of the kernel program per sample that it took.
    kernel_ns_per_sample: Option<f64>,
    daemon_cpu_ms_per_1000_samples: Option<f64>,
    summary: RecordSummary,
}

#[derive(Debug, Serialize)]
struct BenchReport {
    jvms: Vec<JvmCost>,
    costs: Vec<Cost>,
    perf: Option<PerfComparison>,
}

pub(crate) fn main(args: &BenchArgs) -> anyhow::Result<()> {
    if args.files {
        return files();
    }
    require_root("measuring loads kernel programs")?;
    let jvmprof = args.jvmprof.clone().map_or_else(build::release, Ok)?;
    let folder = paths::target().join("bench");
    files::create_folder(&folder)?;
    if args.jit_alternate {
        return generated_code_names::compare(&jvmprof, args.profile_bee.as_deref(), &folder);
    }
    if args.collector {
        return collector::measure(args, &jvmprof, &folder);
    }
    if args.traffic {
        return collector::traffic::measure(args, &jvmprof, &folder);
    }
    if args.slowdown {
        return slowdown::measure(args, &jvmprof, &folder);
    }
    if args.switches {
        return slowdown::switches::measure(args, &jvmprof, &folder);
    }
    if args.waits {
        return waits::measure(args, &jvmprof);
    }
    if let Some(pairs) = args.thread_context {
        return thread_context::measure(pairs, args, &jvmprof, &folder);
    }
    if let Some(old) = &args.compare {
        return compare_builds::compare(old, &jvmprof, args.seconds, args.rounds, &folder);
    }
    let jvms = jvm::costs(&jvmprof, 3 * args.seconds, &folder)?;
    let depths = if args.jvm { &[][..] } else { &args.depths };
    let recurse = compile("recurse", &folder)?;
    let mut costs = Vec::new();
    for depth in depths {
        costs.push(cost(args, *depth, &jvmprof, &recurse)?);
    }
    let perf = match args.no_perf || args.jvm {
        true => None,
        false => Some(perf::compare(&jvmprof, &compile("mixed", &folder)?, args.seconds, &folder)?),
    };
    let report = BenchReport { jvms, costs, perf };
    if args.json {
        println!("{}", serde_json::to_string(&report).context("writing the report")?);
    } else {
        print(&report);
        if !args.jvm {
            files()?;
        }
    }
    Ok(())
}

/// Benchmarks of the daemon's own code, which print their tables themselves.
fn files() -> anyhow::Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["bench", "--locked", "--package", "jvmprof-daemon", "--bench", "jit", "--bench", "rows"]);
    run(cargo.current_dir(paths::workspace()))
}

/// Compiles a load with frame pointers; returns the program.
fn compile(name: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let program = folder.join(name);
    let source = paths::workspace().join("xtask/bench").join(name).with_extension("c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-Wall", "-Werror", "-pthread", "-fno-optimize-sibling-calls"]);
    // Both profilers walk frame pointers; without the second flag leaf functions have none, and
    // their callers are lost.
    gcc.args(["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-o"]);
    run(gcc.arg(&program).arg(&source)).context("compiling a load (Debian: gcc and libc6-dev)")?;
    Ok(program)
}

/// Profiles loads of this depth, one for each CPU, so that nearly every run of the kernel program
/// takes a stack.
fn cost(args: &BenchArgs, depth: u32, jvmprof: &Path, recurse: &Path) -> anyhow::Result<Cost> {
    let cpus = thread::available_parallelism().context("counting CPUs")?.get();
    // The loads outlive the recording, whose start takes a moment.
    let (depth_arg, lasts) = (depth.to_string(), (args.seconds + 5).to_string());
    let load = || LoadProcess::start(Command::new(recurse).args([&depth_arg, &lasts]));
    let loads = (0..cpus).map(|_| load()).collect::<anyhow::Result<Vec<LoadProcess>>>()?;
    let mut flags =
        vec!["-d".to_owned(), args.seconds.to_string(), "-F".to_owned(), args.frequency.to_string()];
    flags.extend(loads.iter().flat_map(|load| ["-p".to_owned(), load.pid().to_string()]));
    let summary = record(jvmprof, &flags)?;
    drop(loads);
    Ok(Cost {
        depth,
        kernel_ns_per_sample: summary.kernel_ns_per_sample(),
        daemon_cpu_ms_per_1000_samples: per(summary.daemon.cpu_ms * 1e3, summary.samples),
        summary,
    })
}

/// A load that ends with this value.
#[derive(Debug)]
pub(crate) struct LoadProcess(Child);

impl LoadProcess {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let line = command_line(command);
        eprintln!("$ {line} &");
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        Ok(Self(child.with_context(|| format!("starting `{line}`"))?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        use nix::sys::signal::{Signal, killpg};
        if let Ok(group) = i32::try_from(self.0.id()) {
            // Ended already is as good.
            let _ = killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs `jvmprof record --json` with these arguments.
pub(crate) fn record(jvmprof: &Path, args: &[String]) -> anyhow::Result<RecordSummary> {
    record_by(Command::new(jvmprof), args)
}

/// Runs this command with `record --json` and these arguments behind it.
fn record_by(mut command: Command, args: &[String]) -> anyhow::Result<RecordSummary> {
    command.args(["record", "--json"]).args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    let line = command_line(&command);
    eprintln!("$ {line}");
    let output = command.output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("parsing the output of `{line}`: {}", String::from_utf8_lossy(&output.stdout).trim())
    })
}

fn print(report: &BenchReport) {
    jvm::print(&report.jvms);
    if report.costs.is_empty() {
        return;
    }
    println!("\n depth  samples  whole %   lost  kernel ns/sample  daemon ms/1000  startup ms  peak MiB");
    for cost in &report.costs {
        let summary = &cost.summary;
        println!(
            "{:>6} {:>8} {:>8.2} {:>6} {:>17} {:>15} {:>11} {:>9.1}",
            cost.depth,
            summary.samples,
            summary.whole_percent(),
            summary.losses.values().sum::<u64>(),
            number(cost.kernel_ns_per_sample),
            number(cost.daemon_cpu_ms_per_1000_samples),
            number(summary.daemon.startup_cpu_ms),
            summary.daemon.peak_rss_bytes as f64 / f64::from(1 << 20),
        );
        for (reason, count) in &summary.losses {
            println!("        lost: {count} {reason}");
        }
    }
    if let Some(comparison) = &report.perf {
        comparison.print();
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_record_is_read() {
        let text = r#"{"samples":10,"complete":9,"losses":{"ring buffer full":1},"extra":0,
            "kernel":{"run_time_ns":100,"run_count":12,"taken":10},
            "daemon":{"cpu_ms":1.5,"startup_cpu_ms":null,"peak_rss_bytes":4096},
            "top":[{"name":"main","self":3,"total":10}]}"#;
        let summary: RecordSummary = serde_json::from_str(text).unwrap();
        assert_eq!(summary.losses["ring buffer full"], 1);
        assert_eq!(summary.top, [Function { name: "main".to_owned(), own: 3, total: 10 }]);
    }
}
