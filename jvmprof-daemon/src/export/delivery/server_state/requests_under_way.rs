//! The requests under way to a server: how many, and of how many bytes.
//!
//! Those that began before the last failure may hang until their time is over, although the server
//! is back: they take memory, and no room of those that come after them.

use crate::export::delivery::options::MAX_CONCURRENCY;

/// Bytes of requests that began since the last failure: they take as much and at most one request
/// more. All together take twice as much and one request more.
const MAX_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    requests: usize,
    bytes: usize,
}

impl Load {
    fn remove(&mut self, bytes: usize) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Counts of requests under way.
#[derive(Debug, Default)]
pub(super) struct RequestsUnderWay {
    /// That began since the last failure.
    current: Load,
    /// That began before it.
    stale: Load,
}

impl RequestsUnderWay {
    /// Returns true if a further request may begin: `concurrency` may be under way now, and `most`
    /// at other times. Together with those that hang they are twice as many at most.
    pub(super) fn has_room(&self, concurrency: usize, most: usize) -> bool {
        let Load { requests, bytes } = self.current;
        let all = requests + self.stale.requests;
        if all == 0 {
            return true;
        }
        // The ledger has no room for more.
        all < MAX_CONCURRENCY.min(2 * most)
            && bytes + self.stale.bytes < 2 * MAX_BYTES
            && (requests == 0 || requests < concurrency && bytes < MAX_BYTES)
    }

    pub(super) fn begin(&mut self, bytes: usize) {
        self.current.requests += 1;
        self.current.bytes += bytes;
    }

    /// A request has ended. `is_current`: it began since the last failure.
    pub(super) fn end(&mut self, bytes: usize, is_current: bool) {
        if is_current { self.current.remove(bytes) } else { self.stale.remove(bytes) }
    }

    /// A request failed: what is under way has begun before that.
    pub(super) fn note_failure(&mut self) {
        let Load { requests, bytes } = std::mem::take(&mut self.current);
        self.stale.requests += requests;
        self.stale.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_from_before_a_failure_takes_no_room_but_memory() {
        let mut under_way = RequestsUnderWay::default();
        (0..4).for_each(|_| under_way.begin(1));
        assert!(!under_way.has_room(4, 32));
        under_way.note_failure();
        assert!(under_way.has_room(1, 32));
        under_way.begin(1);
        assert!(!under_way.has_room(1, 32) && under_way.has_room(2, 32));
        (0..4).for_each(|_| under_way.end(1, false));
        assert!(!under_way.has_room(1, 32));
        under_way.end(1, true);
        assert!(under_way.has_room(1, 32));
    }

    #[test]
    fn bytes_and_the_number_of_all_are_bounded() {
        let mut under_way = RequestsUnderWay::default();
        // However large: it is alone.
        under_way.begin(16 << 20);
        assert!(!under_way.has_room(32, 32));
        under_way.note_failure();
        assert!(!under_way.has_room(32, 32), "memory is full of what hangs");
        under_way.end(16 << 20, false);
        for _ in 0..MAX_CONCURRENCY {
            assert!(under_way.has_room(1, 32));
            under_way.begin(1);
            under_way.note_failure();
        }
        assert!(!under_way.has_room(1, 32), "the ledger is full of what hangs");
        under_way.end(1, false);
        (0..2).for_each(|_| under_way.begin(2 << 20));
        assert!(!under_way.has_room(32, 32));
    }
}
