//! The daemon of a host that `--host-fraction` leaves out: without kernel programs and pipeline. It
//! still sends what waits in spools, answers for its health, and follows the configuration.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::host_fraction::HostChoice;
use super::reload::{DaemonState, ReloadedSettings, SighupReloader};
use super::sinks;
use super::telemetry::DaemonTelemetry;
use crate::app::args::DaemonArgs;
use crate::app::shutdown_signals::ShutdownSignals;
use crate::export::delivery::{Delivery, SampleTotals};
use crate::pipeline::Counts;
use crate::telemetry::MetricsSnapshot;

/// Longest time for a request that is under way when the daemon ends or begins to profile.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of trying to open sinks that could not be opened.
const OPEN_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why the daemon isn't idle any more.
pub(super) enum IdleEnd {
    /// This signal arrived.
    Signal(&'static str),
    /// By these new settings the host is profiled.
    HostChosen(Box<DaemonArgs>),
}

/// A daemon that is idle.
pub(super) struct IdleHost<'a> {
    choice: HostChoice,
    args: DaemonArgs,
    /// When it was tried last to open the sinks.
    opened: Instant,
    /// Sends what an earlier daemon has left in spools.
    delivery: Delivery,
    telemetry: &'a mut DaemonTelemetry,
}

impl<'a> IdleHost<'a> {
    pub(super) fn start(args: &DaemonArgs, choice: HostChoice, telemetry: &'a mut DaemonTelemetry) -> Self {
        telemetry.started_idle(&choice.to_string());
        let delivery = open_sinks(args);
        tracing::info!("idle until the configuration chooses this host");
        Self { choice, args: args.clone(), opened: Instant::now(), delivery, telemetry }
    }

    /// Runs until a signal arrives or new settings choose the host.
    pub(super) async fn run(
        &mut self,
        shutdown: &mut ShutdownSignals,
        reloads: &mut SighupReloader,
    ) -> IdleEnd {
        loop {
            tokio::select! {
                signal = shutdown.requested() => return IdleEnd::Signal(signal),
                () = self.telemetry.snapshot_requested() => self.publish(),
                () = reloads.requested() => {
                    if let Some(new) = reloads.load(DaemonState::Idle) {
                        if HostChoice::of(&new.args).is_profiled() {
                            return IdleEnd::HostChosen(new.args);
                        }
                        if let Err(new) = self.reconfigure(new).await {
                            reloads.reject(&new);
                        }
                    }
                }
                () = sleep(self.telemetry.max_loop_sleep()) => {}
            }
            if self.delivery.is_empty() && self.opened.elapsed() >= OPEN_INTERVAL {
                self.opened = Instant::now();
                self.delivery = open_sinks(&self.args);
            }
            self.telemetry.update_idle();
        }
    }

    /// Takes settings over by which the host is still left out: all of them, or none.
    ///
    /// # Errors
    /// The settings, where their sinks can't be opened.
    async fn reconfigure(&mut self, new: ReloadedSettings) -> Result<(), ReloadedSettings> {
        if new.changes_sinks() {
            // The new sinks may share a spool with these, and can't be opened before.
            std::mem::take(&mut self.delivery).finish(DRAIN_TIMEOUT).await;
            match sinks::open(&new.args, SampleTotals::default()) {
                Ok(delivery) => self.delivery = delivery,
                Err(error) => {
                    tracing::error!("the configuration is kept as it was, SIGHUP tries again: {error:#}");
                    self.delivery = open_sinks(&self.args);
                    return Err(new);
                }
            }
        }
        self.choice = HostChoice::of(&new.args);
        self.args = *new.args;
        self.telemetry.started_idle(&self.choice.to_string());
        tracing::info!("still idle: {}", self.choice);
        Ok(())
    }

    fn publish(&self) {
        self.telemetry.publish(MetricsSnapshot {
            sinks: self.delivery.counts(),
            host: self.choice.status(),
            ..self.telemetry.snapshot(Counts::default())
        });
    }

    /// Closes the spools; ends with this signal, if with one.
    pub(super) async fn end(self, signal: Option<&str>) {
        if signal.is_some() {
            self.telemetry.stopping();
        }
        for (sink, counts) in self.delivery.finish(DRAIN_TIMEOUT).await {
            sinks::log(&sink, &counts, "sink closed");
        }
        match signal {
            Some(signal) => tracing::info!(signal, "ended: the host was idle"),
            None => tracing::info!("the configuration chooses this host: profiling begins"),
        }
    }
}

/// Opens the sinks for the sake of their spools, which may be of no use now.
fn open_sinks(args: &DaemonArgs) -> Delivery {
    sinks::open(args, SampleTotals::default()).unwrap_or_else(|error| {
        tracing::error!("what waits in spools stays there: {error:#}");
        Delivery::default()
    })
}
