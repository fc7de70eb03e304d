//! The requests under way to a server: how many and of how many bytes there are, and how many may
//! be. After a failure that is one, and one more with each answer, because all that are under way
//! when a server breaks down are at stake.
//!
//! Those that began before the last failure may hang until their time is over, although the server
//! is back: they take memory, and no room of those that come after them.

use crate::export::delivery::options::MAX_CONCURRENCY;

/// Bytes of requests that began since the last failure: they take as much and at most one request
/// more. All together take twice as much and one request more.
const MAX_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServerLoad {
    requests: usize,
    bytes: usize,
}

impl ServerLoad {
    fn remove(&mut self, bytes: usize) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Requests under way and their limit.
#[derive(Debug)]
pub(super) struct Concurrency {
    /// How many may be under way now.
    limit: usize,
    /// The most that this becomes.
    most: usize,
    /// That began since the last failure.
    current: ServerLoad,
    /// That began before it.
    stale: ServerLoad,
}

impl Concurrency {
    /// Begins with a limit of one.
    pub(super) fn new(most: usize) -> Self {
        Self { limit: 1, most, current: ServerLoad::default(), stale: ServerLoad::default() }
    }

    /// Returns true if a further request may begin. Together with those that hang they are twice as
    /// many as the limit becomes.
    pub(super) fn has_capacity(&self) -> bool {
        let ServerLoad { requests, bytes } = self.current;
        let all = requests + self.stale.requests;
        if all == 0 {
            return true;
        }
        // The ledger has no room for more.
        all < MAX_CONCURRENCY.min(2 * self.most)
            && bytes + self.stale.bytes < 2 * MAX_BYTES
            && (requests == 0 || requests < self.limit && bytes < MAX_BYTES)
    }

    pub(super) fn begin(&mut self, bytes: usize) {
        self.current.requests += 1;
        self.current.bytes += bytes;
    }

    /// Ends a request. `is_current`: it began since the last failure.
    pub(super) fn end(&mut self, bytes: usize, is_current: bool) {
        if is_current { self.current.remove(bytes) } else { self.stale.remove(bytes) }
    }

    /// Notes that a request was answered that began since the last failure: one more may be under
    /// way.
    pub(super) fn note_delivered(&mut self) {
        self.limit = (self.limit + 1).min(self.most);
    }

    /// A request failed: what is under way has begun before that.
    pub(super) fn note_failure(&mut self) {
        self.limit = 1;
        let ServerLoad { requests, bytes } = std::mem::take(&mut self.current);
        self.stale.requests += requests;
        self.stale.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_limit(limit: usize) -> Concurrency {
        let mut concurrency = Concurrency::new(32);
        (1..limit).for_each(|_| concurrency.note_delivered());
        concurrency
    }

    #[test]
    fn the_limit_is_one_after_a_failure_and_grows_with_each_answer() {
        let mut concurrency = with_limit(100);
        for _ in 0..32 {
            assert!(concurrency.has_capacity());
            concurrency.begin(1);
        }
        assert!(!concurrency.has_capacity());
        (0..32).for_each(|_| concurrency.end(1, true));
        concurrency.note_failure();
        concurrency.begin(1);
        assert!(!concurrency.has_capacity());
        concurrency.note_delivered();
        assert!(concurrency.has_capacity());
    }

    #[test]
    fn what_hangs_from_before_a_failure_takes_no_room_but_memory() {
        let mut concurrency = with_limit(4);
        (0..4).for_each(|_| concurrency.begin(1));
        assert!(!concurrency.has_capacity());
        concurrency.note_failure();
        assert!(concurrency.has_capacity());
        concurrency.begin(1);
        assert!(!concurrency.has_capacity());
        (0..4).for_each(|_| concurrency.end(1, false));
        assert!(!concurrency.has_capacity());
        concurrency.end(1, true);
        assert!(concurrency.has_capacity());
    }

    #[test]
    fn bytes_and_the_number_of_all_are_bounded() {
        let mut concurrency = with_limit(32);
        // However large: it is alone.
        concurrency.begin(16 << 20);
        assert!(!concurrency.has_capacity());
        concurrency.note_failure();
        assert!(!concurrency.has_capacity(), "memory is full of what hangs");
        concurrency.end(16 << 20, false);
        for _ in 0..MAX_CONCURRENCY {
            assert!(concurrency.has_capacity());
            concurrency.begin(1);
            concurrency.note_failure();
        }
        assert!(!concurrency.has_capacity(), "the ledger is full of what hangs");
        concurrency.end(1, false);
        (0..31).for_each(|_| concurrency.note_delivered());
        (0..2).for_each(|_| concurrency.begin(2 << 20));
        assert!(!concurrency.has_capacity());
    }
}
