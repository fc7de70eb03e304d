//! Events of several rings in order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::sampler::event::Event;

/// Holds events back until nothing earlier can come.
#[derive(Debug, Default)]
pub(in crate::sampler) struct EventOrder {
    waiting: BinaryHeap<Entry>,
    next: u64,
    handed_on: u64,
    late: u64,
}

#[derive(Debug)]
struct Entry {
    event: Event,
    /// Keeps events of equal times in the order of their arrival.
    sequence: u64,
}

impl EventOrder {
    pub(in crate::sampler) fn push(&mut self, event: Event) {
        if event.time_ns < self.handed_on {
            self.late += 1;
        }
        self.waiting.push(Entry { event, sequence: self.next });
        self.next += 1;
    }

    /// Hands on every event up to this time (inclusive), earliest first.
    pub(in crate::sampler) fn drain(&mut self, until_ns: u64, handle: &mut impl FnMut(Event)) {
        while self.waiting.peek().is_some_and(|entry| entry.event.time_ns <= until_ns) {
            if let Some(entry) = self.waiting.pop() {
                self.handed_on = self.handed_on.max(entry.event.time_ns);
                handle(entry.event);
            }
        }
    }

    /// Events that arrived after later ones had been handed on.
    pub(in crate::sampler) fn late(&self) -> u64 {
        self.late
    }
}

impl Ord for Entry {
    /// Reversed: the heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.event.time_ns, other.sequence).cmp(&(self.event.time_ns, self.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::event::EventKind;

    fn exit(time_ns: u64, tid: u32) -> Event {
        Event { time_ns, kind: EventKind::Exit { pid: 1, tid } }
    }

    fn drained(order: &mut EventOrder, until_ns: u64) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        order.drain(until_ns, &mut |event| {
            if let EventKind::Exit { tid, .. } = event.kind {
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
    fn an_event_that_comes_too_late_is_counted_and_kept() {
        let mut order = EventOrder::default();
        order.push(exit(10, 1));
        assert_eq!(drained(&mut order, 10), [(10, 1)]);
        order.push(exit(9, 2));
        assert_eq!(drained(&mut order, 10), [(9, 2)]);
        assert_eq!(order.late(), 1);
    }
}
