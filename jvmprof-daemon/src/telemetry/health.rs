//! Health of the event loop, and exchange of metrics snapshots with the thread that serves them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::snapshot::MetricsSnapshot;
use crate::clock::monotonic_ns;

/// Time without a heartbeat after which the event loop counts as hung: longer than reading any file
/// takes, shorter than a minute.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// State that the event loop shares with threads that watch it.
#[derive(Debug)]
pub struct HealthMonitor {
    /// `None` before the first one.
    latest: watch::Sender<Option<Arc<MetricsSnapshot>>>,
    requested: Notify,
    /// Time of the last heartbeat, in ns of `CLOCK_MONOTONIC`.
    heartbeat_ns: AtomicU64,
    /// The rings are being read.
    sampling: AtomicBool,
    /// A sample has arrived, or the host has nothing to sample.
    ready: AtomicBool,
    /// Why the host isn't profiled, if it shall not be.
    idle: Mutex<Option<String>>,
}

impl Default for HealthMonitor {
    fn default() -> Self {
        Self {
            latest: watch::Sender::default(),
            requested: Notify::new(),
            heartbeat_ns: AtomicU64::new(monotonic_ns()),
            sampling: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            idle: Mutex::default(),
        }
    }
}

impl HealthMonitor {
    /// Records that the event loop runs. `sampling`: the rings are being read.
    pub fn heartbeat(&self, sampling: bool) {
        self.heartbeat_ns.store(monotonic_ns(), Ordering::Relaxed);
        self.sampling.store(sampling, Ordering::Relaxed);
    }

    /// Records that samples arrive, or would if there were any.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Records that profiling begins, or for which reason the host isn't profiled.
    pub fn set_idle(&self, reason: Option<String>) {
        self.ready.store(false, Ordering::Relaxed);
        self.sampling.store(false, Ordering::Relaxed);
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Returns the reason why the host isn't profiled, if it shall not be.
    pub fn idle_reason(&self) -> Option<String> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves, in the event loop, when a new snapshot or a heartbeat is requested.
    pub async fn snapshot_requested(&self) {
        self.requested.notified().await;
    }

    /// Publishes a new snapshot.
    pub fn publish(&self, snapshot: MetricsSnapshot) {
        self.latest.send_replace(Some(Arc::new(snapshot)));
    }

    /// Requests a snapshot, and returns the latest one if the event loop doesn't answer within
    /// `timeout`.
    pub async fn request_snapshot(&self, timeout: Duration) -> Option<Arc<MetricsSnapshot>> {
        let mut latest = self.latest.subscribe();
        latest.mark_unchanged();
        self.requested.notify_one();
        // The sender belongs to this monitor.
        let _ = tokio::time::timeout(timeout, latest.changed()).await;
        latest.borrow().clone()
    }

    /// Returns the time since the last heartbeat.
    pub fn since_heartbeat(&self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.heartbeat_ns.load(Ordering::Relaxed)))
    }

    /// Returns the reason why the daemon isn't healthy, if it isn't.
    pub fn unhealthy_reason(&self) -> Option<String> {
        let idle = self.since_heartbeat();
        if idle > HANG_TIMEOUT {
            return Some(format!("the event loop has hung for {} s", idle.as_secs()));
        }
        // Before the first heartbeat the kernel programs are being loaded.
        let is_broken = self.ready.load(Ordering::Relaxed) && !self.sampling.load(Ordering::Relaxed);
        is_broken.then(|| "the thread that empties the kernel's rings hangs or is gone".to_owned())
    }

    /// Returns the reason why no profiles are made, if some should be.
    pub fn not_ready_reason(&self) -> Option<String> {
        self.unhealthy_reason().or_else(|| {
            if self.idle_reason().is_some() {
                return None;
            }
            match (self.sampling.load(Ordering::Relaxed), self.ready.load(Ordering::Relaxed)) {
                (true, true) => None,
                (false, _) => Some("sampling hasn't begun".to_owned()),
                (true, false) => Some("no sample has arrived yet, and the host isn't idle".to_owned()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_gets_a_snapshot_made_after_that() {
        let monitor = Arc::new(HealthMonitor::default());
        monitor.publish(MetricsSnapshot { windows: 1, ..MetricsSnapshot::default() });
        let event_loop = Arc::clone(&monitor);
        tokio::spawn(async move {
            event_loop.snapshot_requested().await;
            event_loop.publish(MetricsSnapshot { windows: 2, ..MetricsSnapshot::default() });
        });
        assert_eq!(monitor.request_snapshot(Duration::from_secs(60)).await.expect("pinned").windows, 2);
    }

    #[tokio::test]
    async fn a_loop_that_does_not_answer_leaves_its_last_snapshot() {
        let monitor = HealthMonitor::default();
        assert!(monitor.request_snapshot(Duration::from_millis(1)).await.is_none(), "zeros would be a lie");
        monitor.publish(MetricsSnapshot { windows: 1, ..MetricsSnapshot::default() });
        assert_eq!(monitor.request_snapshot(Duration::from_millis(1)).await.expect("pinned").windows, 1);
    }

    #[test]
    fn an_idle_host_is_ready_until_it_shall_be_profiled() {
        let monitor = HealthMonitor::default();
        monitor.heartbeat(true);
        monitor.set_ready();
        monitor.set_idle(Some("another host's turn".to_owned()));
        monitor.heartbeat(false);
        assert_eq!((monitor.unhealthy_reason(), monitor.not_ready_reason()), (None, None));
        assert_eq!(monitor.idle_reason().as_deref(), Some("another host's turn"));
        monitor.set_idle(None);
        assert_eq!(monitor.unhealthy_reason(), None);
        assert!(monitor.not_ready_reason().is_some_and(|why| why.contains("hasn't begun")));
    }

    #[test]
    fn ready_needs_a_turn_with_sampling_and_a_sample() {
        let monitor = HealthMonitor::default();
        assert_eq!(monitor.unhealthy_reason(), None, "loading programs is no illness");
        assert!(monitor.not_ready_reason().is_some_and(|why| why.contains("hasn't begun")));
        monitor.heartbeat(true);
        assert!(monitor.not_ready_reason().is_some_and(|why| why.contains("no sample")));
        monitor.set_ready();
        assert_eq!(monitor.not_ready_reason(), None);
        monitor.heartbeat(false);
        assert!(monitor.unhealthy_reason().is_some_and(|why| why.contains("rings")));
        monitor.heartbeat(true);
        monitor.heartbeat_ns.store(monotonic_ns() - 31_000_000_000, Ordering::Relaxed);
        assert!(monitor.unhealthy_reason().is_some_and(|why| why.contains("hung for 31 s")));
        assert!(monitor.not_ready_reason().is_some());
    }
}
