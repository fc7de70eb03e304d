//! Intervals at which events are kept and buffers are counted: as wanted, or less often where that
//! would cost too much.

use std::time::{Duration, Instant};

use super::AllocationOptions;

/// Interval of the adjustments.
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
/// The part that is left of the weight of earlier censuses in the mean cost of one, and of the
/// earlier rate of allocation in its mean, at each adjustment.
const KEPT_COST: f64 = 0.8;
const KEPT_RATE: f64 = 0.75;
/// Time in which censuses make good what they took beyond their share, seconds, the least part of
/// it that they have until then, and the most that they make good.
const REPAYMENT: f64 = 5.0;
const LEAST_PART: f64 = 0.25;
const MOST_DEBT: f64 = 1.0;

/// The distances that are in use.
#[derive(Debug)]
pub(super) struct AllocationIntervals {
    adjusted: Instant,
    least_interval: u64,
    census_interval: u64,
    /// JVMs of which many events are kept.
    busy_jvms: u32,
    /// The share of one CPU that censuses may take.
    census_share: f64,
    /// Censuses since the last adjustment, and earlier ones, which fade.
    turn: CensusCost,
    earlier: CensusCost,
    /// Bytes that all JVMs allocate in buffers, a second: what they were, or more.
    rate: f64,
    /// Seconds that censuses have taken beyond their share.
    debt: f64,
}

/// The cost of some censuses.
#[derive(Clone, Copy, Debug, Default)]
struct CensusCost {
    censuses: f64,
    seconds: f64,
    /// Bytes of the buffers.
    bytes: f64,
}

impl AllocationIntervals {
    pub(super) fn new(options: &AllocationOptions) -> Self {
        Self {
            adjusted: Instant::now(),
            least_interval: options.interval.max(1),
            busy_jvms: 0,
            census_interval: if options.census_cpu_ppm == 0 { 0 } else { FIRST_CENSUS },
            census_share: f64::from(options.census_cpu_ppm) / 1e6,
            turn: CensusCost::default(),
            earlier: CensusCost::default(),
            rate: 0.0,
            debt: 0.0,
        }
    }

    /// Returns the distance of kept events of a JVM that is new.
    pub(super) fn first_interval(&self) -> u64 {
        (self.least_interval * FIRST_TIMES).min(MOST).max(self.least_interval)
    }

    /// Returns the mean distance of censuses; 0: there are none.
    pub(super) const fn census_interval(&self) -> u64 {
        self.census_interval
    }

    /// Charges a census of a buffer of so many bytes, which took so long.
    pub(super) fn charge(&mut self, took: Duration, bytes: u64) {
        self.turn.censuses += 1.0;
        self.turn.seconds += took.as_secs_f64();
        self.turn.bytes += bytes as f64;
    }

    /// Returns true if no more can be counted until the next adjustment.
    pub(super) fn is_exhausted(&self) -> bool {
        self.turn.seconds > BURST * self.census_share * INTERVAL.as_secs_f64()
    }

    /// Returns the time since the last adjustment, if it is time for one.
    pub(super) fn due(&mut self, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.adjusted);
        if elapsed < INTERVAL {
            return None;
        }
        self.adjusted = now;
        Some(elapsed)
    }

    /// Adjusts the distance of censuses. `given_up`: bytes in buffers of all JVMs that were given
    /// up in this time.
    ///
    /// It follows from what a census costs in the mean, and from how much is allocated, which is
    /// known. What the last ones cost together doesn't count: that is by chance, and a distance
    /// that follows it makes the estimate worse, and takes more than the share.
    pub(super) fn adjust_census(&mut self, elapsed: Duration, given_up: u64) {
        let (turn, seconds) = (std::mem::take(&mut self.turn), elapsed.as_secs_f64());
        let rate = given_up as f64 / seconds;
        // More at once, and less by and by: a program that pauses goes on as before.
        self.rate = rate.max(self.rate * KEPT_RATE + rate * (1.0 - KEPT_RATE));
        self.debt = (self.debt + turn.seconds - self.census_share * seconds).clamp(0.0, MOST_DEBT);
        if turn.censuses > 0.0 {
            self.earlier.fade();
            self.earlier.add(turn);
        }
        if self.census_interval == 0 || self.earlier.seconds <= 0.0 || self.rate <= 0.0 {
            return;
        }
        let part = (1.0 - self.debt / (self.census_share * REPAYMENT)).clamp(LEAST_PART, 1.0);
        let CensusCost { censuses, seconds, bytes } = self.earlier;
        // Of all buffers; one of `b` bytes is chosen with the probability `1 - exp(-b / C)`.
        let chosen = self.census_share * part * bytes / (seconds * self.rate);
        let interval = if chosen < 1.0 { -(bytes / censuses) / f64::ln_1p(-chosen) } else { 0.0 };
        self.census_interval = (interval as u64).clamp(LEAST_CENSUS, MOST);
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

impl CensusCost {
    fn fade(&mut self) {
        self.censuses *= KEPT_COST;
        self.seconds *= KEPT_COST;
        self.bytes *= KEPT_COST;
    }

    fn add(&mut self, other: Self) {
        self.censuses += other.censuses;
        self.seconds += other.seconds;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use jvmprof_common::allocation::RandomDistance;

    use super::*;
    use crate::pipeline::allocation::estimate::{BufferGroup, probability};
    use crate::pipeline::allocation::second_phase::SecondPhase;
    use crate::pipeline::allocation::xorshift::Random;

    #[test]
    fn distances_follow_the_rate_within_limits() {
        let options = AllocationOptions { max_events: 400, ..AllocationOptions::default() };
        let intervals = AllocationIntervals::new(&options);
        let least = options.interval;
        assert_eq!(intervals.interval_after(least, 100, &options), least);
        assert_eq!(intervals.interval_after(least, 1000, &options), least * 10);
        assert_eq!(intervals.interval_after(least * 10, 60, &options), least * 10);
        assert_eq!(intervals.interval_after(least * 10, 10, &options), least * 5);
        assert_eq!(intervals.interval_after(least, 0, &options), least);
    }

    #[test]
    fn many_jvms_share_one_limit() {
        let options = AllocationOptions { max_events: 400, ..AllocationOptions::default() };
        let mut intervals = AllocationIntervals::new(&options);
        intervals.divide([100; 4].into_iter().chain([1; 20]), &options);
        assert_eq!(intervals.most_kept(&options), 100);
        // In each quarter of a second, of 16 JVMs, as much as four may have.
        for _ in 0..3 {
            intervals.divide([25; 16].into_iter(), &options);
            assert_eq!(intervals.most_kept(&options), 25);
        }
        assert_eq!(intervals.interval_after(options.interval, 100, &options), options.interval * 4);
        intervals.divide([3; 16].into_iter(), &options);
        assert_eq!(intervals.most_kept(&options), 100);
    }

    const TLAB: u64 = 2 << 20;

    /// Returns the seconds that censuses take in each of so many turns, of which each gives up so
    /// many buffers, and the distances at their ends. A census takes half a millisecond to one and
    /// a half.
    fn simulate(
        intervals: &mut AllocationIntervals,
        turns: u32,
        buffers: impl Fn(u32) -> u64,
    ) -> (Vec<f64>, Vec<u64>) {
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut distance = RandomDistance::draw(intervals.census_interval(), random.number());
        let (mut taken, mut distances) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            let mut seconds = 0.0;
            for _ in 0..buffers(turn) {
                let is_chosen = distance.is_reached(TLAB, intervals.census_interval(), || random.number());
                if is_chosen && !intervals.is_exhausted() {
                    let took = Duration::from_micros(500 + u64::from(random.number() >> 22));
                    intervals.charge(took, TLAB);
                    seconds += took.as_secs_f64();
                }
            }
            intervals.adjust_census(INTERVAL, buffers(turn) * TLAB);
            taken.push(seconds);
            distances.push(intervals.census_interval());
        }
        (taken, distances)
    }

    #[test]
    fn censuses_take_their_share_and_no_more() {
        type Buffers = fn(u32) -> u64;
        let programs: [(&str, Buffers, f64); 4] = [
            ("steady", |_| 500, 0.018),
            ("bursts", |turn| if turn % 8 < 4 { 1000 } else { 10 }, 0.012),
            ("growing", |turn| 50 + u64::from(turn) * 10, 0.018),
            ("at once", |turn| if turn < 80 { 25 } else { 1000 }, 0.018),
        ];
        // Forty seconds, of which 2 % are theirs.
        for (name, buffers, least) in programs {
            let (taken, _) =
                simulate(&mut AllocationIntervals::new(&AllocationOptions::default()), 160, buffers);
            let share = taken.iter().sum::<f64>() / 40.0;
            assert!((least..0.0203).contains(&share), "{name}: {share}");
            let worst = taken.windows(4).map(|turns| turns.iter().sum::<f64>()).fold(0.0, f64::max);
            assert!(worst < 0.05, "{name}: {worst} in a second");
        }
    }

    #[test]
    fn screening_and_the_censuses_of_a_part_take_their_share_together() {
        // So many buffers in a turn: half of them can be counted, or one in a hundred.
        for buffers in [8_u64, 50, 500] {
            let mut intervals = AllocationIntervals::new(&AllocationOptions::default());
            let mut random = Random(0x1234_5678_9abc_def1);
            let mut distance = RandomDistance::draw(intervals.census_interval(), random.number());
            let (mut second_phase, mut seconds) = (SecondPhase::default(), 0.0);
            for _ in 0..160 {
                for _ in 0..buffers {
                    let interval = intervals.census_interval();
                    let is_chosen = distance.is_reached(TLAB, interval, || random.number());
                    if !is_chosen || intervals.is_exhausted() {
                        continue;
                    }
                    let is_large = random.number().is_multiple_of(23);
                    let group = if is_large { BufferGroup::LargeObject } else { BufferGroup::SmallObjects };
                    let second = second_phase.probability(group, probability(TLAB, interval), true);
                    let is_counted = f64::from(random.number()) / 4_294_967_296.0 < second;
                    let census = 500 + u64::from(random.number() >> 22);
                    let took = Duration::from_micros(35 + if is_counted { census } else { 0 });
                    intervals.charge(took, TLAB);
                    seconds += took.as_secs_f64();
                }
                intervals.adjust_census(INTERVAL, buffers * TLAB);
            }
            let share = seconds / 40.0;
            assert!((0.018..0.0203).contains(&share), "{buffers}: {share}");
        }
    }

    #[test]
    fn a_distance_does_not_follow_the_chance_of_the_last_censuses() {
        let (_, distances) =
            simulate(&mut AllocationIntervals::new(&AllocationOptions::default()), 160, |_| 500);
        let later: Vec<f64> = distances[20..].iter().map(|distance| *distance as f64).collect();
        let mean = later.iter().sum::<f64>() / later.len() as f64;
        let squares = later.iter().map(|distance| (distance - mean) * (distance - mean)).sum::<f64>();
        let scatter = (squares / later.len() as f64).sqrt() / mean;
        // 0.4, if what was spent multiplies it.
        assert!(scatter < 0.1, "{scatter}");
    }

    #[test]
    fn a_program_that_allocates_little_is_counted_as_a_whole() {
        let (_, distances) =
            simulate(&mut AllocationIntervals::new(&AllocationOptions::default()), 40, |_| 2);
        assert_eq!(distances.last(), Some(&LEAST_CENSUS));
    }

    #[test]
    fn what_was_taken_beyond_the_share_is_made_good() {
        let mut intervals = AllocationIntervals::new(&AllocationOptions::default());
        let (_, distances) = simulate(&mut intervals, 40, |_| 500);
        let before = distances[39];
        // A single census that took a second.
        intervals.charge(Duration::from_secs(1), TLAB);
        assert!(intervals.is_exhausted());
        intervals.adjust_census(INTERVAL, 500 * TLAB);
        assert!(!intervals.is_exhausted());
        assert!(intervals.census_interval() > 4 * before, "{} after {before}", intervals.census_interval());
        // In 400 seconds it is made good.
        let (taken, _) = simulate(&mut intervals, 1600, |_| 500);
        let share = (1.0 + taken.iter().sum::<f64>()) / 400.25;
        assert!((0.015..0.02).contains(&share), "{share}");
    }

    #[test]
    fn it_is_adjusted_four_times_a_second() {
        let mut intervals = AllocationIntervals::new(&AllocationOptions::default());
        let now = intervals.adjusted;
        assert_eq!(intervals.due(now + INTERVAL / 2), None);
        assert_eq!(intervals.due(now + 2 * INTERVAL), Some(2 * INTERVAL));
        assert_eq!(intervals.due(now + 2 * INTERVAL), None);
    }
}
