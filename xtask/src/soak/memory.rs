//! Check that a daemon's memory doesn't grow.

use std::fs;

/// Resident memory of one run, in KiB, at equal intervals.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Vec<u64>);

/// Growth that is still flat: caches fill, allocators keep pages.
const FLAT_FACTOR: f64 = 1.1;
const FLAT_KIB: f64 = 8192.0;

impl Memory {
    pub(super) fn sample_rss(&mut self, daemon: u32) {
        let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        self.0.extend(line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()));
    }

    /// Mean of the second quarter and of the last one, in KiB; `None` if it was looked at too
    /// seldom.
    pub(super) fn quarters(&self) -> Option<(f64, f64)> {
        let quarter = self.0.len() / 4;
        let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
        (quarter > 0).then(|| (mean(&self.0[quarter..2 * quarter]), mean(&self.0[self.0.len() - quarter..])))
    }

    pub(super) fn is_flat(&self) -> bool {
        self.quarters().is_none_or(|(early, late)| late <= early * FLAT_FACTOR + FLAT_KIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_after_the_caches_are_full() {
        let filled = Memory([vec![1000; 10], vec![60_000; 90]].concat());
        assert!(filled.is_flat(), "{:?}", filled.quarters());
        let growing = Memory((0..100).map(|at| 60_000 + 1000 * at).collect());
        assert!(!growing.is_flat(), "{:?}", growing.quarters());
    }
}
