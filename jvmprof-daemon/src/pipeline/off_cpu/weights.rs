//! Weights of kept waits: each counts as much more as it is less probable that one of its length is
//! kept.

use jvmprof_common::off_cpu::WaitRecord;

use crate::profile::aggregate::SampleWeight;

/// Counts are kept in parts of one, so that only their sum is rounded.
const COUNT_PARTS: u64 = 1024;

/// The weight of a kept wait, or of a kept part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitWeight {
    /// One by the probability that it was kept.
    factor: f64,
    /// A wait that is reported in parts is counted by the first one alone.
    is_first_part: bool,
}

impl WaitWeight {
    pub(super) fn of(record: &WaitRecord) -> Self {
        let factor = 1.0 / probability(record.waited_ns.max(1), record.interval);
        Self { factor, is_first_part: record.is_first_part() }
    }

    /// Returns the number of waits, in [`COUNT_PARTS`].
    pub(super) fn count(self) -> u64 {
        if self.is_first_part { (self.factor * COUNT_PARTS as f64).round() as u64 } else { 0 }
    }

    /// Returns the time that a part of its time stands for, ns.
    pub(super) fn value(self, part_ns: u64) -> u64 {
        (part_ns as f64 * self.factor) as u64
    }
}

/// Returns the probability that a point lies in a wait: that there is none is
/// exp(-waited / interval).
pub(super) fn probability(waited_ns: u64, interval: u64) -> f64 {
    -f64::exp_m1(-(waited_ns as f64) / interval.max(1) as f64)
}

/// Returns the count and value that waits of one stack stand for. The count is rounded by chance,
/// which `random` decides: a stack with one wait that counts 1.3 has two as often as makes 1.3 on
/// the mean. By the nearest number it would have one in each window, and their sum be too low.
pub(in crate::pipeline) fn estimate(weight: SampleWeight, random: u32) -> (u64, u64) {
    let less_than_one = u64::from(random) % COUNT_PARTS;
    (weight.count.saturating_add(less_than_one) / COUNT_PARTS, weight.value)
}

#[cfg(test)]
mod tests {
    use jvmprof_common::allocation::exponential_distance;
    use jvmprof_common::off_cpu::LATER_PART;

    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MILLISECOND;

    /// Numbers that are the same in each run: SplitMix64.
    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        /// Returns a number in [0, 1).
        fn fraction(&mut self) -> f64 {
            (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    /// Returns a wait, or a part of one.
    fn wait(waited_ns: u64, interval: u64, is_first_part: bool) -> WaitRecord {
        let state = if is_first_part { 0 } else { LATER_PART };
        WaitRecord { waited_ns, interval, state, ..WaitRecord::default() }
    }

    /// Returns the variance of what such a wait counts, kept or not.
    fn odds(wait: &WaitRecord) -> f64 {
        let probability = probability(wait.waited_ns, wait.interval);
        (1.0 - probability) / probability
    }

    /// Waits of similar lengths: what they are, and what those stand for that are kept.
    #[derive(Clone, Copy, Debug, Default)]
    struct Sums {
        count: u64,
        value: u64,
        kept_count: u64,
        kept_value: u64,
        /// Variances of the estimates.
        count_variance: f64,
        value_variance: f64,
    }

    impl Sums {
        fn add(&mut self, part: &WaitRecord, is_kept: bool) {
            let waited_ns = part.waited_ns;
            let odds = odds(part);
            if part.is_first_part() {
                self.count += 1;
                self.count_variance += odds;
            }
            self.value += waited_ns;
            self.value_variance += (waited_ns as f64).powi(2) * odds;
            if is_kept {
                let weight = WaitWeight::of(part);
                self.kept_count += weight.count();
                self.kept_value += weight.value(waited_ns);
            }
        }

        fn check(&self) {
            let (count, value) = (self.kept_count, self.kept_value);
            let (count, value) = estimate(SampleWeight { stratum: 0, events: 0, count, value }, 0);
            let deviation =
                |estimate: u64, truth: u64, variance: f64| (estimate as f64 - truth as f64) / variance.sqrt();
            let of_count = deviation(count, self.count, self.count_variance);
            let of_value = deviation(value, self.value, self.value_variance);
            assert!(of_count.abs() < 3.0 && of_value.abs() < 3.0, "{of_count} {of_value}: {self:?}");
            // Enough of them that less than three deviations says something.
            assert!(self.count_variance.sqrt() < 0.02 * self.count as f64, "{self:?}");
        }
    }

    /// Waits of 1 µs to 60 s, by the defaults, while their distance changes, and with windows of
    /// 10 s that report parts of those that go on.
    #[test]
    fn kept_waits_stand_for_all_whatever_their_length_distance_and_parts() {
        const LEAST: u64 = MILLISECOND;
        const WINDOW: u64 = 10 * SECOND;
        /// Shorter waits are reported when they end.
        const LEAST_PART: u64 = 100 * MILLISECOND;
        let mut random = Random(2);
        let mut sums = [Sums::default(); 3];
        let mut add = |part: &WaitRecord, is_kept: bool| {
            let class =
                [10 * MILLISECOND, 100 * MILLISECOND].iter().filter(|it| part.waited_ns >= **it).count();
            sums[class].add(part, is_kept);
        };
        for number in 0..1_000_000_u64 {
            let interval = (10 * MILLISECOND) << (number / 1000 % 4);
            let waited_ns = (1e3 * 6e7_f64.powf(random.fraction())) as u64;
            if waited_ns < LEAST {
                continue;
            }
            let mut reported = 0;
            if waited_ns >= LEAST_PART {
                let first = (random.fraction() * WINDOW as f64) as u64;
                let ends = (first..waited_ns).step_by(WINDOW as usize);
                for end in ends.filter(|end| *end >= LEAST_PART) {
                    // Where many threads wait, the distance of parts is longer.
                    let (part, interval) = (end - reported, interval * (1 + number % 3));
                    let is_kept = random.fraction() < probability(part, interval);
                    add(&wait(part, interval, reported == 0), is_kept);
                    reported = end;
                }
            }
            // As the kernel program decides.
            let rest = waited_ns - reported;
            let is_kept = exponential_distance((random.bits() >> 32) as u32, interval) <= rest;
            add(&wait(rest, interval, reported == 0), is_kept);
        }
        sums.iter().for_each(Sums::check);
    }

    /// A hundred thousand windows, each with one wait of this length.
    #[test]
    fn the_number_of_waits_is_unbiased_where_a_stack_has_one_of_them() {
        const INTERVAL: u64 = 10 * MILLISECOND;
        const WINDOWS: u64 = 100_000;
        let mut random = Random(3);
        for waited_ns in [MILLISECOND, 8 * MILLISECOND, 15 * MILLISECOND, 40 * MILLISECOND, SECOND] {
            let wait = wait(waited_ns, INTERVAL, true);
            let count = WaitWeight::of(&wait).count();
            let mut estimated = 0;
            for _ in 0..WINDOWS {
                let is_kept = exponential_distance((random.bits() >> 32) as u32, INTERVAL) <= waited_ns;
                let weight = SampleWeight { stratum: 0, events: 1, count, value: 0 };
                let (count, _) = estimate(weight, (random.bits() >> 32) as u32);
                estimated += if is_kept { count } else { 0 };
            }
            // What rounding adds is a quarter at most, of those that are kept.
            let deviation = ((odds(&wait) + 0.25) * WINDOWS as f64).sqrt();
            let error = estimated as f64 - WINDOWS as f64;
            assert!(error.abs() < 4.0 * deviation, "{waited_ns} ns: {error}, {deviation}");
            // A tenth of them would be seen.
            assert!(deviation < 0.01 * WINDOWS as f64, "{deviation}");
        }
    }

    #[test]
    fn a_wait_that_is_reported_in_parts_counts_once() {
        let count = |is_first| WaitWeight::of(&wait(SECOND, MILLISECOND, is_first)).count();
        assert_eq!([count(true), count(false)], [COUNT_PARTS, 0]);
        let later = WaitWeight::of(&wait(SECOND, MILLISECOND, false));
        assert_eq!(later.value(SECOND), SECOND, "its time is all there");
    }
}
