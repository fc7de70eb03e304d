//! The slowdown of programs of some seconds while the host is profiled: wall time and their own CPU
//! time, of rounds in which each program runs once alone and once beside each profiler.
//!
//! Before each run the machine rests for as long: one that follows other work at once is slower by
//! itself. The order changes from round to round, so that no profiler always comes first.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use self::profiler::Profiler;
use self::workload::PreparedWorkload;
use super::statistics::Summary;
use super::{BenchArgs, LoadProcess, jvm};
use crate::run::command_line;

mod profiler;
mod program_runs;
pub(super) mod switches;
mod workload;

pub(super) use self::workload::Workload;

/// Samples per second and CPU: the default, and one that shows what a sample costs.
const FREQUENCIES: [u32; 2] = [99, 999];
/// Rest before each run, in which a profiler starts.
const REST: Duration = Duration::from_secs(5);

/// One run of a program.
#[derive(Clone, Copy, Debug)]
struct RunTimes {
    wall: Duration,
    /// CPU time of the program and its children.
    cpu: Duration,
    /// CPU time of the profiler meanwhile; zero for one that is part of the program.
    profiler: Duration,
}

/// Differences of a profiler's runs to those without one.
#[derive(Debug, Default)]
struct Differences {
    wall_percent: Vec<f64>,
    cpu_percent: Vec<f64>,
    profiler_ms: Vec<f64>,
}

/// Runs the rounds and prints means and medians of the differences, with 95 % confidence intervals.
///
/// # Errors
/// There is no JDK, or a program fails.
pub(super) fn measure(args: &BenchArgs, jvmprof: &Path, folder: &Path) -> anyhow::Result<()> {
    let jdk = jvm::prepare(folder)?;
    let profilers = profiler::all(args, jvmprof, folder, &FREQUENCIES);
    for workload in &args.workloads {
        let prepared = PreparedWorkload::new(*workload, &jdk, folder)?;
        run_once(&prepared, &Profiler::None)?;
        let mut differences = BTreeMap::<usize, Differences>::new();
        for round in 0..args.pairs as usize {
            for (index, [wall, cpu, profiler_ms]) in run_round(&prepared, &profilers, round)? {
                let of_profiler = differences.entry(index).or_default();
                of_profiler.wall_percent.push(wall);
                of_profiler.cpu_percent.push(cpu);
                of_profiler.profiler_ms.push(profiler_ms);
            }
        }
        print(*workload, args.pairs, &profilers, &differences);
    }
    Ok(())
}

/// Returns each profiler's index and its differences in a round: wall time and CPU time in per cent
/// of the run without a profiler, and the profiler's own CPU time in milliseconds.
fn run_round(
    workload: &PreparedWorkload,
    profilers: &[Profiler],
    round: usize,
) -> anyhow::Result<Vec<(usize, [f64; 3])>> {
    let count = profilers.len();
    let order = (0..count).map(|place| (place + round) % count);
    let able = order.filter(|index| workload.is_one_jvm() || !profilers[*index].is_agent());
    let mut runs = BTreeMap::new();
    for index in able {
        runs.insert(index, run_once(workload, &profilers[index])?);
    }
    let alone = *runs.get(&profiler::NONE).context("no run without a profiler")?;
    runs.remove(&profiler::NONE);
    let difference = |run: RunTimes| {
        let own_ms = run.profiler.as_secs_f64() * 1e3;
        [percent(alone.wall, run.wall), percent(alone.cpu, run.cpu), own_ms]
    };
    Ok(runs.into_iter().map(|(index, run)| (index, difference(run))).collect())
}

fn run_once(workload: &PreparedWorkload, profiler: &Profiler) -> anyhow::Result<RunTimes> {
    let ((wall, cpu), profiler) = beside(profiler, |_| {
        let before = cpu_of_children()?;
        let mut command = workload.command(profiler.jvm_argument())?;
        let began = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status = status.with_context(|| format!("running `{}`", command_line(&command)))?;
        ensure!(status.success(), "`{}` ended with {status}", command_line(&command));
        Ok((began.elapsed(), cpu_of_children()? - before))
    })?;
    Ok(RunTimes { wall, cpu, profiler })
}

/// Starts a profiler, rests, and calls `run` with the id of the profiler's process, if it has one.
/// Returns what `run` does, and the CPU time of the profiler meanwhile.
fn beside<T>(
    profiler: &Profiler,
    run: impl FnOnce(Option<u32>) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Duration)> {
    let running = profiler.start()?;
    thread::sleep(REST);
    let before = running.as_ref().map(|it| cpu_of(it.pid())).transpose()?;
    let result = run(running.as_ref().map(LoadProcess::pid))?;
    let after = running.as_ref().map(|it| cpu_of(it.pid())).transpose();
    let after = after.with_context(|| format!("{profiler} has ended: run it by hand"))?;
    let cpu = after.zip(before).map_or(Duration::ZERO, |(after, before)| after - before);
    drop(running);
    profiler.clean_up()?;
    Ok((result, cpu))
}

fn print(
    workload: Workload,
    rounds: u32,
    profilers: &[Profiler],
    differences: &BTreeMap<usize, Differences>,
) {
    println!("{workload}, {rounds} rounds: mean +- its 95 % interval (median)");
    println!("{:<24}{:>26}{:>26}{:>22}", "", "wall time, %", "its own CPU, %", "profiler's CPU, ms");
    for (index, of_profiler) in differences {
        let [wall, cpu, own] =
            [&of_profiler.wall_percent, &of_profiler.cpu_percent, &of_profiler.profiler_ms]
                .map(|values| Summary::of(values));
        let (wall, cpu) = (wall.to_string(), cpu.to_string());
        let own = format!("{:.0} +- {:.0}", own.mean, own.half_interval);
        println!("{:<24}{wall:>26}{cpu:>26}{own:>22}", profilers[*index].to_string());
    }
}

fn cpu_of_children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("asking for the CPU time of children")?;
    Ok(duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
}

/// Returns the CPU time of all threads of a running process, as the scheduler counts it.
fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = Duration::ZERO;
    // A process that has ended and wasn't waited for has a thread without a time.
    ensure!(Path::new(&format!("/proc/{pid}/exe")).exists(), "process {pid} has ended");
    for thread in std::fs::read_dir(&folder).with_context(|| format!("listing {folder}"))? {
        let path = thread.with_context(|| format!("listing {folder}"))?.path().join("schedstat");
        // A thread that has ended meanwhile took little.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let running = text.split_whitespace().next().and_then(|it| it.parse().ok());
        sum += Duration::from_nanos(running.with_context(|| format!("{} has no time", path.display()))?);
    }
    Ok(sum)
}

fn percent(alone: Duration, profiled: Duration) -> f64 {
    (profiled.as_secs_f64() / alone.as_secs_f64() - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_in_per_cent_of_the_run_alone() {
        assert!((percent(Duration::from_secs(4), Duration::from_secs(5)) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn a_process_has_cpu_time() {
        let before = cpu_of(std::process::id()).expect("its own");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(50) {}
        assert!(cpu_of(std::process::id()).expect("its own") > before);
        assert!(cpu_of(u32::MAX).is_err());
    }
}
