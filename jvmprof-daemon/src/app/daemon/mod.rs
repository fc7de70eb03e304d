//! `jvmprof daemon`: profiles the host and pushes, until a signal ends it.

mod backends;
mod cpu_budget;
mod debug_file_uploads;
mod event_loop;
mod host_fraction;
mod idle_host;
mod lifecycle;
mod reload;
mod replaced_sinks;
mod sinks;
mod telemetry;
mod window_schedule;

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;

use super::args::DaemonArgs;
use super::errors::{UsageError, check_can_profile};
use crate::config::{Setting, SettingSource, Settings};
use crate::own_process::thread_priority;
use crate::telemetry::log::LogRateLimit;

/// Prints the example or checks the settings if that is requested, else profiles.
pub(super) fn run(args: &DaemonArgs, settings: &Settings, log: LogRateLimit) -> anyhow::Result<()> {
    if args.config.example_config {
        std::io::stdout().write_all(super::settings::schema().example().as_bytes())?;
        return Ok(());
    }
    for text in &settings.misspelt_variables {
        tracing::warn!("{text}");
    }
    if args.config.check_config {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        reload::check(args).map_err(|error| UsageError(settings.with_locations(&error.0)))?;
        drop(entered);
        print(settings)?;
        return Ok(());
    }
    check_can_profile()?;
    profile(args, &settings.by_name, log).map_err(|error| match error.downcast::<UsageError>() {
        Ok(UsageError(text)) => UsageError(settings.with_locations(&text)).into(),
        Err(other) => other,
    })
}

/// Starts the event loop.
fn profile(args: &DaemonArgs, settings: &BTreeMap<String, Setting>, log: LogRateLimit) -> anyhow::Result<()> {
    // One thread is enough, and a second one would be woken for each tick: encoding and files go to
    // blocking threads, and the rings have a thread of their own.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The blocking pool encodes and does disk I/O: nobody waits for it.
        .on_thread_start(thread_priority::lower_priority_and_io)
        .build()
        .context("cannot start the event loop")?
        .block_on(lifecycle::run(args, settings, log))
}

/// Prints the settings that aren't the default, secrets hidden.
fn print(settings: &Settings) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, setting) in
        settings.by_name.iter().filter(|(_, setting)| setting.source != SettingSource::Default)
    {
        writeln!(out, "{name} = {setting} ({})", setting.source)?;
    }
    match &settings.file {
        Some(file) => writeln!(out, "the configuration is valid, {} included", file.display()),
        None => writeln!(out, "the configuration is valid"),
    }
}
