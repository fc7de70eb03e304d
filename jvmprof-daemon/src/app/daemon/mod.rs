//! `jvmprof daemon`: profiles the host and pushes, until a signal ends it.

mod cpu_budget;
mod debug_file_uploads;
mod event_loop;
mod reload;
mod sinks;
mod telemetry;
mod window_schedule;

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;

use super::args::{Cli, DaemonArgs};
use super::errors::UsageError;
use super::settings::SCOPE;
use crate::config::{Resolved, Setting, Source, example};
use crate::own_process::thread_priority;
use crate::telemetry::log::LogLimit;

/// Answers what is asked of the settings, or starts the daemon.
pub(super) fn run(args: &DaemonArgs, resolved: &Resolved, log: LogLimit) -> anyhow::Result<()> {
    if args.config.example_config {
        std::io::stdout().write_all(example(Cli::command(), &SCOPE).as_bytes())?;
        return Ok(());
    }
    for text in &resolved.suspicious {
        tracing::warn!("{text}");
    }
    if args.config.check_config {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        reload::check(args).map_err(|error| UsageError(resolved.with_places(&error.0)))?;
        drop(entered);
        print(resolved)?;
        return Ok(());
    }
    profile(args, &resolved.settings, log).map_err(|error| match error.downcast::<UsageError>() {
        Ok(UsageError(text)) => UsageError(resolved.with_places(&text)).into(),
        Err(other) => other,
    })
}

/// Starts the event loop.
fn profile(args: &DaemonArgs, settings: &BTreeMap<String, Setting>, log: LogLimit) -> anyhow::Result<()> {
    // One thread is enough, and a second one would be woken for each tick: encoding and files go to
    // blocking threads, and the rings have a thread of their own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Of encoding and of files: nobody waits for them.
        .on_thread_start(thread_priority::lower_priority_and_io)
        .build()
        .context("cannot start the event loop")?
        .block_on(event_loop::profile(args, settings, log))
}

/// Prints what isn't the default, secrets hidden.
fn print(resolved: &Resolved) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, setting) in resolved.settings.iter().filter(|(_, setting)| setting.source != Source::Default) {
        writeln!(out, "{name} = {setting} ({})", setting.source)?;
    }
    match &resolved.file {
        Some(file) => writeln!(out, "the configuration is valid, {} included", file.display()),
        None => writeln!(out, "the configuration is valid"),
    }
}
