//! Sampling periods by CPU and time, since the frequency may change.

use std::collections::{HashMap, VecDeque};

/// Most changes that are kept: no sample is under way for longer than those take.
const MAX_CHANGES: usize = 16;

/// Returns the nanoseconds between the samples of a CPU at this frequency.
pub fn period_ns(frequency: u32) -> u64 {
    1_000_000_000 / u64::from(frequency.max(1))
}

/// A change of the frequency, at a time that differs from CPU to CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequencyChange {
    /// Samples per second and CPU from then on.
    pub frequency: u32,
    /// `CLOCK_MONOTONIC` before the first CPU was changed, ns: for CPUs that were offline.
    pub began_ns: u64,
    /// `CLOCK_MONOTONIC` between the last sample with the old and the first with the new frequency,
    /// by CPU, ns.
    pub cpus: HashMap<u32, u64>,
}

/// Sampling periods by CPU and time.
#[derive(Clone, Debug)]
pub struct SamplingPeriods {
    /// Frequency before all changes that are kept.
    first: u32,
    changes: VecDeque<FrequencyChange>,
}

impl SamplingPeriods {
    /// Makes the periods of a sampler that begins with this frequency.
    pub fn new(frequency: u32) -> Self {
        Self { first: frequency, changes: VecDeque::new() }
    }

    pub fn change(&mut self, change: FrequencyChange) {
        self.changes.push_back(change);
        if self.changes.len() > MAX_CHANGES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.first = oldest.frequency;
        }
    }

    /// Returns the period of a sample, in ns.
    pub fn period_at(&self, cpu: u32, time_ns: u64) -> u64 {
        let is_before =
            |change: &&FrequencyChange| change.cpus.get(&cpu).unwrap_or(&change.began_ns) <= &time_ns;
        period_ns(self.changes.iter().rev().find(is_before).map_or(self.first, |change| change.frequency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(frequency: u32, began_ns: u64, cpus: &[(u32, u64)]) -> FrequencyChange {
        FrequencyChange { frequency, began_ns, cpus: cpus.iter().copied().collect() }
    }

    #[test]
    fn each_cpu_has_its_own_moment_of_change() {
        let mut periods = SamplingPeriods::new(100);
        assert_eq!(periods.period_at(0, 5), 10_000_000);
        periods.change(change(50, 10, &[(0, 12), (1, 14)]));
        periods.change(change(10, 100, &[(0, 112)]));
        for (cpu, time, period) in [
            (0, 11, 10_000_000),
            (0, 12, 20_000_000),
            (1, 13, 10_000_000),
            (1, 14, 20_000_000),
            (0, 111, 20_000_000),
            (0, 112, 100_000_000),
            // Offline at the second change.
            (1, 100, 100_000_000),
            // Offline at both.
            (2, 9, 10_000_000),
            (2, 10, 20_000_000),
        ] {
            assert_eq!(periods.period_at(cpu, time), period, "CPU {cpu} at {time}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut periods = SamplingPeriods::new(1000);
        for index in 1..=40 {
            periods.change(change(index, u64::from(index) * 10, &[]));
        }
        assert_eq!(periods.changes.len(), MAX_CHANGES);
        assert_eq!(periods.period_at(0, 405), period_ns(40));
        assert_eq!(periods.period_at(0, 0), period_ns(24));
    }
}
