//! The subcommands of `jvmprof`, one folder or file each, and the modules that they share.
//!
//! [`args`] is the command line, [`settings`] completes it by the environment and the file. The
//! subcommands are `record` and in its folder `top`, `daemon`, `collector`, `ui` and in its folder
//! `diff`, `doctor`, `ps` (in `jvms`) and `inspect`; the other modules are used by several of them.

pub mod args;
mod collector;
mod completions;
mod daemon;
mod doctor;
mod errors;
mod inspect;
mod jvms;
mod native_options;
mod pipeline_options;
mod record;
pub mod settings;
mod shutdown_signals;
mod stdout;
mod ui;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::own_process::{allocator, stderr_line};
use crate::telemetry::log::{self, LogRateLimit};
use args::{Cli, Command};
use errors::{exit_code, with_causes};
use settings::Invocation;

pub use errors::EXIT_USAGE;
pub use record::paused_command;

/// Runs a subcommand to its end.
pub fn run(invocation: Invocation) -> ExitCode {
    let Invocation { cli, settings } = invocation;
    allocator::configure_malloc();
    let log = log_to_stderr(&cli);
    let done = match cli.command {
        Command::Record(args) => record::run(*args),
        Command::Top(args) => record::top::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Daemon(args) => daemon::run(&args, &settings, log).map(|()| ExitCode::SUCCESS),
        Command::Collector(args) => collector::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => ui::diff::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ui(args) => ui::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => jvms::ps::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => inspect::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions::print(&args).map(|()| ExitCode::SUCCESS),
        Command::ManPages(args) => completions::write_man_pages(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        stderr_line!("jvmprof: {}", with_causes(error.as_ref()));
        exit_code(&error)
    })
}

/// Returns the filter that a level or filter of the user's stands for. At a level alone the loader
/// of kernel programs would log some thousand lines of its relocations first.
fn filter_text(text: &str) -> String {
    match text.parse::<LevelFilter>() {
        Ok(LevelFilter::DEBUG | LevelFilter::TRACE) => format!("{text},aya_obj=info"),
        _ => text.to_owned(),
    }
}

/// Starts logging at `--log-level` or `JVMPROF_LOG`: by default a daemon logs its work, a command
/// only what goes wrong.
fn log_to_stderr(cli: &Cli) -> LogRateLimit {
    let level = cli.log_level.as_deref();
    let default = match &cli.command {
        Command::Daemon(_) | Command::Collector(_) => "info",
        // Its screen is the same terminal.
        Command::Top(args) if !args.once && std::io::stderr().is_terminal() => "off",
        _ => "warn",
    };
    let filter = EnvFilter::new(filter_text(level.unwrap_or(default)));
    let limit = LogRateLimit::default();
    log::start(filter, cli.log_format, limit.clone());
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_alone_is_without_the_loaders_lines() {
        for (text, filter) in [
            ("debug", "debug,aya_obj=info"),
            ("TRACE", "TRACE,aya_obj=info"),
            ("info", "info"),
            ("off", "off"),
            ("debug,aya_obj=debug", "debug,aya_obj=debug"),
        ] {
            assert_eq!(filter_text(text), filter);
            EnvFilter::try_new(filter).expect("a filter");
        }
    }
}
