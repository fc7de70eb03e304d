//! Token bucket of time, for work that must not delay other work.

use std::time::Duration;

/// Budget of time: at most 1/`share` of the time that passes, and at most `burst` at once. Times
/// are those of `CLOCK_MONOTONIC`, in ns.
#[derive(Debug)]
pub(crate) struct TimeBudget {
    share: u64,
    burst_ns: i64,
    /// Negative once something took longer than was left.
    credit_ns: i64,
    /// Time up to which credit has been added.
    refilled_ns: u64,
}

impl TimeBudget {
    /// Returns a full budget.
    pub(crate) fn new(share: u64, burst: Duration) -> Self {
        let burst_ns = saturated(burst.as_nanos());
        Self { share, burst_ns, credit_ns: burst_ns, refilled_ns: 0 }
    }

    /// Adds the time earned until `now_ns`, and returns what is left.
    pub(crate) fn credit_ns(&mut self, now_ns: u64) -> i64 {
        let passed = now_ns.saturating_sub(self.refilled_ns);
        self.refilled_ns = self.refilled_ns.max(now_ns);
        let earned = saturated((passed / self.share).into());
        self.credit_ns = self.credit_ns.saturating_add(earned).min(self.burst_ns);
        self.credit_ns
    }

    /// Adds the time earned until `now_ns`. Returns true if any is left.
    pub(crate) fn has_time(&mut self, now_ns: u64) -> bool {
        self.credit_ns(now_ns) > 0
    }

    /// Subtracts time that was spent.
    pub(crate) fn charge(&mut self, time: Duration) {
        self.credit_ns = self.credit_ns.saturating_sub(saturated(time.as_nanos()));
    }

    /// Writes off a debt beyond one burst.
    pub(crate) fn limit_debt(&mut self) {
        self.credit_ns = self.credit_ns.max(-self.burst_ns);
    }

    /// Returns the time when so much is left.
    pub(crate) fn time_of_credit(&self, credit_ns: i64) -> u64 {
        let missing = u64::try_from(credit_ns - self.credit_ns).unwrap_or(0);
        self.refilled_ns + missing * self.share
    }
}

fn saturated(nanoseconds: u128) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_it_takes_a_part_of_the_time() {
        let mut budget = TimeBudget::new(4, Duration::from_secs(1));
        let mut now_ns = 1_000_000_000_000;
        let mut took = Duration::ZERO;
        for _ in 0..10_000 {
            now_ns += 10_000_000;
            if budget.has_time(now_ns) {
                budget.charge(Duration::from_millis(50));
                took += Duration::from_millis(50);
            }
        }
        assert!((Duration::from_secs(25)..Duration::from_secs(28)).contains(&took), "{took:?} of 100 s");
    }
}
