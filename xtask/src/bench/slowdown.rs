//! How much slower a short JVM is while the host is profiled: wall time and its own CPU time, of
//! pairs of runs that follow each other.
//!
//! Before each run of a pair the machine rests for as long: one that follows other work at once is
//! slower by itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::{Load, jvm};
use crate::paths;
use crate::run::run;
use crate::setup::jdk::InstalledJdk;

/// Samples per second and CPU: the default, and one that shows what a sample costs.
const FREQUENCIES: [u32; 2] = [99, 999];
/// Rounds of the fixed work: some five to seven seconds.
const ROUNDS: &str = "520";
/// Rest before each run, in which the daemon starts.
const REST: Duration = Duration::from_secs(5);

/// One run of the program.
#[derive(Clone, Copy, Debug)]
struct RunTimes {
    wall: Duration,
    cpu: Duration,
    /// CPU time of the daemon meanwhile.
    daemon: Duration,
}

/// Runs pairs without and with a daemon, and prints mean differences with their standard errors.
///
/// # Errors
/// There is no JDK, or a program fails.
pub(super) fn measure(jvmprof: &Path, pairs: u32, folder: &Path) -> anyhow::Result<()> {
    let jdk = jvm::prepare(folder)?;
    let compiler = jdk.program("javac").context("that JDK has no javac")?;
    let source = paths::workspace().join("xtask/bench/jvm/FixedWork.java");
    run(Command::new(compiler).args(["-nowarn", "-d"]).arg(folder).arg(source))?;
    run_once(&jdk, folder)?;
    println!("  Hz  pairs  wall %          own CPU %       daemon's CPU, ms");
    for frequency in FREQUENCIES {
        let (mut wall, mut cpu, mut daemon) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..pairs {
            thread::sleep(REST);
            let alone = run_once(&jdk, folder)?;
            let profiled = run_profiled(jvmprof, frequency, &jdk, folder)?;
            wall.push(percent(alone.wall, profiled.wall));
            cpu.push(percent(alone.cpu, profiled.cpu));
            daemon.push(profiled.daemon.as_secs_f64() * 1e3);
        }
        let [wall, cpu, daemon] = [&wall, &cpu, &daemon].map(|values| mean_and_error(values));
        println!(
            "{frequency:>4} {pairs:>6}  {:>+5.1} +- {:<6.1} {:>+5.1} +- {:<6.1} {:>6.0} +- {:.0}",
            wall.0, wall.1, cpu.0, cpu.1, daemon.0, daemon.1
        );
    }
    Ok(())
}

fn run_once(jdk: &InstalledJdk, folder: &Path) -> anyhow::Result<RunTimes> {
    let before = cpu_of_children()?;
    let began = Instant::now();
    let mut java = Command::new(jdk.home.join("bin/java"));
    java.arg("-XX:+UseParallelGC").arg("-cp").arg(folder).args(["FixedWork", ROUNDS]);
    let status = java.stdout(Stdio::null()).status().context("running java")?;
    ensure!(status.success(), "java ended with {status}");
    let wall = began.elapsed();
    Ok(RunTimes { wall, cpu: cpu_of_children()? - before, daemon: Duration::ZERO })
}

fn run_profiled(
    jvmprof: &Path,
    frequency: u32,
    jdk: &InstalledJdk,
    folder: &Path,
) -> anyhow::Result<RunTimes> {
    let store = folder.join("slowdown-store");
    let mut command = Command::new(jvmprof);
    command.args(["daemon", "-F", &frequency.to_string(), "--local-store-directory"]).arg(&store);
    let daemon = Load::start(command.stderr(Stdio::null()))?;
    thread::sleep(REST);
    let before = cpu_of(daemon.pid())?;
    let times = run_once(jdk, folder)?;
    let daemon_cpu = cpu_of(daemon.pid())? - before;
    drop(daemon);
    fs::remove_dir_all(&store).with_context(|| format!("removing {}", store.display()))?;
    Ok(RunTimes { daemon: daemon_cpu, ..times })
}

fn cpu_of_children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("asking for the CPU time of children")?;
    Ok(duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
}

/// Returns the CPU time of a running process, by ticks of 10 ms.
fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |index: usize| fields.split_whitespace().nth(index).and_then(|it| it.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).with_context(|| format!("{path} has no times"))?;
    Ok(Duration::from_millis(10 * (user + system)))
}

fn percent(alone: Duration, profiled: Duration) -> f64 {
    (profiled.as_secs_f64() / alone.as_secs_f64() - 1.0) * 100.0
}

/// Returns the mean, and its standard error (0 for one value).
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_standard_errors() {
        let (mean, error) = mean_and_error(&[1.0, 3.0, 2.0, 2.0]);
        assert!((mean - 2.0).abs() < 1e-9 && (error - 0.408_248).abs() < 1e-5, "{mean} {error}");
        assert!(mean_and_error(&[5.0]).1.abs() < 1e-9);
        assert!((percent(Duration::from_secs(4), Duration::from_secs(5)) - 25.0).abs() < 1e-9);
    }

    #[test]
    fn a_process_has_cpu_time() {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(50) {}
        assert!(cpu_of(std::process::id()).expect("its own") > Duration::ZERO);
        assert!(cpu_of(u32::MAX).is_err());
    }
}
