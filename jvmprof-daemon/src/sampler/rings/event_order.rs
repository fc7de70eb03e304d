//! Events of several rings in order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::sampler::event::{KernelEvent, KernelEventKind};

/// Merges events by time: it keeps each until no earlier one can arrive.
#[derive(Debug, Default)]
pub(in crate::sampler) struct EventOrder {
    waiting: BinaryHeap<OrderedEvent>,
    next: u64,
    delivered_ns: u64,
    /// Events up to this time are to be delivered as soon as no earlier ones can arrive.
    urgent_ns: u64,
    late: u64,
}

#[derive(Debug)]
struct OrderedEvent {
    event: KernelEvent,
    /// Order of arrival, which equal times keep.
    sequence: u64,
}

impl EventOrder {
    pub(in crate::sampler) fn push(&mut self, event: KernelEvent) {
        if event.time_ns < self.delivered_ns {
            self.late += 1;
        }
        // The kernel wakes the reader for each.
        if matches!(event.kind, KernelEventKind::Tlab(_)) {
            self.urgent_ns = self.urgent_ns.max(event.time_ns);
        }
        self.waiting.push(OrderedEvent { event, sequence: self.next });
        self.next += 1;
    }

    /// Calls `handle` with every event up to this time (inclusive), earliest first.
    pub(in crate::sampler) fn drain(&mut self, until_ns: u64, handle: &mut impl FnMut(KernelEvent)) {
        while self.waiting.peek().is_some_and(|entry| entry.event.time_ns <= until_ns) {
            if let Some(entry) = self.waiting.pop() {
                self.delivered_ns = self.delivered_ns.max(entry.event.time_ns);
                handle(entry.event);
            }
        }
    }

    /// Makes the events that are kept now urgent: after a wake-up that may be what they were read
    /// with, since a ring that has been emptied meanwhile wakes nobody again.
    pub(in crate::sampler) fn expedite(&mut self) {
        let last = self.waiting.iter().map(|entry| entry.event.time_ns).max();
        self.urgent_ns = self.urgent_ns.max(last.unwrap_or(0));
    }

    /// Returns the time of the last urgent event, if one is kept.
    pub(in crate::sampler) fn urgent_ns(&self) -> Option<u64> {
        let earliest = self.waiting.peek()?.event.time_ns;
        (earliest <= self.urgent_ns).then_some(self.urgent_ns)
    }

    /// Returns the number of events that arrived after later ones had been delivered.
    pub(in crate::sampler) fn late(&self) -> u64 {
        self.late
    }
}

impl Ord for OrderedEvent {
    /// Compares in reverse: the heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.event.time_ns, other.sequence).cmp(&(self.event.time_ns, self.sequence))
    }
}

impl PartialOrd for OrderedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderedEvent {}

#[cfg(test)]
mod tests {
    use jvmprof_common::allocation::TlabRecord;

    use super::*;

    fn exit(time_ns: u64, tid: u32) -> KernelEvent {
        KernelEvent { time_ns, kind: KernelEventKind::Exit { pid: 1, tid } }
    }

    fn drained(order: &mut EventOrder, until_ns: u64) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        order.drain(until_ns, &mut |event| {
            if let KernelEventKind::Exit { tid, .. } = event.kind {
                out.push((event.time_ns, tid));
            }
        });
        out
    }

    #[test]
    fn rings_are_merged_by_time_and_equal_times_keep_their_order() {
        let mut order = EventOrder::default();
        for (time, tid) in [(5, 1), (9, 2), (3, 3), (5, 4), (7, 5)] {
            order.push(exit(time, tid));
        }
        assert_eq!(drained(&mut order, 5), [(3, 3), (5, 1), (5, 4)]);
        order.push(exit(6, 6));
        assert_eq!(drained(&mut order, u64::MAX), [(6, 6), (7, 5), (9, 2)]);
        assert_eq!(order.late(), 0);
    }

    #[test]
    fn what_is_read_after_a_wake_up_is_delivered_once_it_is_complete() {
        let mut order = EventOrder::default();
        order.push(exit(10, 1));
        assert_eq!(order.urgent_ns(), None, "nobody was woken for it");
        // The reader was woken, and has read two more while it waited for the first.
        order.push(exit(12, 2));
        order.push(exit(14, 3));
        assert_eq!(drained(&mut order, 11), [(10, 1)]);
        order.expedite();
        assert_eq!(order.urgent_ns(), Some(14));
        // What comes until then is no reason to read once more.
        order.push(exit(16, 4));
        assert_eq!(drained(&mut order, 13), [(12, 2)]);
        assert_eq!(order.urgent_ns(), Some(14), "not all of them are delivered");
        assert_eq!(drained(&mut order, 15), [(14, 3)]);
        assert_eq!(order.urgent_ns(), None);
        assert_eq!(drained(&mut order, 20), [(16, 4)]);
        order.expedite();
        assert_eq!(order.urgent_ns(), None, "nothing is kept");
    }

    #[test]
    fn a_buffer_for_a_census_is_urgent_however_it_was_read() {
        let mut order = EventOrder::default();
        order.push(exit(10, 1));
        order.push(KernelEvent { time_ns: 12, kind: KernelEventKind::Tlab(TlabRecord::default()) });
        order.push(exit(14, 2));
        assert_eq!(order.urgent_ns(), Some(12));
        assert_eq!(drained(&mut order, 12), [(10, 1)]);
        assert_eq!(order.urgent_ns(), None);
    }

    #[test]
    fn an_event_that_comes_too_late_is_counted_and_kept() {
        let mut order = EventOrder::default();
        order.push(exit(10, 1));
        assert_eq!(drained(&mut order, 10), [(10, 1)]);
        order.push(exit(9, 2));
        assert_eq!(drained(&mut order, 10), [(9, 2)]);
        assert_eq!(order.late(), 1);
    }
}
