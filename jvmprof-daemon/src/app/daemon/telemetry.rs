//! Flags for what the daemon tells of itself, and the side of it that the event loop feeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::app::args::TelemetryArgs;
use crate::own_process::{HostCpu, SelfUsage};
use crate::pipeline::Pipeline;
use crate::telemetry::http_server::{HttpAddress, HttpServer};
use crate::telemetry::log::LogLimit;
use crate::telemetry::{Board, Snapshot};

/// A host whose CPUs do less than this has nothing to be sampled.
const IDLE_SHARE: f64 = 0.01;
/// How often the loop turns at least, so that a hang is noticed.
const BEAT: Duration = Duration::from_secs(10);
/// How often the service manager is told how things are.
const STATUS_INTERVAL: Duration = Duration::from_secs(30);

/// What the event loop tells others.
#[derive(Debug)]
pub(super) struct Telemetry {
    board: Arc<Board>,
    http: Option<HttpServer>,
    log: LogLimit,
    watchdog: Option<Duration>,
    host: Option<HostCpu>,
    next_status: Instant,
    is_ready: bool,
}

impl Telemetry {
    /// Starts what the flags and the service manager ask for.
    ///
    /// # Errors
    /// The address can't be listened on.
    pub(super) fn start(args: &TelemetryArgs, log: LogLimit) -> anyhow::Result<Self> {
        let board = Arc::new(Board::default());
        let http = args.http_address.as_ref().map(|address| HttpServer::start(address, Arc::clone(&board)));
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
            board,
            http,
            log,
            watchdog: sd_notify::watchdog_enabled(),
            host: HostCpu::now(),
            next_status: Instant::now(),
            is_ready: false,
        })
    }

    /// Sampling has begun: tells the service manager.
    pub(super) fn started(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// How often the loop must turn: twice within the service manager's patience.
    pub(super) fn beat(&self) -> Duration {
        self.watchdog.map_or(BEAT, |patience| (patience / 2).min(BEAT))
    }

    /// Resolves when somebody wants a snapshot.
    pub(super) async fn asked(&self) {
        self.board.asked().await;
    }

    /// To be called each time the loop turns.
    pub(super) fn turn(&mut self, pipeline: &Pipeline) {
        let is_sampling = pipeline.is_sampling();
        self.board.turn(is_sampling);
        // Without the rings' thread all samples are lost: better to be started anew.
        if self.watchdog.is_some() && is_sampling {
            notify(&[NotifyState::Watchdog]);
        }
        if !self.is_ready && (pipeline.samples() > 0 || self.host_is_idle()) {
            self.is_ready = true;
            self.board.set_ready();
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

    /// What the pipeline and this know now.
    pub(super) fn snapshot(&self, pipeline: &mut Pipeline) -> Snapshot {
        let counts = pipeline.counts();
        Snapshot {
            sampler: counts.sampler,
            table: counts.table,
            processes: counts.processes,
            symbols: counts.symbols,
            caches: counts.caches,
            outcomes: counts.outcomes,
            targets: counts.targets,
            over_series_limit: counts.over_series_limit,
            window_full: counts.window_full,
            waiting_full: counts.waiting_full,
            held_stacks: counts.held_stacks,
            waiting: counts.waiting,
            kernel_run_time: counts.kernel_run_time,
            clock_steps: counts.clocks.steps,
            suspends: counts.clocks.suspends,
            suppressed_messages: self.log.total(),
            refused_connections: self.http.as_ref().map_or(0, HttpServer::refused),
            usage: SelfUsage::now(),
            ..Snapshot::default()
        }
    }

    /// Puts a snapshot where scrapes find it.
    pub(super) fn publish(&self, snapshot: Snapshot) {
        self.board.publish(snapshot);
    }

    /// Says what wasn't logged.
    pub(super) fn log_suppressed(&self) {
        for suppressed in self.log.take() {
            tracing::warn!(place = suppressed.place, messages = suppressed.count, "messages were held back");
        }
    }
}

/// Not under systemd, nobody listens.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager can't be told");
    }
}
