//! Counts of the samples that were handed to a sink, by their fate.

use serde::{Deserialize, Serialize};

/// Numbers of samples, unless said otherwise, of one sink.
///
/// At any time `found + handed_over` is `delivered` + all losses + `spooled` + `orphaned` +
/// `waiting`: see [`Self::unaccounted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryCounts {
    /// In the spool when it was opened.
    pub found: u64,
    pub handed_over: u64,
    /// The sink has said that it has them.
    pub delivered: u64,
    /// The part of them that came out of the spool.
    pub delivered_late: u64,
    pub losses: Losses,
    /// In the spool now.
    pub spooled: u64,
    /// In the folder of a spool that settings have replaced by another one: nobody sends them as
    /// long as it is so.
    #[serde(skip)]
    pub orphaned: u64,
    /// In memory now, on the way to the sink.
    pub waiting: u64,
    /// The part of them in a request without an answer yet.
    pub in_flight: u64,
    /// Sent again although nobody knows whether the first one was stored.
    pub possibly_twice: u64,
    /// Bytes that the spool takes on disk now.
    pub spool_bytes: u64,
    /// Requests, answered or not.
    pub requests: u64,
    /// Bytes of their bodies.
    pub sent_bytes: u64,
    /// Requests that were not stored, or perhaps not: what they held was kept or lost.
    pub failed_requests: u64,
    /// Requests that were sent in two halves, to find what the server doesn't want.
    pub divided_requests: u64,
}

/// Samples that are lost, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// The server doesn't want them, and never will.
    pub refused: u64,
    /// They were sent, and nobody knows whether they were stored.
    pub possibly_lost: u64,
    /// More waited in memory than there is room for.
    pub queue_full: u64,
    /// There is no spool, and nobody took them before the daemon ended.
    pub undelivered: u64,
    /// Newer ones needed their room in the spool.
    pub spool_full: u64,
    /// They waited too long in the spool.
    pub spool_expired: u64,
    /// They could not be written to the spool: the disk is full or broken.
    pub spool_failed: u64,
    /// The bytes read from the spool are not those that were written.
    pub spool_damaged: u64,
    /// They could not be encoded, or decoded when they came out of the spool.
    pub unencodable: u64,
    /// The local store could not be written to.
    pub store_failed: u64,
    /// They were in the memory of a daemon that was killed, as far as it had noted them down.
    pub killed: u64,
}

impl Losses {
    /// Each reason's name, as metrics and logs have it, and its samples.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("refused", self.refused),
            ("possibly_lost", self.possibly_lost),
            ("queue_full", self.queue_full),
            ("undelivered", self.undelivered),
            ("spool_full", self.spool_full),
            ("spool_expired", self.spool_expired),
            ("spool_failed", self.spool_failed),
            ("spool_damaged", self.spool_damaged),
            ("unencodable", self.unencodable),
            ("store_failed", self.store_failed),
            ("killed", self.killed),
        ]
        .into_iter()
    }

    pub fn total(&self) -> u64 {
        self.iter().map(|(_, samples)| samples).sum()
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            refused: self.refused + other.refused,
            possibly_lost: self.possibly_lost + other.possibly_lost,
            queue_full: self.queue_full + other.queue_full,
            undelivered: self.undelivered + other.undelivered,
            spool_full: self.spool_full + other.spool_full,
            spool_expired: self.spool_expired + other.spool_expired,
            spool_failed: self.spool_failed + other.spool_failed,
            spool_damaged: self.spool_damaged + other.spool_damaged,
            unencodable: self.unencodable + other.unencodable,
            store_failed: self.store_failed + other.store_failed,
            killed: self.killed + other.killed,
        }
    }
}

impl DeliveryCounts {
    /// Returns the samples that are missing in the sums; anything but 0 is a bug.
    pub fn unaccounted(&self) -> i128 {
        let came = i128::from(self.found) + i128::from(self.handed_over);
        let went = [self.delivered, self.losses.total(), self.spooled, self.orphaned, self.waiting];
        came - went.into_iter().map(i128::from).sum::<i128>()
    }

    /// The counts of this sink and of the one that it has replaced: what it found in its spool is
    /// what that one had left.
    #[must_use]
    pub fn after(&self, closed: &Self) -> Self {
        Self { found: closed.found + self.found.saturating_sub(closed.spooled), ..self.with_earlier(closed) }
    }

    /// The counts of a sink that is closed and whose spool's folder settings have replaced by
    /// another one.
    #[must_use]
    pub fn with_orphaned_spool(&self) -> Self {
        Self { orphaned: self.orphaned + self.spooled, spooled: 0, spool_bytes: 0, ..*self }
    }

    /// The counts of this run, and those of the ones before it: what was found is part of what they
    /// had been handed.
    pub(super) fn with_earlier(&self, earlier: &Self) -> Self {
        Self {
            found: 0,
            handed_over: earlier.handed_over + self.handed_over,
            delivered: earlier.delivered + self.delivered,
            delivered_late: earlier.delivered_late + self.delivered_late,
            losses: earlier.losses.plus(&self.losses),
            spooled: self.spooled,
            orphaned: earlier.orphaned + self.orphaned,
            waiting: self.waiting,
            in_flight: self.in_flight,
            possibly_twice: earlier.possibly_twice + self.possibly_twice,
            spool_bytes: self.spool_bytes,
            requests: earlier.requests + self.requests,
            sent_bytes: earlier.sent_bytes + self.sent_bytes,
            failed_requests: earlier.failed_requests + self.failed_requests,
            divided_requests: earlier.divided_requests + self.divided_requests,
        }
    }
}
