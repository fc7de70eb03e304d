//! State of a server as far as it is known: whether it takes requests at the moment, and how many
//! at once.
//!
//! Several requests may be under way, so that one can fail while others are still without an
//! answer. Each has a [`RequestStart`]: what an answer says of the server counts only if nothing
//! has failed since its request began.

mod concurrency;
mod retry_limiter;

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::options::DeliveryOptions;
use concurrency::Concurrency;
use retry_limiter::RetryLimiter;

/// Longest time that a server's `Retry-After` is kept to: a day there may be a mistake.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct ServerState {
    options: DeliveryOptions,
    backoff: ExponentialBackoff,
    concurrency: Concurrency,
    pub(super) retries: RetryLimiter,
    /// Number of failures.
    epoch: u64,
    /// The time at which a server that doesn't take anything is probed again.
    retry_at: Option<Instant>,
    /// The last thing was an answer to an empty request.
    probe_answered: bool,
    /// Something was delivered since the last failure.
    delivered_since_failure: bool,
}

/// The server's state when a request began.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestStart {
    epoch: u64,
    bytes: usize,
    /// It has failed before while others were taken.
    is_retry: bool,
    /// The server had just answered an empty request: if this one fails, it is its own fault.
    pub(super) is_after_probe: bool,
}

fn backoff(options: &DeliveryOptions) -> ExponentialBackoff {
    backoff_builder(options).build()
}

/// Returns what makes the delays after failures.
pub(super) fn backoff_builder(options: &DeliveryOptions) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(options.first_delay)
        .with_max_delay(options.max_delay)
        .without_max_times()
}

impl ServerState {
    /// Makes the state of a server of which nothing is known yet. `retry_at`: when to probe it
    /// first, if at all.
    pub(super) fn new(options: &DeliveryOptions, max_concurrency: usize, retry_at: Option<Instant>) -> Self {
        Self {
            options: options.clone(),
            backoff: backoff(options),
            concurrency: Concurrency::new(max_concurrency),
            retries: RetryLimiter::new(options.max_delay, Instant::now()),
            epoch: 0,
            retry_at,
            probe_answered: false,
            delivered_since_failure: false,
        }
    }

    /// Returns the time at which the server is to be probed, if it takes nothing now.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns true if a further request may begin.
    pub(super) fn has_capacity(&self) -> bool {
        self.concurrency.has_capacity()
    }

    /// Returns true if something was delivered since the last failure.
    pub(super) fn has_delivered(&self) -> bool {
        self.delivered_since_failure
    }

    /// As [`Self::has_delivered`], which begins anew.
    pub(super) fn take_has_delivered(&mut self) -> bool {
        std::mem::take(&mut self.delivered_since_failure)
    }

    /// A request of so many bytes begins. `is_retry`: it has failed before while others were taken.
    pub(super) fn begin(&mut self, bytes: usize, is_retry: bool) -> RequestStart {
        self.concurrency.begin(bytes);
        if is_retry {
            self.retries.begin();
        }
        let is_after_probe = std::mem::take(&mut self.probe_answered);
        RequestStart { epoch: self.epoch, bytes, is_retry, is_after_probe }
    }

    /// Ends a request, however it ended: what it means is noted afterwards.
    pub(super) fn end(&mut self, start: RequestStart) {
        let is_current = self.is_current(start);
        self.concurrency.end(start.bytes, is_current);
        if is_current && start.is_retry {
            self.retries.end();
        }
    }

    /// Returns true if nothing has failed since a request began.
    pub(super) fn is_current(&self, start: RequestStart) -> bool {
        start.epoch == self.epoch
    }

    /// Something of a request was stored.
    pub(super) fn note_delivered(&mut self, start: RequestStart) {
        if self.is_current(start) {
            self.delivered_since_failure = true;
            self.backoff = backoff(&self.options);
            self.concurrency.note_delivered();
            if start.is_retry {
                self.retries.note_delivered();
            }
        }
    }

    /// An empty request was answered.
    pub(super) fn note_probe_answered(&mut self) {
        (self.retry_at, self.probe_answered) = (None, true);
    }

    /// A request failed, or (then `start` is `None`) an empty one: nothing is sent for a while, and
    /// not before the time that the server asks for. Gives the delay, unless the failure says
    /// nothing that an earlier one hasn't said.
    pub(super) fn note_failure(
        &mut self,
        start: Option<RequestStart>,
        retry_after: Option<Duration>,
        now: Instant,
    ) -> Option<Duration> {
        let asked = retry_after.map(|asked| asked.min(MAX_RETRY_AFTER));
        if start.is_some_and(|start| !self.is_current(start)) {
            // By chance a little more, for the same reason as below. Its delays go on from where
            // the first failure has left them.
            let until = now + asked? + backoff(&self.options).next().unwrap_or_default();
            let is_later = self.retry_at.is_none_or(|at| at < until);
            self.retry_at = self.retry_at.max(Some(until));
            return is_later.then(|| until - now);
        }
        self.epoch += 1;
        self.concurrency.note_failure();
        self.retries.restart();
        (self.delivered_since_failure, self.probe_answered) = (false, false);
        // The back-off on top of it, because daemons that were asked together needn't come
        // together.
        let delay = asked.unwrap_or_default() + self.backoff.next().unwrap_or(self.options.max_delay);
        self.retry_at = Some(now + delay);
        Some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DeliveryOptions {
        let delay = Duration::from_secs(10);
        DeliveryOptions { first_delay: delay, max_delay: 8 * delay, ..DeliveryOptions::default() }
    }

    #[test]
    fn one_more_request_with_each_answer_and_a_single_one_after_a_failure() {
        let mut server = ServerState::new(&options(), 4, None);
        for expected in [1, 2, 3, 4, 4] {
            let mut starts = Vec::new();
            while server.has_capacity() {
                starts.push(server.begin(1, false));
            }
            assert_eq!(starts.len(), expected, "{server:?}");
            starts.iter().for_each(|start| server.end(*start));
            server.note_delivered(starts[0]);
        }
        let hanging: Vec<_> = (0..3).map(|_| server.begin(1, false)).collect();
        let start = server.begin(1, false);
        assert!(!server.has_capacity(), "{server:?}");
        server.end(start);
        assert!(server.note_failure(Some(start), None, Instant::now()).is_some());
        // What hangs since before the failure takes no room.
        assert!(server.has_capacity(), "{server:?}");
        let first = server.begin(1, false);
        assert!(!server.has_capacity(), "{server:?}");
        hanging.into_iter().for_each(|start| server.end(start));
        assert!(!server.has_capacity(), "{server:?}");
        server.end(first);
        assert!(server.has_capacity(), "{server:?}");
    }

    #[test]
    fn requests_that_fail_together_are_one_failure_and_late_answers_change_nothing() {
        let mut server = ServerState::new(&options(), 4, None);
        let starts: Vec<_> = (0..4).map(|_| server.begin(1, false)).collect();
        assert!(server.note_failure(Some(starts[0]), None, Instant::now()).is_some());
        let until = server.retry_at();
        assert_eq!(server.note_failure(Some(starts[1]), None, Instant::now()), None);
        server.note_delivered(starts[2]);
        assert_eq!((server.retry_at(), server.has_delivered()), (until, false));
        server.begin(1, false);
        assert!(!server.has_capacity(), "{server:?}");
        // But what it asks for is heeded, whichever answer says it.
        let asked = Duration::from_secs(60);
        let now = Instant::now();
        let delay = server.note_failure(Some(starts[3]), Some(asked), now).expect("a delay");
        assert!(delay >= asked, "{delay:?}");
        assert_eq!(server.retry_at(), Some(now + delay));
    }

    #[test]
    fn daemons_that_are_asked_for_time_together_do_not_come_back_together() {
        let asked = Duration::from_secs(60);
        let delay = |has_failed_before: bool| {
            let mut server = ServerState::new(&options(), 4, None);
            let starts = [server.begin(1, false), server.begin(1, false)];
            let now = Instant::now();
            if has_failed_before {
                server.note_failure(Some(starts[0]), None, now);
            }
            server.note_failure(Some(starts[1]), Some(asked), now).expect("a delay")
        };
        for has_failed_before in [false, true] {
            let delays: Vec<_> = (0..20).map(|_| delay(has_failed_before)).collect();
            let range = asked + options().first_delay..=asked + 2 * options().first_delay;
            assert!(delays.iter().all(|delay| range.contains(delay)), "{delays:?}");
            assert!(delays.iter().any(|delay| *delay != delays[0]), "{delays:?}");
        }
    }

    #[test]
    fn only_the_request_that_follows_an_answered_probe_is_at_fault_itself() {
        let mut server = ServerState::new(&options(), 4, Some(Instant::now()));
        server.note_probe_answered();
        assert_eq!(server.retry_at(), None);
        assert!(server.begin(1, false).is_after_probe);
        assert!(!server.begin(1, false).is_after_probe);
    }

    #[test]
    fn delays_become_longer_with_each_failure_however_often_probes_are_answered_in_between() {
        let mut server = ServerState::new(&options(), 1, None);
        let delays: Vec<_> = (0..5)
            .map(|_| {
                let start = server.begin(1, false);
                server.end(start);
                let delay = server.note_failure(Some(start), None, Instant::now()).expect("a delay");
                server.note_probe_answered();
                delay
            })
            .collect();
        for (delay, least) in delays.iter().zip([10, 20, 40, 80, 80]) {
            let least = Duration::from_secs(least);
            assert!((least..=2 * least).contains(delay), "{delays:?}");
        }
    }

    #[test]
    fn a_day_of_patience_is_too_much_to_ask_for() {
        let mut server = ServerState::new(&options(), 1, None);
        let start = server.begin(1, false);
        let day = Some(Duration::from_secs(86_400));
        let delay = server.note_failure(Some(start), day, Instant::now()).expect("a delay");
        assert!(delay > MAX_RETRY_AFTER && delay < MAX_RETRY_AFTER + Duration::from_secs(20), "{delay:?}");
    }
}
