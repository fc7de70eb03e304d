//! The subcommands of `jvmprof`, one file each, and the pipeline they share.

mod budget;
pub mod cli;
mod collector;
mod containers;
mod counts;
mod daemon;
mod delivery;
mod doctor;
pub mod exec_gate;
mod inspect;
mod jvm;
pub mod memory;
mod native;
mod output;
pub mod pipeline;
mod record;
mod reload;
mod sampling;
mod schedule;
pub mod settings;
mod signals;
pub mod targets;
mod telemetry;
mod top;
mod upload;
mod waiting;
mod windows;

use std::io::{self, Write};
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::process::heap;
use crate::telemetry::log::{self, LogLimit};
use cli::{Cli, Command};
use settings::Loaded;

/// Exit code for a command line that can't be carried out as it is (`EX_USAGE` of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// A command line that parsed but asks for something that can't be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Runs a subcommand to its end.
pub fn run(loaded: Loaded) -> ExitCode {
    let Loaded { cli, resolved } = loaded;
    heap::keep_small();
    let log = log_to_stderr(&cli);
    let done = match cli.command {
        Command::Record(args) => record::run(args),
        Command::Daemon(args) => settings::run_daemon(&args, &resolved, log),
        Command::Collector(args) => collector::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jvmprof: {}", explain(error.as_ref()));
            if error.is::<UsageError>() { EXIT_USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

/// Writes a report to standard output. That its reader has had enough, as `head` has, is no error.
fn print_out(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// `--log-level` or `JVMPROF_LOG`; a daemon says what it does, a command only what goes wrong.
fn log_to_stderr(cli: &Cli) -> LogLimit {
    let level = cli.log_level.as_deref();
    let default = match cli.command {
        Command::Record(_) | Command::Doctor(_) | Command::Inspect(_) => "warn",
        Command::Daemon(_) | Command::Collector(_) => "info",
    };
    let filter = EnvFilter::new(level.unwrap_or(default));
    let limit = LogLimit::default();
    log::start(filter, cli.log_format, limit.clone());
    limit
}

/// Lines of the verifier's log that are worth reading.
const MAX_LINES: usize = 12;

/// An error with all its causes, each said once.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text.lines().take(MAX_LINES).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once_also_if_errors_repeat_it() {
        let io = std::io::Error::other("no room");
        let repeating = anyhow::Error::new(crate::sampler::SamplerError::Thread { source: io });
        let error = repeating.context("cannot sample");
        assert_eq!(
            explain(error.as_ref()),
            "cannot sample: starting the thread that empties the rings: no room"
        );
        let plain = std::fs::read("/nowhere/x").context("cannot read").expect_err("there is no such file");
        assert_eq!(explain(plain.as_ref()), "cannot read: No such file or directory (os error 2)");
    }
}
