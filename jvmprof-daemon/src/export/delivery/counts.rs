//! Counts of the samples that were handed to a sink, by their fate.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::event_type::{EventType, SamplesByEvent};

/// Numbers of samples, unless said otherwise, of one sink.
///
/// At any time and for each event by itself, `found + handed_over` is `delivered` + all losses +
/// `spooled` + `orphaned` + `waiting`: see [`Self::unaccounted`]. `N`: of each event, or the
/// numbers of one event or of all together, which [`Self::of_event`] and [`Self::of_all_events`]
/// give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "N: Deserialize<'de> + Default"))]
pub struct DeliveryCounts<N = SamplesByEvent> {
    /// In the spool when it was opened.
    pub found: N,
    pub handed_over: N,
    /// The sink has said that it has them.
    pub delivered: N,
    /// The part of them that came out of the spool.
    pub delivered_late: N,
    pub losses: Losses<N>,
    /// In the spool now.
    pub spooled: N,
    /// In the folder of a spool that settings have replaced by another one: nobody sends them as
    /// long as it is so.
    #[serde(skip)]
    pub orphaned: N,
    /// In memory now, on the way to the sink.
    pub waiting: N,
    /// The part of them in a request without an answer yet.
    pub in_flight: N,
    /// Sent again although nobody knows whether the first one was stored.
    pub possibly_twice: N,
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
    /// Series that weren't sent, because the server has refused them again and again, in each
    /// window again. Their samples are `refused`.
    pub withheld_series: u64,
    /// Labels of series that were cut or left out before they were sent, in each window again.
    pub limited_labels: u64,
}

/// Samples that are lost, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "N: Deserialize<'de> + Default"))]
pub struct Losses<N = SamplesByEvent> {
    /// The server doesn't want them, and never will.
    pub refused: N,
    /// They were sent, and nobody knows whether they were stored.
    pub possibly_lost: N,
    /// They are older than the server takes them.
    pub too_old: N,
    /// More waited in memory than there is room for.
    pub queue_full: N,
    /// There is no spool, and nobody took them before the daemon ended.
    pub undelivered: N,
    /// Newer ones needed their room in the spool.
    pub spool_full: N,
    /// They waited too long in the spool.
    pub spool_expired: N,
    /// They could not be written to the spool: the disk is full or broken.
    pub spool_failed: N,
    /// The bytes read from the spool are not those that were written.
    pub spool_damaged: N,
    /// They could not be encoded, or decoded when they came out of the spool.
    pub unencodable: N,
    /// The local store could not be written to.
    pub store_failed: N,
    /// They were in the memory of a daemon that was killed, as far as it had noted them down.
    pub killed: N,
}

impl<N: Copy> Losses<N> {
    /// Each reason's name, as metrics and logs have it, and its samples.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, N)> + use<N> {
        [
            ("refused", self.refused),
            ("possibly_lost", self.possibly_lost),
            ("too_old", self.too_old),
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

    fn map<M>(&self, of: impl Fn(N) -> M) -> Losses<M> {
        self.zip(self, |samples, _| of(samples))
    }

    fn zip<M>(&self, other: &Self, of: impl Fn(N, N) -> M) -> Losses<M> {
        Losses {
            refused: of(self.refused, other.refused),
            possibly_lost: of(self.possibly_lost, other.possibly_lost),
            too_old: of(self.too_old, other.too_old),
            queue_full: of(self.queue_full, other.queue_full),
            undelivered: of(self.undelivered, other.undelivered),
            spool_full: of(self.spool_full, other.spool_full),
            spool_expired: of(self.spool_expired, other.spool_expired),
            spool_failed: of(self.spool_failed, other.spool_failed),
            spool_damaged: of(self.spool_damaged, other.spool_damaged),
            unencodable: of(self.unencodable, other.unencodable),
            store_failed: of(self.store_failed, other.store_failed),
            killed: of(self.killed, other.killed),
        }
    }
}

impl<N: Copy + Add<Output = N> + Default> Losses<N> {
    pub fn total(&self) -> N {
        self.iter().fold(N::default(), |sum, (_, samples)| sum + samples)
    }
}

impl DeliveryCounts<u64> {
    /// Returns how many samples the sums differ by; anything but 0 is a bug.
    pub fn unaccounted(&self) -> u128 {
        let came = i128::from(self.found) + i128::from(self.handed_over);
        let went = [self.delivered, self.losses.total(), self.spooled, self.orphaned, self.waiting];
        (came - went.into_iter().map(i128::from).sum::<i128>()).unsigned_abs()
    }
}

impl DeliveryCounts {
    /// Returns how many samples the sums of each event differ by; anything but 0 is a bug.
    pub fn unaccounted(&self) -> u128 {
        EventType::ALL.into_iter().map(|event| self.of_event(event).unaccounted()).sum()
    }

    /// Returns the numbers of one event; those that aren't numbers of samples are the sink's.
    pub fn of_event(&self, event: EventType) -> DeliveryCounts<u64> {
        self.map(|samples| samples.get(event))
    }

    /// Returns the numbers of all events together.
    pub fn of_all_events(&self) -> DeliveryCounts<u64> {
        self.map(SamplesByEvent::total)
    }

    fn map<M>(&self, of: impl Fn(SamplesByEvent) -> M) -> DeliveryCounts<M> {
        DeliveryCounts {
            found: of(self.found),
            handed_over: of(self.handed_over),
            delivered: of(self.delivered),
            delivered_late: of(self.delivered_late),
            losses: self.losses.map(&of),
            spooled: of(self.spooled),
            orphaned: of(self.orphaned),
            waiting: of(self.waiting),
            in_flight: of(self.in_flight),
            possibly_twice: of(self.possibly_twice),
            spool_bytes: self.spool_bytes,
            requests: self.requests,
            sent_bytes: self.sent_bytes,
            failed_requests: self.failed_requests,
            divided_requests: self.divided_requests,
            withheld_series: self.withheld_series,
            limited_labels: self.limited_labels,
        }
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
        Self {
            orphaned: self.orphaned + self.spooled,
            spooled: SamplesByEvent::NONE,
            spool_bytes: 0,
            ..*self
        }
    }

    /// The counts of a sink that is closed and whose spool is about to be used again: of what was
    /// `left` in it, so much was `found`. What is missing there is lost, as the ledger says, too.
    #[must_use]
    pub fn with_found_spool(&self, left: SamplesByEvent, found: SamplesByEvent) -> Self {
        let missing = left.saturating_sub(found);
        let spool_damaged = self.losses.spool_damaged + missing;
        Self {
            orphaned: self.orphaned.saturating_sub(left),
            spooled: self.spooled + left.min(found),
            losses: Losses { spool_damaged, ..self.losses },
            ..*self
        }
    }

    /// The counts of this run, and those of the ones before it: what was found is part of what they
    /// had been handed.
    pub(super) fn with_earlier(&self, earlier: &Self) -> Self {
        Self {
            found: SamplesByEvent::NONE,
            handed_over: earlier.handed_over + self.handed_over,
            delivered: earlier.delivered + self.delivered,
            delivered_late: earlier.delivered_late + self.delivered_late,
            losses: earlier.losses.zip(&self.losses, SamplesByEvent::add),
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
            withheld_series: earlier.withheld_series + self.withheld_series,
            limited_labels: earlier.limited_labels + self.limited_labels,
        }
    }
}
