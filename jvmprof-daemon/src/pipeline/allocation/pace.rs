//! How often events are kept and buffers are counted: as wanted, or less often where that would
//! cost too much.

use std::time::{Duration, Instant};

use super::AllocationOptions;

/// How often it is adjusted.
const INTERVAL: Duration = Duration::from_millis(250);
/// Distances of censuses, in bytes that one thread allocates. At first most of what a small program
/// allocates is counted.
const FIRST_CENSUS: u64 = 2 << 20;
/// Times the least distance of kept events that the first one is: of a program that allocates much
/// too many would be kept until the first adjustment.
const FIRST_TIMES: u64 = 4;
const LEAST_CENSUS: u64 = 64 << 10;
const MOST: u64 = 1 << 38;
/// Times the limit of one JVM that all JVMs together may keep.
const JVMS_AT_LIMIT: u32 = 4;
/// Times their share that censuses may take until the next adjustment.
const BURST: f64 = 4.0;

/// The distances that are in use.
#[derive(Debug)]
pub(super) struct Pace {
    adjusted: Instant,
    least_interval: u64,
    census_interval: u64,
    /// JVMs of which many events are kept.
    busy_jvms: u32,
    /// The share of one CPU that censuses may take.
    census_share: f64,
    /// What they have taken since the last adjustment.
    spent: Duration,
}

impl Pace {
    pub(super) fn new(options: &AllocationOptions) -> Self {
        Self {
            adjusted: Instant::now(),
            least_interval: options.interval.max(1),
            busy_jvms: 0,
            census_interval: if options.census_cpu_ppm == 0 { 0 } else { FIRST_CENSUS },
            census_share: f64::from(options.census_cpu_ppm) / 1e6,
            spent: Duration::ZERO,
        }
    }

    /// Returns the distance of kept events of a JVM that is new.
    pub(super) fn first_interval(&self) -> u64 {
        (self.least_interval * FIRST_TIMES).min(MOST).max(self.least_interval)
    }

    /// The mean distance of censuses; 0: there are none.
    pub(super) const fn census_interval(&self) -> u64 {
        self.census_interval
    }

    /// A census took so long.
    pub(super) fn charge(&mut self, took: Duration) {
        self.spent += took;
    }

    /// Returns true if no more can be counted until the next adjustment.
    pub(super) fn is_exhausted(&self) -> bool {
        self.spent.as_secs_f64() > BURST * self.census_share * INTERVAL.as_secs_f64()
    }

    /// Returns true if it is time to adjust, and adjusts the distance of censuses.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.adjusted);
        if elapsed < INTERVAL {
            return false;
        }
        self.adjusted = now;
        let share = std::mem::take(&mut self.spent).as_secs_f64() / elapsed.as_secs_f64();
        if self.census_interval != 0 {
            // No faster, since the cost of few censuses is known by chance.
            let factor = (share / self.census_share).clamp(0.5, 4.0);
            let interval = (self.census_interval as f64 * factor) as u64;
            self.census_interval = interval.clamp(LEAST_CENSUS, MOST);
        }
        true
    }

    /// Divides the limit of all JVMs among those that allocate much. `kept`: of each JVM, since the
    /// last adjustment.
    pub(super) fn divide(&mut self, kept: impl Iterator<Item = u32>, options: &AllocationOptions) {
        let most = self.most_kept(options);
        let is_busy = |kept: &u32| u64::from(*kept) * 4 >= most;
        self.busy_jvms = kept.filter(is_busy).count() as u32;
    }

    /// Returns how many events of one JVM may be kept until the next adjustment.
    fn most_kept(&self, options: &AllocationOptions) -> u64 {
        let most = u64::from(options.max_events) * INTERVAL.as_millis() as u64 / 1000;
        (most * u64::from(JVMS_AT_LIMIT) / u64::from(self.busy_jvms.max(JVMS_AT_LIMIT))).max(1)
    }

    /// Returns the distance of kept events of a JVM of which so many were kept since the last
    /// adjustment.
    pub(super) fn interval_after(&self, interval: u64, kept: u32, options: &AllocationOptions) -> u64 {
        let (kept, most) = (u64::from(kept), self.most_kept(options));
        if kept > most {
            // At once to what would have been right, since events come in thousands.
            (interval.saturating_mul(kept) / most).min(MOST)
        } else if kept < most / 2 {
            (interval / 2).max(self.least_interval)
        } else {
            interval
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_follow_the_rate_within_limits() {
        let options = AllocationOptions { max_events: 400, ..AllocationOptions::default() };
        let pace = Pace::new(&options);
        let least = options.interval;
        assert_eq!(pace.interval_after(least, 100, &options), least);
        assert_eq!(pace.interval_after(least, 1000, &options), least * 10);
        assert_eq!(pace.interval_after(least * 10, 60, &options), least * 10);
        assert_eq!(pace.interval_after(least * 10, 10, &options), least * 5);
        assert_eq!(pace.interval_after(least, 0, &options), least);
    }

    #[test]
    fn many_jvms_share_one_limit() {
        let options = AllocationOptions { max_events: 400, ..AllocationOptions::default() };
        let mut pace = Pace::new(&options);
        pace.divide([100; 4].into_iter().chain([1; 20]), &options);
        assert_eq!(pace.most_kept(&options), 100);
        // In each quarter of a second, of 16 JVMs, as much as four may have.
        for _ in 0..3 {
            pace.divide([25; 16].into_iter(), &options);
            assert_eq!(pace.most_kept(&options), 25);
        }
        assert_eq!(pace.interval_after(options.interval, 100, &options), options.interval * 4);
        pace.divide([3; 16].into_iter(), &options);
        assert_eq!(pace.most_kept(&options), 100);
    }

    #[test]
    fn censuses_take_no_more_than_their_share() {
        let mut pace = Pace::new(&AllocationOptions::default());
        let mut now = Instant::now();
        let mut turn = |pace: &mut Pace, took: u64| {
            pace.charge(Duration::from_micros(took));
            now += INTERVAL;
            assert!(pace.is_due(now));
            pace.census_interval()
        };
        // Of 250 ms, the share is 5 ms.
        assert_eq!(turn(&mut pace, 50_000), FIRST_CENSUS * 4);
        assert_eq!(turn(&mut pace, 5_000), FIRST_CENSUS * 4);
        for _ in 0..20 {
            turn(&mut pace, 100);
        }
        assert_eq!(pace.census_interval(), LEAST_CENSUS);
        assert!(!pace.is_due(now));
    }
}
