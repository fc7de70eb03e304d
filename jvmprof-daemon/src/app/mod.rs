//! The subcommands of `jvmprof`, one folder or file each, and the modules that they share.
//!
//! [`args`] is the command line, [`settings`] completes it by the environment and the file. The
//! subcommands are `record`, `daemon`, `collector`, `doctor` and `inspect`; the other modules are
//! used by several of them.

pub mod args;
mod collector;
mod daemon;
mod debuginfod_client;
mod doctor;
mod errors;
mod inspect;
mod jvm_report;
mod pipeline_options;
mod record;
pub mod settings;
mod shutdown_signals;
mod stdout;

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use crate::own_process::allocator;
use crate::telemetry::log::{self, LogRateLimit};
use args::{Cli, Command};
use errors::{UsageError, with_causes};
use settings::Invocation;

pub use errors::EXIT_USAGE;
pub use record::paused_command;

/// Runs a subcommand to its end.
pub fn run(invocation: Invocation) -> ExitCode {
    let Invocation { cli, settings } = invocation;
    allocator::configure_malloc();
    let log = log_to_stderr(&cli);
    let done = match cli.command {
        Command::Record(args) => record::run(args),
        Command::Daemon(args) => daemon::run(&args, &settings, log),
        Command::Collector(args) => collector::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jvmprof: {}", with_causes(error.as_ref()));
            if error.is::<UsageError>() { EXIT_USAGE.into() } else { ExitCode::FAILURE }
        }
    }
}

/// Starts logging at `--log-level` or `JVMPROF_LOG`: by default a daemon logs its work, a command
/// only what goes wrong.
fn log_to_stderr(cli: &Cli) -> LogRateLimit {
    let level = cli.log_level.as_deref();
    let default = match cli.command {
        Command::Record(_) | Command::Doctor(_) | Command::Inspect(_) => "warn",
        Command::Daemon(_) | Command::Collector(_) => "info",
    };
    let filter = EnvFilter::new(level.unwrap_or(default));
    let limit = LogRateLimit::default();
    log::start(filter, cli.log_format, limit.clone());
    limit
}
