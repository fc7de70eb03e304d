//! How many requests that failed by themselves while the server took others are sent again at a
//! time: one at first, one more with each that is taken, and none for a while after one that isn't.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

#[derive(Debug)]
pub(in crate::export::delivery) struct RetryLimiter {
    /// Delays that differ by chance, so that many daemons don't retry at the same time.
    delays: ExponentialBackoff,
    longest: Duration,
    next: Instant,
    under_way: usize,
    /// The most that may be under way.
    room: usize,
}

impl RetryLimiter {
    /// A first request may be retried at once. `delay`: after one that wasn't taken, and up to
    /// twice as long.
    pub(in crate::export::delivery) fn new(delay: Duration, now: Instant) -> Self {
        let delays = ExponentialBuilder::default().with_jitter().with_min_delay(delay);
        let delays = delays.with_max_delay(delay).without_max_times().build();
        Self { delays, longest: 2 * delay, next: now, under_way: 0, room: 1 }
    }

    /// Returns the time from which the next one may be sent; `None`: not before one of those under
    /// way has ended.
    pub(in crate::export::delivery) fn next(&self) -> Option<Instant> {
        (self.under_way < self.room).then_some(self.next)
    }

    pub(in crate::export::delivery) fn begin(&mut self) {
        self.under_way += 1;
    }

    pub(in crate::export::delivery) fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    pub(in crate::export::delivery) fn note_delivered(&mut self) {
        self.room += 1;
    }

    /// A request wasn't taken although the server answers.
    pub(in crate::export::delivery) fn note_failure(&mut self, now: Instant) {
        self.room = 1;
        self.next = now + self.delays.next().unwrap_or(self.longest);
    }

    /// The server takes nothing: those under way are given up, and one is the first again.
    pub(in crate::export::delivery) fn restart(&mut self) {
        (self.under_way, self.room) = (0, 1);
    }

    /// Sends none before this time.
    pub(in crate::export::delivery) fn delay_until(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(30);

    #[test]
    fn one_goes_first_and_each_that_is_taken_makes_room_for_one_more() {
        let now = Instant::now();
        let mut limiter = RetryLimiter::new(DELAY, now);
        for room in 1..5 {
            for _ in 0..room {
                assert_eq!(limiter.next(), Some(now));
                limiter.begin();
            }
            assert_eq!(limiter.next(), None);
            limiter.note_delivered();
            (0..room).for_each(|_| limiter.end());
        }
        limiter.restart();
        limiter.begin();
        assert_eq!(limiter.next(), None);
    }

    #[test]
    fn after_one_that_is_not_taken_none_goes_for_a_while_that_differs() {
        let now = Instant::now();
        let mut limiter = RetryLimiter::new(DELAY, now);
        let mut next = || {
            limiter.note_failure(now);
            limiter.next().expect("nothing is under way") - now
        };
        let delays: Vec<_> = (0..20).map(|_| next()).collect();
        assert!(delays.iter().all(|delay| (DELAY..=2 * DELAY).contains(delay)), "{delays:?}");
        assert!(delays.iter().any(|delay| *delay != delays[0]), "{delays:?}");
    }
}
