//! `cargo xtask allocation`: are profiles of allocation true? A program that counts what it
//! allocates, on JDKs and collectors, recorded and compared by class and by path.

mod agents;
mod inside;
mod oracle;
mod recorded;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::command_line;
use crate::setup::build;
use crate::setup::installed_jdks;
use crate::zoo::{Jdk, JdkRequest};
use agents::Agent;
use inside::InsideSums;
use oracle::{HeaderBytes, OracleAllocations};
use recorded::RecordedAllocations;

/// Relative error that a share by class may have, beside what chance explains.
const CLASS_ERROR: f64 = 0.02;
/// The same by class and path.
const PATH_ERROR: f64 = 0.05;
/// The same of all bytes, against what the JVM says.
const TOTAL_ERROR: f64 = 0.01;
/// Share of all bytes that a class may have which the program doesn't count: one of objects that
/// aren't allocated once their method is compiled.
const UNEXPECTED_SHARE: f64 = 0.002;
/// The same below which it isn't printed.
const PRINTED_SHARE: f64 = 0.0001;
/// Standard deviations that chance explains.
const DEVIATIONS: f64 = 3.5;

#[derive(Debug, clap::Args)]
pub(crate) struct AllocationArgs {
    /// A JDK to run on, got where it is missing; with its home if it isn't where xtask looks
    /// (repeatable) [default: 11, 17, 21, 25 and the newest]
    #[arg(long, value_name = "N[=HOME]")]
    jdk: Vec<JdkRequest>,
    /// Options of the JVM, in one argument (repeatable) [default: each collector that the JDK has,
    /// and other layouts of objects]
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Threads that allocate
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: u32,
    /// How long each program runs
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    seconds: f64,
    /// Events that are kept a second
    #[arg(long, default_value_t = 250, value_name = "N")]
    max_events: u32,
    /// Record each so many times; the sums of all say whether errors are biased
    #[arg(long, default_value_t = 1, value_name = "N")]
    rounds: u32,
    /// Run each twice, with Java Flight Recorder and with async-profiler in the JVM, and print
    /// their errors, too
    #[arg(long)]
    agents: bool,
    /// The program under test [default: built from this checkout]
    #[arg(long, value_name = "FILE")]
    jvmprof: Option<PathBuf>,
}

/// Collectors and layouts, with the first JDK that has them.
const OPTIONS: [(u32, &str); 10] = [
    (8, "-XX:+UseG1GC"),
    (8, "-XX:+UseParallelGC"),
    (8, "-XX:+UseSerialGC"),
    (11, "-XX:+UnlockExperimentalVMOptions -XX:+UseZGC"),
    (17, "-XX:+UseShenandoahGC"),
    (11, "-XX:+UnlockExperimentalVMOptions -XX:+UseEpsilonGC -Xmx64g -XX:-AlwaysPreTouch"),
    (8, "-XX:+UseG1GC -XX:-UseCompressedOops"),
    (8, "-XX:+UseG1GC -XX:-UseCompressedClassPointers"),
    (8, "-XX:+UseG1GC -XX:-ResizeTLAB -XX:TLABSize=64k"),
    (25, "-XX:+UseG1GC -XX:+UseCompactObjectHeaders"),
];

pub(crate) fn main(args: &AllocationArgs) -> anyhow::Result<ExitCode> {
    let wanted: Vec<JdkRequest> = match args.jdk.is_empty() {
        true => [11, 17, 21, 25, 28].map(JdkRequest::version).into(),
        false => args.jdk.clone(),
    };
    let jvmprof = args.jvmprof.clone().map_or_else(build::release, Ok)?;
    let (mut wrong, mut inside) = (0, InsideSums::default());
    for jdk in &wanted {
        let jdk = jdk.ensure()?;
        let options: Vec<&str> = match args.options.is_empty() {
            true => OPTIONS.iter().filter(|(since, _)| *since <= jdk.feature).map(|(_, it)| *it).collect(),
            false => args.options.iter().map(String::as_str).collect(),
        };
        for options in options {
            // Epsilon frees nothing: its heap is full after some seconds.
            let seconds = if options.contains("Epsilon") { args.seconds.min(4.0) } else { args.seconds };
            let run = Run {
                jvmprof: &jvmprof,
                jdk: &jdk,
                options,
                threads: args.threads,
                seconds,
                max_events: args.max_events,
            };
            let agents = match args.agents {
                true => Agent::ensure_all(&folder()?)?.map(Some).to_vec(),
                false => vec![None],
            };
            for _ in 0..args.rounds {
                for agent in &agents {
                    wrong += usize::from(!run.compare(agent.as_ref(), &mut inside)?);
                }
            }
        }
    }
    inside.print();
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A short run for every commit.
///
/// # Errors
/// A recording fails, or isn't true.
pub(crate) fn smoke(jdks: &[installed_jdks::InstalledJdk], jvmprof: &Path) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for jdk in jdks {
        let request = format!("{}={}", jdk.feature, jdk.home.display());
        let jdk = request.parse::<JdkRequest>().map_err(anyhow::Error::msg)?.ensure()?;
        for options in ["-XX:+UseG1GC", "-XX:+UseParallelGC"] {
            // Of small classes the default keeps too few for any but the widest bounds.
            let run = Run { jvmprof, jdk: &jdk, options, threads: 2, seconds: 10.0, max_events: 4000 };
            if !run.compare(None, &mut InsideSums::default())? {
                wrong.push(format!("JDK {} {options}", jdk.feature));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("profiles of allocation that aren't true: {}", wrong.join(", "));
    }
    Ok(())
}

/// One recording of the oracle.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    jvmprof: &'a Path,
    jdk: &'a Jdk,
    options: &'a str,
    threads: u32,
    seconds: f64,
    max_events: u32,
}

impl Run<'_> {
    /// Records the oracle; prints what is found, adds it to sums of several recordings, and returns
    /// true if it is what was allocated.
    fn compare(self, agent: Option<&Agent>, inside: &mut InsideSums) -> anyhow::Result<bool> {
        let Self { jvmprof, jdk, options, max_events, .. } = self;
        let folded = folder()?.join(format!("{}.folded", jdk.feature));
        let mut command = Command::new(jvmprof);
        command.args(["record", "--json", "-e", "alloc", "--alloc-max-events", &max_events.to_string()]);
        command.arg("-o").arg(&folded).arg("--");
        command.args(jdk.words(&self.java_args(agent)?));
        let line = command_line(&command);
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || !text.contains("\nall\t") {
            let said = String::from_utf8_lossy(&output.stderr);
            let lacks = said.contains("Unrecognized VM option") || said.contains("not supported");
            if lacks {
                println!("JDK {} {options}: not here", jdk.feature);
                return Ok(true);
            }
            bail!("`{line}`: {said}{text}");
        }
        let allocated = OracleAllocations::parse(&text)?;
        let recorded = RecordedAllocations::read(&folded, text.lines().last().unwrap_or_default())?;
        let is_true = report(jdk, options, &allocated, &recorded);
        inside.add(&allocated, &recorded);
        if let Some(agent) = agent {
            report_errors(&allocated, &[("jvmprof", &recorded), (agent.name(), &agent.read(jdk)?)]);
        }
        Ok(is_true)
    }

    fn java_args(self, agent: Option<&Agent>) -> anyhow::Result<Vec<OsString>> {
        let Self { jdk, options, threads, seconds, .. } = self;
        let header = HeaderBytes::of(jdk.feature, &flags(jdk, options)?);
        let mut args: Vec<OsString> = options.split_whitespace().map(OsString::from).collect();
        if !options.contains("-Xmx") {
            args.push("-Xmx1g".into());
        }
        args.extend(agent.map(Agent::option));
        args.extend(header.properties().map(OsString::from));
        args.extend(["-cp".into(), compiled()?.into(), "Allocations".into()]);
        args.extend([threads.to_string(), seconds.to_string()].map(OsString::from));
        Ok(args)
    }
}

/// Returns the folder of what is recorded.
fn folder() -> anyhow::Result<PathBuf> {
    let folder = paths::target().join("allocation");
    files::create_folder(&folder)?;
    Ok(folder)
}

/// Prints the errors of shares by class, of several profilers side by side.
fn report_errors(allocated: &OracleAllocations, all: &[(&str, &RecordedAllocations)]) {
    let names: String = all.iter().map(|(name, _)| format!(" {name:>16}")).collect();
    println!("  {:44} {:>8}{names}", "errors of shares", "share");
    let own: u64 = allocated.kinds.iter().map(|kind| kind.bytes).sum();
    for (class, bytes, _) in allocated.classes() {
        let share = bytes as f64 / own as f64;
        let error = |(_, recorded): &(&str, &RecordedAllocations)| {
            let found = recorded.class(&class) as f64 / recorded.bytes.max(1) as f64;
            format!(" {:>+14.2} %", (found / share - 1.0) * 100.0)
        };
        let errors: String = all.iter().map(error).collect();
        println!("  {class:44} {:>7.3}%{errors}", share * 100.0);
    }
}

fn report(jdk: &Jdk, options: &str, allocated: &OracleAllocations, recorded: &RecordedAllocations) -> bool {
    println!(
        "JDK {} {options}: {:.1} GB, {} stacks (of equal weight: {}), {} censuses (beside {} screened){}",
        jdk.feature,
        allocated.jvm_bytes as f64 / 1e9,
        recorded.events,
        recorded.effective_events,
        recorded.censuses,
        recorded.screened_buffers,
        recorded.losses_text()
    );
    let total_error = recorded.bytes as f64 / allocated.jvm_bytes as f64 - 1.0;
    let mut is_true = total_error.abs() < TOTAL_ERROR;
    println!("  {:44} {:>8} {:>8} {:>+7.2} %", "all bytes", "", "", total_error * 100.0);
    let own: u64 = allocated.kinds.iter().map(|kind| kind.bytes).sum();
    let classes = allocated.classes();
    for (class, bytes) in recorded.unexpected(&classes) {
        let share = bytes as f64 / recorded.bytes.max(1) as f64;
        let is_right = share < UNEXPECTED_SHARE;
        is_true &= is_right;
        if share >= PRINTED_SHARE {
            let wrong = if is_right { "" } else { "  wrong" };
            println!("  {class:44} {:>8} {:>7.3}%{wrong}", "none", share * 100.0);
        }
    }
    let mut row = |name: &str, bytes: u64, seen: u64, least: f64, deviation: f64| {
        let (share, found) = (bytes as f64 / own as f64, seen as f64 / recorded.bytes.max(1) as f64);
        let error = found / share - 1.0;
        let is_right = error.abs() < least + DEVIATIONS * deviation;
        is_true &= is_right;
        println!(
            "  {name:44} {:>7.3}% {:>7.3}% {:>+7.2} % of {:.2} %{}",
            share * 100.0,
            found * 100.0,
            error * 100.0,
            (least + DEVIATIONS * deviation) * 100.0,
            if is_right { "" } else { "  wrong" }
        );
    };
    // What the recording itself states; nothing where it states none.
    let of_class = |class: &str| recorded.deviation(class).unwrap_or(0.0);
    for (class, bytes, _) in &classes {
        row(class, *bytes, recorded.class(class), CLASS_ERROR, of_class(class));
    }
    for kind in &allocated.kinds {
        let events = recorded.expected_events(kind.bytes as f64 / own as f64).max(1.0);
        let deviation = of_class(&kind.class) + 1.0 / events.sqrt();
        let name = format!("{} in {}", kind.class, kind.path);
        row(&name, kind.bytes, recorded.path(&kind.class, &kind.path), PATH_ERROR, deviation);
    }
    is_true
}

/// Returns the flags that a JVM with these options runs with, one a line.
fn flags(jdk: &Jdk, options: &str) -> anyhow::Result<String> {
    let options = options.split_whitespace().map(OsString::from);
    let words = jdk
        .words(&options.chain(["-XX:+PrintFlagsFinal", "-version"].map(OsString::from)).collect::<Vec<_>>());
    let mut command = Command::new(&words[0]);
    // A JVM that lacks one of the options says so again when it is recorded.
    let output = command.args(&words[1..]).stdin(Stdio::null()).output();
    Ok(String::from_utf8_lossy(&output.context("starting a JVM for its flags")?.stdout).into_owned())
}

/// Compiles the oracle, for the oldest JDK that it runs on.
fn compiled() -> anyhow::Result<PathBuf> {
    // Where JDKs with a file system of their own see it, too.
    let folder = paths::zoo_shared().join("allocation");
    installed_jdks::compile("allocation/Allocations.java", &folder)?;
    Ok(folder)
}
