//! Weights of kept waits: each counts as much more as it is less probable that one of its length is
//! kept.

use crate::profile::aggregate::SampleWeight;

/// Counts are kept in parts of one, so that rounding makes no difference.
const COUNT_PARTS: f64 = 1024.0;

/// The weight of a kept wait, or of a kept part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitWeight(f64);

impl WaitWeight {
    /// `waited_ns`: the time that decided by chance whether it is kept. `interval`: the mean
    /// distance of points then.
    pub(super) fn new(waited_ns: u64, interval: u64) -> Self {
        Self(1.0 / probability(waited_ns, interval))
    }

    /// Returns the number of waits, in [`COUNT_PARTS`].
    pub(super) fn count(self) -> u64 {
        (self.0 * COUNT_PARTS) as u64
    }

    /// Returns the time that a part of its time stands for, ns.
    pub(super) fn value(self, part_ns: u64) -> u64 {
        (part_ns as f64 * self.0) as u64
    }
}

/// Returns the probability that a point lies in a wait: that there is none is
/// exp(-waited / interval).
pub(super) fn probability(waited_ns: u64, interval: u64) -> f64 {
    -f64::exp_m1(-(waited_ns as f64) / interval.max(1) as f64)
}

/// Returns the count and value that waits stand for.
pub(in crate::pipeline) fn estimate(weight: SampleWeight) -> (u64, u64) {
    ((weight.count as f64 / COUNT_PARTS).round() as u64, weight.value)
}

#[cfg(test)]
mod tests {
    use jvmprof_common::allocation::exponential_distance;

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
        fn add(&mut self, waited_ns: u64, interval: u64, is_kept: bool) {
            let probability = probability(waited_ns, interval);
            let odds = (1.0 - probability) / probability;
            self.count += 1;
            self.value += waited_ns;
            self.count_variance += odds;
            self.value_variance += (waited_ns as f64).powi(2) * odds;
            if is_kept {
                let weight = WaitWeight::new(waited_ns, interval);
                self.kept_count += weight.count();
                self.kept_value += weight.value(waited_ns);
            }
        }

        fn check(&self) {
            let (count, value) = (self.kept_count, self.kept_value);
            let (count, value) = estimate(SampleWeight { stratum: 0, events: 0, count, value });
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
        let mut add = |waited_ns: u64, interval: u64, is_kept: bool| {
            let class = [10 * MILLISECOND, 100 * MILLISECOND].iter().filter(|it| waited_ns >= **it).count();
            sums[class].add(waited_ns, interval, is_kept);
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
                    add(part, interval, random.fraction() < probability(part, interval));
                    reported = end;
                }
            }
            // As the kernel program decides.
            let rest = waited_ns - reported;
            let is_kept = exponential_distance((random.bits() >> 32) as u32, interval) <= rest;
            add(rest, interval, is_kept);
        }
        sums.iter().for_each(Sums::check);
    }
}
