//! Points that are spread over the bytes that a thread allocates: which events are kept, and which
//! buffers are counted.

use super::exponential_distance;

/// The distance to the next of some points whose distances have an exponential distribution.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomDistance {
    /// Bytes that are left.
    left: u64,
    /// The mean of the distribution that `left` is from.
    mean: u64,
}

/// Binary digits of the greatest ratio of a distance to its mean: `-ln(2^-32)` is 22.2.
const RATIO_BITS: u32 = 5;

impl RandomDistance {
    /// Draws a distance by a uniformly distributed number: see [`exponential_distance`].
    #[inline(always)]
    pub const fn draw(mean: u64, random: u32) -> Self {
        Self { left: exponential_distance(random, mean), mean }
    }

    /// Moves on by some bytes; returns true, and draws a new distance, if the point lies within.
    /// `mean` is that of the points now, and `1 - exp(-bytes / mean)` the probability: what an
    /// exponential distribution leaves of a distance depends neither on what has passed nor, once
    /// it is scaled, on the mean until now.
    #[inline(always)]
    pub fn is_reached(&mut self, bytes: u64, mean: u64, random: impl FnOnce() -> u32) -> bool {
        if self.mean != mean {
            *self = Self { left: scaled(self.left, self.mean, mean), mean };
        }
        if self.left > bytes {
            self.left -= bytes;
            return false;
        }
        *self = Self::draw(mean, random());
        true
    }
}

/// Returns `left * new / old`, at least 1, without an overflow: `left` is at most 2^[`RATIO_BITS`]
/// times `old`, and both means are below 2^58. The result is exact up to one byte where the digits
/// of the means are 59 at most, and else up to 2^-16 of the new mean with means up to 2^40.
#[inline(always)]
const fn scaled(left: u64, old: u64, new: u64) -> u64 {
    let digits = 2 * u64::BITS - old.leading_zeros() - new.leading_zeros() + RATIO_BITS;
    let shift = digits.saturating_sub(u64::BITS);
    let most = old << RATIO_BITS;
    let left = if left < most { left } else { most };
    match ((left >> shift) * new).checked_div(old >> shift) {
        None | Some(0) => 1,
        Some(scaled) => scaled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of uniformly distributed numbers (xorshift64*).
    struct Random(u64);

    impl Random {
        fn number(&mut self) -> u32 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
        }
    }

    fn probability(bytes: u64, mean: u64) -> f64 {
        -f64::exp_m1(-(bytes as f64) / mean as f64)
    }

    #[test]
    fn a_distance_is_scaled_without_an_overflow() {
        assert_eq!(scaled(3 << 20, 2 << 20, 200 << 20), 300 << 20);
        assert_eq!(scaled(300 << 20, 200 << 20, 2 << 20), 3 << 20);
        assert_eq!(scaled(10, 1 << 20, 1 << 16), 1, "it is never nothing");
        assert_eq!(scaled(5, 0, 1 << 20), 1, "there was no mean");
        for (old, new) in [(1, 1 << 40), (1 << 40, 1), (1 << 40, 1 << 40), (1 << 38, (1 << 40) - 1)] {
            for random in [0, 1, 1 << 16, 1 << 31, u32::MAX] {
                let left = exponential_distance(random, old);
                let exact = left as f64 * new as f64 / old as f64;
                let error = (scaled(left, old, new) as f64 - exact).abs();
                let most = f64::max(1.0, new as f64 * (left as f64 / old as f64 + 1.0) / 65_536.0);
                assert!(error <= most, "{left} of {old} as {new}: {error}");
            }
        }
    }

    #[test]
    fn what_is_drawn_with_one_mean_is_reached_with_the_probability_of_another() {
        const DRAWS: u32 = 200_000;
        let mut random = Random(0x1234_5678_9abc_def1);
        // With the mean of the draw, moved on by `first` bytes; then `second` with another mean.
        for (old, first, new, second) in [
            (2 << 20, 64 << 10, 220 << 20, 64 << 20),
            (220 << 20, 64 << 20, 2 << 20, 1 << 20),
            (64 << 10, 16 << 10, 1 << 38, 1 << 37),
        ] {
            let (mut tried, mut reached) = (0_u32, 0_u32);
            for _ in 0..DRAWS {
                let mut distance = RandomDistance::draw(old, random.number());
                if !distance.is_reached(first, old, || 0) {
                    tried += 1;
                    reached += u32::from(distance.is_reached(second, new, || 0));
                }
            }
            let share = f64::from(reached) / f64::from(tried);
            let expected = probability(second, new);
            let deviation = (expected * (1.0 - expected) / f64::from(tried)).sqrt();
            assert!((share - expected).abs() < 4.0 * deviation, "{old} to {new}: {share}, not {expected}");
        }
    }

    /// A thread that gives up buffers of 64 KiB, and what those that are chosen stand for.
    struct Allocator {
        rate: u32,
        to_census: RandomDistance,
        bytes: u64,
        estimated: f64,
    }

    impl Allocator {
        const TLAB: u64 = 64 << 10;

        fn allocate(&mut self, turns: u32, mean: u64, random: &mut Random) {
            for _ in 0..turns * self.rate {
                self.bytes += Self::TLAB;
                if self.to_census.is_reached(Self::TLAB, mean, || random.number()) {
                    self.estimated += Self::TLAB as f64 / probability(Self::TLAB, mean);
                }
            }
        }
    }

    #[test]
    fn threads_of_unequal_rates_are_estimated_alike_while_the_mean_grows() {
        const ROUNDS: u32 = 1000;
        let mut random = Random(0xfeed_face_cafe_beef);
        let mut estimates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (rate, estimates) in [1, 100].into_iter().zip(&mut estimates) {
                let to_census = RandomDistance::draw(2 << 20, random.number());
                let mut thread = Allocator { rate, to_census, bytes: 0, estimated: 0.0 };
                // A hundred times the mean after four turns, as where much is allocated.
                thread.allocate(4, 2 << 20, &mut random);
                thread.allocate(96, 200 << 20, &mut random);
                estimates.push(thread.estimated / thread.bytes as f64);
            }
        }
        // Without scaling the slow thread has some thirty times its bytes.
        for estimates in estimates {
            let mean = estimates.iter().sum::<f64>() / f64::from(ROUNDS);
            let squares = estimates.iter().map(|it| (it - mean) * (it - mean)).sum::<f64>();
            let error = (squares / f64::from(ROUNDS)).sqrt() / f64::from(ROUNDS).sqrt();
            assert!((mean - 1.0).abs() < 3.5 * error, "{mean}, standard error {error}");
            assert!(error < 0.2, "{error}");
        }
    }
}
