//! Token bucket of time, for work that must not delay other work.

use std::time::{Duration, Instant};

/// Budget of time: at most 1/`share` of the time that passes, and at most `burst` at once.
#[derive(Debug)]
pub(crate) struct TimeBudget {
    share: u32,
    burst: Duration,
    /// Nanoseconds; negative once something took longer than was left.
    credit_ns: i64,
    refilled: Instant,
}

impl TimeBudget {
    /// Returns a full budget.
    pub(crate) fn new(share: u32, burst: Duration) -> Self {
        Self { share, burst, credit_ns: nanoseconds(burst), refilled: Instant::now() }
    }

    /// Adds the time earned until `now`. Returns true if any is left.
    pub(crate) fn has_time(&mut self, now: Instant) -> bool {
        let earned = nanoseconds(now.saturating_duration_since(self.refilled) / self.share);
        self.credit_ns = self.credit_ns.saturating_add(earned).min(nanoseconds(self.burst));
        self.refilled = now;
        self.credit_ns > 0
    }

    /// Subtracts time that was spent.
    pub(crate) fn charge(&mut self, time: Duration) {
        self.credit_ns = self.credit_ns.saturating_sub(nanoseconds(time));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_it_takes_a_part_of_the_time() {
        let mut budget = TimeBudget::new(4, Duration::from_secs(1));
        let mut now = Instant::now();
        let mut took = Duration::ZERO;
        for _ in 0..10_000 {
            now += Duration::from_millis(10);
            if budget.has_time(now) {
                budget.charge(Duration::from_millis(50));
                took += Duration::from_millis(50);
            }
        }
        assert!((Duration::from_secs(25)..Duration::from_secs(28)).contains(&took), "{took:?} of 100 s");
    }
}
