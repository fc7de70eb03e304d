//! How much work one process's files may make: anybody can have a runtime write a lot, again and
//! again.

/// A process's files cost one part in so many of a CPU, in the long run.
const SHARE: u64 = 5;
/// What may be spent at once, in ns of CPU: enough for the large file of a process that is met.
const BURST_NS: i64 = 500_000_000;
/// What a byte counts for at least, in ns of CPU: as much as it takes to read and parse one.
const BYTE_NS: u64 = 12;
/// With less than this, in ns of CPU, no turn is begun.
const LEAST_NS: i64 = 4_000_000;

/// Who asks for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// There will be another turn.
    Later,
    /// Names are settled by what is known then: what is spent above the credit is missing later.
    LastChance,
    /// A person waits for all of it.
    Unlimited,
}

/// CPU time that may be spent on one process's files, by whoever reads in them.
#[derive(Debug)]
pub(super) struct Pace {
    /// In ns; negative after a last chance.
    credit_ns: i64,
    /// Until when credit was earned, ns of `CLOCK_MONOTONIC`.
    earned_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { credit_ns: BURST_NS, earned_ns: 0 }
    }
}

impl Pace {
    /// How many bytes may be read now; 0 for no turn at all.
    pub(super) fn allowance(&mut self, now_ns: u64, urgency: Urgency) -> u64 {
        let passed = now_ns.saturating_sub(self.earned_ns);
        self.earned_ns = self.earned_ns.max(now_ns);
        let earned = i64::try_from(passed / SHARE).unwrap_or(i64::MAX);
        self.credit_ns = self.credit_ns.saturating_add(earned).min(BURST_NS);
        let most_ns = match urgency {
            Urgency::Later => self.credit_ns,
            Urgency::LastChance => self.credit_ns.saturating_add(BURST_NS),
            Urgency::Unlimited => return u64::MAX,
        };
        if most_ns < LEAST_NS { 0 } else { most_ns.unsigned_abs() / BYTE_NS }
    }

    /// Takes what a turn has cost.
    pub(super) fn spend(&mut self, bytes: u64, cpu_ns: u64) {
        let cost = i64::try_from(cpu_ns.max(bytes.saturating_mul(BYTE_NS))).unwrap_or(i64::MAX);
        self.credit_ns = self.credit_ns.saturating_sub(cost).max(-BURST_NS);
    }

    /// When the next turn may be, ns of `CLOCK_MONOTONIC`.
    pub(super) fn ready_ns(&self) -> u64 {
        let missing = u64::try_from(LEAST_NS - self.credit_ns).unwrap_or(0);
        self.earned_ns + missing * SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_read_in_the_long_run_is_a_share_of_a_cpu_whoever_asks() {
        let (mut pace, mut bytes) = (Pace::default(), 0);
        for turn in 0..20_000 {
            let urgency = if turn % 1000 == 0 { Urgency::LastChance } else { Urgency::Later };
            let read = pace.allowance(SECOND + turn * 1_000_000, urgency).min(1 << 20);
            pace.spend(read, 0);
            bytes += read;
        }
        let allowed = 2 * BURST_NS.unsigned_abs() + 20 * SECOND / SHARE + LEAST_NS.unsigned_abs();
        assert!(bytes * BYTE_NS <= allowed && bytes * BYTE_NS > 4 * SECOND, "{bytes}");
    }

    #[test]
    fn a_turn_that_costs_more_than_its_bytes_is_paid_for() {
        let mut pace = Pace::default();
        assert!(pace.allowance(SECOND, Urgency::Later) > 1 << 20);
        pace.spend(10, BURST_NS.unsigned_abs());
        assert_eq!(pace.allowance(SECOND, Urgency::Later), 0);
        assert!(pace.allowance(SECOND, Urgency::LastChance) > 1 << 20);
        let ready = pace.ready_ns();
        assert_eq!(pace.allowance(ready - SHARE, Urgency::Later), 0);
        assert!(pace.allowance(ready, Urgency::Later) > 0);
    }
}
