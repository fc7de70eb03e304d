//! `jvmprof doctor`: checks what the kernel, the capabilities and the JVMs allow, and advises where
//! something is missing.

mod capabilities;
mod kernel_checks;

use std::fmt;
use std::io::IsTerminal;

use serde::Serialize;

use super::args::DoctorArgs;
use super::jvms::host_search::{self, RunningJvm};
use super::jvms::inaccessible_processes::InaccessibleProcesses;
use super::stdout::print_text_or_json;
use crate::sampler::ebpf::verifier_report::{ProgramReport, load_each};

/// Lines of the verifier's log that are shown.
const LOG_LINES: usize = 40;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    /// Profiling works, with less to see.
    Degraded,
    /// Profiling doesn't work.
    Missing,
}

/// A check of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HostCheck {
    name: &'static str,
    status: CheckStatus,
    /// The finding.
    found: String,
    /// The exact thing to do, where something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl HostCheck {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), fix: None }
    }

    fn new(
        name: &'static str,
        status: CheckStatus,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { name, status, found: found.into(), fix: Some(fix.into()) }
    }
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    /// The worst of all checks.
    status: CheckStatus,
    checks: Vec<HostCheck>,
    /// Each kernel program as this kernel loads it, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    programs: Option<Vec<ProgramReport>>,
    jvms: Vec<RunningJvm>,
    /// What can't be seen of the host's processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden: Option<InaccessibleProcesses>,
}

/// Runs the subcommand; the exit code says whether profiling works.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let mut checks = kernel_checks::host_checks();
    checks.extend(capabilities::checks());
    checks.extend(kernel_checks::sampling_checks());
    checks.push(kernel_checks::uprobes());
    let status = checks.iter().map(|check| check.status).max().unwrap_or(CheckStatus::Ok);
    let programs = args.programs.then(|| load_each(&kernel_checks::idle())).transpose()?;
    let refused = programs.iter().flatten().filter(|program| program.refused.is_some()).count();
    let report = DoctorReport {
        status,
        checks,
        programs,
        jvms: host_search::find(),
        hidden: InaccessibleProcesses::now(),
    };
    print_text_or_json(&report, args.json)?;
    if status == CheckStatus::Missing {
        anyhow::bail!("profiling doesn't work here: see what is marked as missing");
    }
    if refused > 0 {
        anyhow::bail!("this kernel refuses {refused} of the kernel programs");
    }
    Ok(())
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let color = std::io::stdout().is_terminal();
        for check in &self.checks {
            let (mark, code) = match check.status {
                CheckStatus::Ok => ("ok      ", 32),
                CheckStatus::Degraded => ("degraded", 33),
                CheckStatus::Missing => ("missing ", 31),
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
        match (&self.hidden, self.jvms.is_empty()) {
            (None, true) => writeln!(f, "\nno JVM runs")?,
            (Some(_), true) => writeln!(f, "\nno running JVM is to be seen:")?,
            (_, false) => writeln!(f, "\nrunning JVMs:")?,
        }
        self.jvms.iter().try_for_each(|jvm| write!(f, "{jvm}"))?;
        self.hidden.iter().try_for_each(|hidden| write!(f, "{hidden}"))
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
