//! Where the event loop pins its latest snapshot, and how others ask it for a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::snapshot::Snapshot;
use crate::clock::monotonic_ns;

/// An event loop that hasn't turned for so long hangs. Longer than any file takes to be read,
/// shorter than a minute.
pub const HANG: Duration = Duration::from_secs(30);

/// Between the event loop and those who look at it from other threads.
#[derive(Debug)]
pub struct Board {
    /// `None` before the first one.
    latest: watch::Sender<Option<Arc<Snapshot>>>,
    asked: Notify,
    /// `CLOCK_MONOTONIC` of the loop's last turn, ns.
    turned_ns: AtomicU64,
    /// The rings are being emptied.
    sampling: AtomicBool,
    /// A sample came, or the host has nothing to sample.
    ready: AtomicBool,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            latest: watch::Sender::default(),
            asked: Notify::new(),
            turned_ns: AtomicU64::new(monotonic_ns()),
            sampling: AtomicBool::new(false),
            ready: AtomicBool::new(false),
        }
    }
}

impl Board {
    /// The event loop has turned once more. `sampling`: whether the rings are being emptied.
    pub fn turn(&self, sampling: bool) {
        self.turned_ns.store(monotonic_ns(), Ordering::Relaxed);
        self.sampling.store(sampling, Ordering::Relaxed);
    }

    /// Samples arrive, or would if there were any.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Resolves in the event loop when somebody wants a new snapshot, or to know whether it turns.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Pins a new snapshot.
    pub fn publish(&self, snapshot: Snapshot) {
        self.latest.send_replace(Some(Arc::new(snapshot)));
    }

    /// A snapshot that is made now, or the latest one, if there is one, if the event loop doesn't
    /// answer within `patience`.
    pub async fn fresh(&self, patience: Duration) -> Option<Arc<Snapshot>> {
        let mut latest = self.latest.subscribe();
        latest.mark_unchanged();
        self.asked.notify_one();
        // The sender is this board itself.
        let _ = tokio::time::timeout(patience, latest.changed()).await;
        latest.borrow().clone()
    }

    /// How long ago the event loop turned last.
    pub fn idle(&self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.turned_ns.load(Ordering::Relaxed)))
    }

    /// Why the daemon isn't healthy, if it isn't.
    pub fn illness(&self) -> Option<String> {
        let idle = self.idle();
        if idle > HANG {
            return Some(format!("the event loop has hung for {} s", idle.as_secs()));
        }
        // Before the first turn programs are being loaded.
        let is_broken = self.ready.load(Ordering::Relaxed) && !self.sampling.load(Ordering::Relaxed);
        is_broken.then(|| "the thread that empties the kernel's rings hangs or is gone".to_owned())
    }

    /// Why profiles aren't being made, if they aren't.
    pub fn unreadiness(&self) -> Option<String> {
        self.illness().or_else(|| {
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
        let board = Arc::new(Board::default());
        board.publish(Snapshot { windows: 1, ..Snapshot::default() });
        let event_loop = Arc::clone(&board);
        tokio::spawn(async move {
            event_loop.asked().await;
            event_loop.publish(Snapshot { windows: 2, ..Snapshot::default() });
        });
        assert_eq!(board.fresh(Duration::from_secs(60)).await.expect("pinned").windows, 2);
    }

    #[tokio::test]
    async fn a_loop_that_does_not_answer_leaves_its_last_snapshot() {
        let board = Board::default();
        assert!(board.fresh(Duration::from_millis(1)).await.is_none(), "zeros would be a lie");
        board.publish(Snapshot { windows: 1, ..Snapshot::default() });
        assert_eq!(board.fresh(Duration::from_millis(1)).await.expect("pinned").windows, 1);
    }

    #[test]
    fn ready_needs_a_turn_with_sampling_and_a_sample() {
        let board = Board::default();
        assert_eq!(board.illness(), None, "loading programs is no illness");
        assert!(board.unreadiness().is_some_and(|why| why.contains("hasn't begun")));
        board.turn(true);
        assert!(board.unreadiness().is_some_and(|why| why.contains("no sample")));
        board.set_ready();
        assert_eq!(board.unreadiness(), None);
        board.turn(false);
        assert!(board.illness().is_some_and(|why| why.contains("rings")));
        board.turn(true);
        board.turned_ns.store(monotonic_ns() - 31_000_000_000, Ordering::Relaxed);
        assert!(board.illness().is_some_and(|why| why.contains("hung for 31 s")));
        assert!(board.unreadiness().is_some());
    }
}
