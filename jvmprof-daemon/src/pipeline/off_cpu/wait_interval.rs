//! The interval at which waits are kept: as wanted, or less often where that would be too many.

use std::time::{Duration, Instant};

use super::OffCpuOptions;

/// Interval of the adjustments.
const INTERVAL: Duration = Duration::from_millis(250);
/// The most that distances can be, ns.
const MOST: u64 = 1 << 40;

/// The distance that is in use.
#[derive(Debug)]
pub(super) struct WaitInterval {
    adjusted: Instant,
    least: u64,
    interval: u64,
    /// Kept waits a second, at most.
    max_events: u32,
    kept: u64,
}

impl WaitInterval {
    pub(super) fn new(options: &OffCpuOptions) -> Self {
        let least = options.interval.clamp(1, MOST);
        Self { adjusted: Instant::now(), least, interval: least, max_events: options.max_events, kept: 0 }
    }

    pub(super) const fn interval(&self) -> u64 {
        self.interval
    }

    /// Counts a wait that was kept.
    pub(super) fn count(&mut self) {
        self.kept += 1;
    }

    /// Returns the distance from now on, if it is another one.
    pub(super) fn adjust(&mut self, now: Instant) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.adjusted);
        if elapsed < INTERVAL {
            return None;
        }
        self.adjusted = now;
        let kept = std::mem::take(&mut self.kept);
        let most = (f64::from(self.max_events) * elapsed.as_secs_f64()).max(1.0) as u64;
        let interval = if kept > most {
            // Long waits are kept all the same: it may take several turns.
            (u128::from(self.interval) * u128::from(kept) / u128::from(most)).min(u128::from(MOST)) as u64
        } else if kept < most / 2 {
            (self.interval / 2).max(self.least)
        } else {
            self.interval
        };
        (std::mem::replace(&mut self.interval, interval) != interval).then_some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_follows_the_rate_within_limits() {
        let options = OffCpuOptions { interval: 1000, max_events: 400, ..OffCpuOptions::default() };
        let mut wait_interval = WaitInterval::new(&options);
        let mut now = Instant::now();
        let mut turn = |wait_interval: &mut WaitInterval, kept: u64| {
            (0..kept).for_each(|_| wait_interval.count());
            now += INTERVAL;
            wait_interval.adjust(now);
            wait_interval.interval()
        };
        assert_eq!(turn(&mut wait_interval, 1), 1000);
        assert!((9_000..=10_000).contains(&turn(&mut wait_interval, 1000)));
        let grown = wait_interval.interval();
        assert_eq!(turn(&mut wait_interval, 60), grown);
        assert_eq!(turn(&mut wait_interval, 3), grown / 2);
        for _ in 0..20 {
            turn(&mut wait_interval, 0);
        }
        assert_eq!(wait_interval.interval(), 1000);
        for _ in 0..20 {
            turn(&mut wait_interval, 1_000_000);
        }
        assert_eq!(wait_interval.interval(), MOST);
        assert_eq!(wait_interval.adjust(now), None, "not yet");
    }
}
