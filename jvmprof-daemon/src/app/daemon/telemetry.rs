//! Metrics, health and the service manager: what the event loop publishes of the daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::app::args::TelemetryArgs;
use crate::own_process::{HostCpu, SelfUsage};
use crate::pipeline::{Counts, Pipeline};
use crate::telemetry::http_server::{HttpAddress, HttpServer};
use crate::telemetry::log::LogRateLimit;
use crate::telemetry::{HealthMonitor, MetricsSnapshot};

/// Share of busy CPU time below which a host is idle: it has nothing to be sampled.
const IDLE_SHARE: f64 = 0.01;
/// Longest sleep of the event loop, so that a hang is noticed.
const MAX_LOOP_SLEEP: Duration = Duration::from_secs(10);
/// Interval of status messages to the service manager.
const STATUS_INTERVAL: Duration = Duration::from_secs(30);

/// The publishing side of metrics and health, and systemd's notifications.
#[derive(Debug)]
pub(super) struct DaemonTelemetry {
    monitor: Arc<HealthMonitor>,
    http: Option<HttpServer>,
    log: LogRateLimit,
    watchdog: Option<Duration>,
    host: Option<HostCpu>,
    next_status: Instant,
    is_ready: bool,
}

impl DaemonTelemetry {
    /// Starts the HTTP server and the watchdog if the settings and the service manager ask for
    /// them.
    ///
    /// # Errors
    /// The address can't be listened on.
    pub(super) fn start(args: &TelemetryArgs, log: LogRateLimit) -> anyhow::Result<Self> {
        let monitor = Arc::new(HealthMonitor::default());
        let http = args.http_address.as_ref().map(|address| HttpServer::start(address, Arc::clone(&monitor)));
        let http = http.transpose()?;
        if let Some(http) = &http {
            tracing::info!(address = %http.address(), "serving metrics and health");
            if let HttpAddress::Tcp(address) = http.address()
                && !address.ip().is_loopback()
            {
                tracing::warn!(%address, "metrics and health are open to the network: nobody is asked for a password");
            }
        }
        Ok(Self {
            monitor,
            http,
            log,
            watchdog: sd_notify::watchdog_enabled(),
            host: HostCpu::now(),
            next_status: Instant::now(),
            is_ready: false,
        })
    }

    /// Begins with readiness anew: profiling has begun. Notifies the service manager.
    pub(super) fn started(&mut self) {
        self.monitor.set_idle(None);
        (self.host, self.is_ready) = (HostCpu::now(), false);
        self.next_status = Instant::now();
        notify(&[NotifyState::Ready]);
    }

    /// Records that the host isn't profiled. Notifies the service manager: there is nothing to wait
    /// for.
    pub(super) fn started_idle(&mut self, reason: &str) {
        self.monitor.set_idle(Some(reason.to_owned()));
        self.next_status = Instant::now();
        notify(&[NotifyState::Ready, NotifyState::Status(&format!("idle: {reason}"))]);
    }

    /// Feeds the watchdog of a daemon that is idle; called on each turn of its loop.
    pub(super) fn update_idle(&self) {
        self.monitor.heartbeat(false);
        if self.watchdog.is_some() {
            notify(&[NotifyState::Watchdog]);
        }
    }

    /// Notifies the service manager that the daemon is stopping.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// Returns the longest sleep of the event loop: half of the watchdog's timeout.
    pub(super) fn max_loop_sleep(&self) -> Duration {
        self.watchdog.map_or(MAX_LOOP_SLEEP, |timeout| (timeout / 2).min(MAX_LOOP_SLEEP))
    }

    /// Resolves when a scrape waits for a snapshot.
    pub(super) async fn snapshot_requested(&self) {
        self.monitor.snapshot_requested().await;
    }

    /// Feeds the watchdog and updates health and status; called on each turn of the event loop.
    pub(super) fn update(&mut self, pipeline: &Pipeline) {
        let is_sampling = pipeline.is_sampling();
        self.monitor.heartbeat(is_sampling);
        // Without the ring reader all samples are lost: the service manager restarts the daemon.
        if self.watchdog.is_some() && is_sampling {
            notify(&[NotifyState::Watchdog]);
        }
        if !self.is_ready && (pipeline.samples() > 0 || self.host_is_idle()) {
            self.is_ready = true;
            self.monitor.set_ready();
        }
        if Instant::now() >= self.next_status {
            self.next_status = Instant::now() + STATUS_INTERVAL;
            notify(&[NotifyState::Status(&format!("profiling, {} samples so far", pipeline.samples()))]);
        }
    }

    fn host_is_idle(&self) -> bool {
        let (Some(begin), Some(now)) = (self.host, HostCpu::now()) else { return false };
        now.busy_since(begin) < IDLE_SHARE
    }

    /// Returns these counts of the pipeline, and those of this.
    pub(super) fn snapshot(&self, pipeline: Counts) -> MetricsSnapshot {
        MetricsSnapshot {
            pipeline,
            suppressed_messages: self.log.total(),
            refused_connections: self.http.as_ref().map_or(0, HttpServer::refused),
            usage: SelfUsage::now(),
            ..MetricsSnapshot::default()
        }
    }

    /// Publishes a snapshot for scrapes.
    pub(super) fn publish(&self, snapshot: MetricsSnapshot) {
        self.monitor.publish(snapshot);
    }

    /// Logs how many messages were suppressed.
    pub(super) fn log_suppressed(&self) {
        for suppressed in self.log.take() {
            tracing::warn!(
                place = suppressed.callsite,
                messages = suppressed.count,
                "messages were held back"
            );
        }
    }
}

/// Sends states to the service manager; without systemd, nobody listens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager can't be notified");
    }
}
