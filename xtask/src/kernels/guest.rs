//! The first process of a booted kernel: this same binary as `/init`. It runs the suite and writes
//! the results to the second serial port; the host evaluates them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, bail};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use serde_json::Value;

use super::report::{END, GuestStep, JVM_RECORDINGS, Java, JvmRecording, Recording, StepOutcome};
use crate::run::KillOnDrop;

/// Paths in the guest.
pub(super) const JVMPROF: &str = "/bin/jvmprof";
pub(super) const JDK: &str = "/jdk";
pub(super) const CLASSES: &str = "/classes";
/// Mount points.
pub(super) const FOLDERS: [&str; 4] = ["/proc", "/sys", "/dev", "/tmp"];

/// Line that the Java program prints once its code is compiled.
const WARM: &str = "warm";

const REPORT: &str = "/dev/ttyS1";

/// Returns whether this process is the first of a booted kernel.
pub(crate) fn is_called() -> bool {
    std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == "/init")
}

/// Runs the suite and switches the machine off. A panic on the way makes the kernel panic, which
/// the host sees.
pub(crate) fn main() -> ! {
    if let Err(error) = suite() {
        eprintln!("init: {error:#}");
    }
    let failed = reboot(RebootMode::RB_POWER_OFF);
    panic!("the machine can't be switched off: {failed:?}");
}

fn suite() -> anyhow::Result<()> {
    prepare()?;
    let mut report =
        OpenOptions::new().write(true).open(REPORT).with_context(|| format!("opening {REPORT}"))?;
    step(&mut report, "programs", doctor)?;
    for mode in JVM_RECORDINGS {
        step(&mut report, mode.name, || java(mode).map(StepOutcome::Java))?;
    }
    writeln!(report, "{END}").context("reporting the end")
}

fn prepare() -> anyhow::Result<()> {
    for (kind, at) in ["proc", "sysfs", "devtmpfs", "tmpfs"].into_iter().zip(FOLDERS) {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mounting {kind} at {at}"))?;
    }
    // An emulated CPU is so slow that the kernel would lower the rate of samples.
    let limit = "/proc/sys/kernel/perf_cpu_time_max_percent";
    fs::write(limit, "0").with_context(|| format!("writing {limit}"))
}

/// Runs a step and reports it.
fn step(
    report: &mut File,
    name: &str,
    work: impl FnOnce() -> anyhow::Result<StepOutcome>,
) -> anyhow::Result<()> {
    eprintln!("init: {name}");
    let started = Instant::now();
    let outcome = work().unwrap_or_else(|error| StepOutcome::Failed(format!("{error:#}")));
    let step = GuestStep { name: name.to_owned(), seconds: started.elapsed().as_secs_f64(), outcome };
    let line = serde_json::to_string(&step).with_context(|| format!("encoding the report of {name}"))?;
    writeln!(report, "{line}").and_then(|()| report.flush()).with_context(|| format!("reporting {name}"))
}

fn doctor() -> anyhow::Result<StepOutcome> {
    let args = ["doctor", "--programs", "--json"];
    let output = Command::new(JVMPROF).args(args).output().with_context(|| format!("starting {JVMPROF}"))?;
    // It fails where something is missing, but prints its results all the same.
    match serde_json::from_slice(&output.stdout) {
        Ok(found) => Ok(StepOutcome::Doctor(found)),
        Err(_) => bail!(
            "parsing the output of `jvmprof doctor` ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Starts a JVM and records it.
fn java(mode: &JvmRecording) -> anyhow::Result<Java> {
    let mut java = Command::new(Path::new(JDK).join("bin/java"));
    java.args(mode.flags).args(["-cp", CLASSES, "Chain"]).stdin(Stdio::null());
    let folded = "/tmp/out.folded";
    let mut record = Command::new(JVMPROF);
    record.args(["record", "--json", "-o", folded]);
    let summary = match mode.recording {
        Recording::Warm | Recording::Waits => {
            if mode.recording == Recording::Waits {
                record.args(["-e", "offcpu"]);
            }
            let mut jvm = KillOnDrop(java.stdout(Stdio::piped()).spawn().context("starting java")?);
            let stdout = jvm.0.stdout.take().context("java's output isn't there")?;
            let mut output = String::new();
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            if !lines.any(|line| {
                output = format!("{output}{line}\n");
                line == WARM
            }) {
                bail!("java ended before it was warm: {:?}\n{output}", jvm.0.wait());
            }
            run(record.args(["-d", "4s", "-p", &jvm.0.id().to_string()]))?
        }
        Recording::FromStart => {
            // It runs as long again as its start takes, however slow the machine is.
            let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let started = started.context("the clock is set to before 1970")?.as_millis();
            record.args(["-d", "120s", "--"]).arg(java.get_program()).args(java.get_args());
            run(record.arg(started.to_string()))?
        }
    };
    // The JVM writes there too, if it is the recording's.
    let summary = summary.lines().last().unwrap_or_default();
    let summary: Value = serde_json::from_str(summary).context("parsing the summary of `jvmprof record`")?;
    let folded = fs::read_to_string(folded).with_context(|| format!("reading {folded}"))?;
    Ok(Java { summary, folded })
}

/// Returns the command's standard output; its errors go to the console, and into the error if it
/// fails.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    if !output.status.success() {
        bail!("{command:?} failed: {}: {errors}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {command:?} as UTF-8"))
}
