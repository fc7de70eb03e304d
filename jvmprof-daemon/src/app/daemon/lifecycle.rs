//! The daemon from its start to its end: it profiles the host, or is idle where `--host-fraction`
//! leaves the host out. SIGHUP may change between the two.

use std::collections::BTreeMap;

use anyhow::Context;

use super::event_loop::{DaemonLoop, LoopEnd};
use super::host_fraction::HostChoice;
use super::idle_host::{IdleEnd, IdleHost};
use super::reload::SighupReloader;
use super::telemetry::DaemonTelemetry;
use crate::app::args::DaemonArgs;
use crate::app::shutdown_signals::ShutdownSignals;
use crate::config::Setting;
use crate::telemetry::log::LogRateLimit;

/// Profiles the host, or is idle, until a signal arrives.
///
/// # Errors
/// The daemon can't start as the settings ask for.
pub(super) async fn run(
    args: &DaemonArgs,
    settings: &BTreeMap<String, Setting>,
    log: LogRateLimit,
) -> anyhow::Result<()> {
    let mut telemetry = DaemonTelemetry::start(&args.telemetry, log)?;
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    let mut reloads = SighupReloader::new(settings).context("cannot handle signals")?;
    let mut args = Box::new(args.clone());
    let mut choice = HostChoice::of(&args);
    loop {
        if choice.is_partial() {
            tracing::info!("{choice}");
        }
        if choice.is_profiled() {
            let mut daemon = DaemonLoop::start(args, choice.status(), &mut telemetry)?;
            match daemon.run(&mut shutdown, &mut reloads).await {
                LoopEnd::Signal(signal) => {
                    daemon.end(Some(signal)).await;
                    return Ok(());
                }
                LoopEnd::HostLeftOut(new) => {
                    daemon.end(None).await;
                    args = new;
                }
            }
        } else {
            let mut idle = IdleHost::start(&args, choice, &mut telemetry);
            match idle.run(&mut shutdown, &mut reloads).await {
                IdleEnd::Signal(signal) => {
                    idle.end(Some(signal)).await;
                    return Ok(());
                }
                IdleEnd::HostChosen(new) => {
                    idle.end(None).await;
                    args = new;
                }
            }
        }
        choice = HostChoice::of(&args);
    }
}
