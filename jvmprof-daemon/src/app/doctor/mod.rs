//! `jvmprof doctor`: what this kernel, these capabilities and these JVMs allow, and what to do
//! where something is missing.

mod capabilities;
mod kernel_checks;
mod running_jvms;

use std::fmt;
use std::io::IsTerminal;

use serde::Serialize;

use super::args::DoctorArgs;
use super::stdout::print_out;
use crate::sampler::ebpf::verifier_report::{ProgramReport, load_each};
use running_jvms::Jvm;

/// How much of the verifier's walk is shown.
const LOG_LINES: usize = 40;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Profiling works, with less to see.
    Degraded,
    /// Profiling doesn't work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What was found.
    found: String,
    /// The exact thing to do, where something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), fix: None }
    }

    fn new(name: &'static str, status: Status, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    /// The worst of all checks.
    status: Status,
    checks: Vec<Check>,
    /// Each kernel program as this kernel loads it, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    programs: Option<Vec<ProgramReport>>,
    jvms: Vec<Jvm>,
}

/// Runs the subcommand; the exit code tells whether profiling works.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let mut checks = kernel_checks::host_checks();
    checks.extend(capabilities::checks());
    checks.extend(kernel_checks::sampling_checks());
    let status = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    let programs = args.programs.then(|| load_each(&kernel_checks::idle())).transpose()?;
    let refused = programs.iter().flatten().filter(|program| program.refused.is_some()).count();
    let report = Report { status, checks, programs, jvms: running_jvms::find() };
    if args.json {
        print_out(&(serde_json::to_string(&report)? + "\n"))?;
    } else {
        print_out(&report.to_string())?;
    }
    if status == Status::Missing {
        anyhow::bail!("profiling doesn't work here: see what is marked as missing");
    }
    if refused > 0 {
        anyhow::bail!("this kernel refuses {refused} of the kernel programs");
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let color = std::io::stdout().is_terminal();
        for check in &self.checks {
            let (mark, code) = match check.status {
                Status::Ok => ("ok      ", 32),
                Status::Degraded => ("degraded", 33),
                Status::Missing => ("missing ", 31),
            };
            let mark = if color { format!("\x1b[{code}m{mark}\x1b[0m") } else { mark.to_owned() };
            writeln!(f, "{mark}  {:<22} {}", check.name, check.found)?;
            if let Some(fix) = &check.fix {
                writeln!(f, "{:34}do: {fix}", "")?;
            }
        }
        if let Some(programs) = &self.programs {
            show_programs(programs, f)?;
        }
        if self.jvms.is_empty() {
            writeln!(f, "\nno running JVM was found")?;
        } else {
            writeln!(f, "\nrunning JVMs:")?;
        }
        self.jvms.iter().try_for_each(|jvm| write!(f, "{jvm}"))
    }
}

fn show_programs(programs: &[ProgramReport], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n{:<16} instructions  verified  machine code  load", "kernel program")?;
    for program in programs {
        let ProgramReport { name, instructions, verified, jited_bytes, load_ms, refused } = program;
        match refused {
            None => {
                writeln!(
                    f,
                    "{name:<16} {instructions:>12} {verified:>9} {jited_bytes:>11} B  {load_ms:.0} ms"
                )?;
            }
            Some(refusal) => {
                writeln!(f, "{name:<16} refused: {}", refusal.error.trim_end())?;
                let lines: Vec<&str> = refusal.log.lines().collect();
                let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
                end.iter().try_for_each(|line| writeln!(f, "  | {line}"))?;
            }
        }
    }
    Ok(())
}
