//! Budget of the CPU time for reading one perf map or jitdump, since any process can make its
//! runtime write a lot, again and again.

use std::time::Duration;

use crate::budget::TimeBudget;

/// Divisor of the CPU time of one CPU: reading a file takes at most 1/SHARE of it in the long run.
const SHARE: u64 = 5;
/// CPU time that may be spent at once, in ns: enough for the large file of a process that ran
/// before the profiler.
const BURST_NS: i64 = 500_000_000;
/// CPU time that a byte counts for at least, in ns: the time that reading and parsing one takes.
const BYTE_NS: u64 = 12;
/// Least CPU time with which a turn of reading begins, in ns.
const MIN_TURN_NS: i64 = 4_000_000;

/// Urgency of a turn of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadUrgency {
    /// A turn that another one follows.
    Deferrable,
    /// Frames are named afterwards by the entries that have been read: the turn may overdraw the
    /// budget, and later turns pay for it.
    Final,
    /// A person waits for the whole file.
    Unlimited,
}

/// CPU time that may be spent on one file, on whichever thread.
#[derive(Debug)]
pub(super) struct ReadingBudget(TimeBudget);

impl Default for ReadingBudget {
    fn default() -> Self {
        Self(TimeBudget::new(SHARE, Duration::from_nanos(BURST_NS.unsigned_abs())))
    }
}

impl ReadingBudget {
    /// Returns the bytes that may be read now; 0 if no turn may begin.
    pub(super) fn bytes_allowed(&mut self, now_ns: u64, urgency: ReadUrgency) -> u64 {
        let credit_ns = self.0.credit_ns(now_ns);
        let most_ns = match urgency {
            ReadUrgency::Deferrable => credit_ns,
            ReadUrgency::Final => credit_ns.saturating_add(BURST_NS),
            ReadUrgency::Unlimited => return u64::MAX,
        };
        if most_ns < MIN_TURN_NS { 0 } else { most_ns.unsigned_abs() / BYTE_NS }
    }

    /// Subtracts the cost of a turn that has read `bytes` in `cpu_ns` of CPU time.
    pub(super) fn charge(&mut self, bytes: u64, cpu_ns: u64) {
        self.0.charge(Duration::from_nanos(cpu_ns.max(bytes.saturating_mul(BYTE_NS))));
        self.0.limit_debt();
    }

    /// Returns the time when the next turn may begin, in ns of `CLOCK_MONOTONIC`.
    pub(super) fn ready_ns(&self) -> u64 {
        self.0.time_of_credit(MIN_TURN_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_is_read_in_the_long_run_is_a_share_of_a_cpu_for_every_reader() {
        let (mut budget, mut bytes) = (ReadingBudget::default(), 0);
        for turn in 0..20_000 {
            let urgency = if turn % 1000 == 0 { ReadUrgency::Final } else { ReadUrgency::Deferrable };
            let read = budget.bytes_allowed(SECOND + turn * 1_000_000, urgency).min(1 << 20);
            budget.charge(read, 0);
            bytes += read;
        }
        let allowed = 2 * BURST_NS.unsigned_abs() + 20 * SECOND / SHARE + MIN_TURN_NS.unsigned_abs();
        assert!(bytes * BYTE_NS <= allowed && bytes * BYTE_NS > 4 * SECOND, "{bytes}");
    }

    #[test]
    fn a_turn_that_costs_more_than_its_bytes_is_paid_for() {
        let mut budget = ReadingBudget::default();
        assert!(budget.bytes_allowed(SECOND, ReadUrgency::Deferrable) > 1 << 20);
        budget.charge(10, BURST_NS.unsigned_abs());
        assert_eq!(budget.bytes_allowed(SECOND, ReadUrgency::Deferrable), 0);
        assert!(budget.bytes_allowed(SECOND, ReadUrgency::Final) > 1 << 20);
        let ready = budget.ready_ns();
        assert_eq!(budget.bytes_allowed(ready - SHARE, ReadUrgency::Deferrable), 0);
        assert!(budget.bytes_allowed(ready, ReadUrgency::Deferrable) > 0);
    }
}
