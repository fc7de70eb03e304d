//! Costs of a JVM's samples. The loads are warmed up and profiled by pid, as the published figures
//! of other profilers were measured.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::{LoadProcess, RecordSummary, number, record};
use crate::files;
use crate::paths;
use crate::run::run;
use crate::setup::installed_jdks::{self, InstalledJdk};

/// Arguments of the loads; two threads each keep two CPUs busy.
const LOADS: [&str; 3] = ["mixed", "20", "100"];
/// Time after which the JIT compilers have done most of their work.
const WARM_UP: Duration = Duration::from_secs(8);

/// The cost of one load.
#[derive(Debug, Serialize)]
pub(super) struct JvmCost {
    load: &'static str,
    jdk: u32,
    /// Frames of a stack on average, kernel, native and inlined ones included.
    frames: f64,
    kernel_ns_per_sample: Option<f64>,
    /// Excludes the time before the first sample.
    daemon_cpu_ms_per_1000_samples: Option<f64>,
    summary: RecordSummary,
}

/// Profiles each load at 99 Hz.
pub(super) fn costs(jvmprof: &Path, seconds: u32, folder: &Path) -> anyhow::Result<Vec<JvmCost>> {
    let jdk = prepare(folder)?;
    LOADS.into_iter().map(|load| cost(jvmprof, &jdk, load, seconds, folder)).collect()
}

/// Compiles the load into `folder`; returns the JDK that runs it: 17, else the oldest.
///
/// # Errors
/// There is no JDK, or none has a compiler.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<InstalledJdk> {
    let jdks = installed_jdks::found();
    let Some(jdk) = jdks.iter().find(|jdk| jdk.feature == 17).or(jdks.first()) else {
        bail!("there is no JDK here (Debian: openjdk-17-jdk-headless)");
    };
    let compiler = jdks.iter().find_map(|jdk| jdk.program("javac")).context("no JDK here has a javac")?;
    let source = paths::workspace().join("xtask/bench/jvm/JvmLoad.java");
    run(Command::new(compiler).args(["-nowarn", "-d"]).arg(folder).arg(source))?;
    Ok(jdk.clone())
}

/// Starts a load that outlives a measurement of this length, and returns when it is warm.
pub(super) fn start_warm(
    jdk: &InstalledJdk,
    load: &str,
    seconds: u32,
    folder: &Path,
) -> anyhow::Result<LoadProcess> {
    let lasts = (u64::from(seconds) + WARM_UP.as_secs() + 10).to_string();
    let mut java = Command::new(jdk.home.join("bin/java"));
    let jvm = LoadProcess::start(java.arg("-cp").arg(folder).args(["JvmLoad", load, &lasts]))?;
    thread::sleep(WARM_UP);
    Ok(jvm)
}

fn cost(
    jvmprof: &Path,
    jdk: &InstalledJdk,
    load: &'static str,
    seconds: u32,
    folder: &Path,
) -> anyhow::Result<JvmCost> {
    let jvm = start_warm(jdk, load, seconds, folder)?;
    let stacks = folder.join(format!("{load}.folded"));
    let mut flags: Vec<String> = ["-F", "99", "-d"].map(str::to_owned).into();
    flags.extend([seconds.to_string(), "-p".to_owned(), jvm.pid().to_string()]);
    flags.extend(["-o".to_owned(), stacks.display().to_string()]);
    let summary = record(jvmprof, &flags)?;
    drop(jvm);
    let text = files::read_text(&stacks)?;
    Ok(JvmCost {
        load,
        jdk: jdk.feature,
        frames: mean_depth(&text),
        kernel_ns_per_sample: summary.kernel_ns_per_sample(),
        daemon_cpu_ms_per_1000_samples: summary.running_cpu_ms_per_1000_samples(),
        summary,
    })
}

/// Returns the mean number of frames of folded stacks, by samples.
fn mean_depth(folded: &str) -> f64 {
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let (mut frames, mut samples) = (0, 0);
    for (stack, count) in stacks {
        let count: u64 = count.parse().unwrap_or(0);
        frames += (stack.split(';').count() as u64) * count;
        samples += count;
    }
    frames as f64 / samples.max(1) as f64
}

pub(super) fn print(costs: &[JvmCost]) {
    println!(
        "\nJVM load  JDK  samples  whole %  frames  kernel ns/sample  daemon ms/1000  startup ms  peak MiB"
    );
    for cost in costs {
        let summary = &cost.summary;
        println!(
            "{:>8} {:>4} {:>8} {:>8.2} {:>7.1} {:>17} {:>15} {:>11} {:>9.1}",
            cost.load,
            cost.jdk,
            summary.samples,
            summary.whole_percent(),
            cost.frames,
            number(cost.kernel_ns_per_sample),
            number(cost.daemon_cpu_ms_per_1000_samples),
            number(summary.daemon.startup_cpu_ms),
            summary.daemon.peak_rss_bytes as f64 / f64::from(1 << 20),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_weighted_by_samples() {
        assert!((mean_depth("a;b;c 3\na 1\n") - 2.5).abs() < 1e-9);
        assert!(mean_depth("").abs() < 1e-9);
    }
}
