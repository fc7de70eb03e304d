//! The second phase of choosing buffers: which of those that chance has chosen by their bytes are
//! counted.
//!
//! Of a class of large objects a census of a large buffer seldom sees one. Screening finds the
//! buffers that have one, for a small part of what a census takes: all of these are counted, and a
//! part of the others.

use super::estimate::BufferGroup;

/// Bytes from which on a buffer is screened: a census of a smaller one takes little.
pub(super) const SCREENED: u64 = 1 << 20;
/// The least part of the buffers without a large object that are counted.
const LEAST_PART: f64 = 1.0 / 16.0;
/// The part that is left of the weight of earlier buffers in the share of those with a large
/// object, at each buffer.
const KEPT: f64 = 0.99;

/// How likely the chosen buffers of a JVM are to be counted.
#[derive(Debug)]
pub(super) struct SecondPhase {
    /// Buffers that were screened, and those of them with a large object, which fade.
    screened: f64,
    large: f64,
}

impl Default for SecondPhase {
    /// All are counted, until it is known that few have a large object.
    fn default() -> Self {
        Self { screened: 1.0, large: 1.0 }
    }
}

impl SecondPhase {
    /// Returns the probability that a buffer of this group is counted, which was chosen with the
    /// probability `first`. It depends on earlier buffers, and of this one on its group and `first`
    /// alone. `has_census`: one of the group was counted in this period of time.
    ///
    /// The more buffers have a large object, the more of the others are counted, so that these stay
    /// a part of the censuses; and nearly all where there is time for most buffers. The first one
    /// of a period is counted for certain: of a JVM with few buffers those with a large object
    /// would else be all that is known of some windows, and of the others nothing.
    pub(super) fn probability(&mut self, group: BufferGroup, first: f64, has_census: bool) -> f64 {
        let part = || LEAST_PART.max(self.large_share()).max(2.0 * first - 1.0);
        let (is_large, probability) = match group {
            BufferGroup::Unscreened => return 1.0,
            BufferGroup::LargeObject => (1.0, 1.0),
            BufferGroup::SmallObjects => (0.0, if has_census { part() } else { 1.0 }),
        };
        self.screened = self.screened * KEPT + 1.0;
        self.large = self.large * KEPT + is_large;
        probability
    }

    fn large_share(&self) -> f64 {
        self.large / self.screened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the state after buffers of which one in `every` has a large object.
    fn after_buffers(buffers: u32, every: u32, first: f64) -> SecondPhase {
        let mut second = SecondPhase::default();
        for index in 1..=buffers {
            let is_large = index.is_multiple_of(every);
            let group = if is_large { BufferGroup::LargeObject } else { BufferGroup::SmallObjects };
            second.probability(group, first, true);
        }
        second
    }

    /// Returns the probability that one of the group is counted then, not as the first of a period.
    fn probability_after(buffers: u32, every: u32, group: BufferGroup, first: f64) -> f64 {
        after_buffers(buffers, every, first).probability(group, first, true)
    }

    #[test]
    fn buffers_with_a_large_object_and_small_buffers_are_all_counted() {
        for group in [BufferGroup::LargeObject, BufferGroup::Unscreened] {
            for every in [1, 2, 25] {
                assert_eq!(probability_after(1000, every, group, 0.01), 1.0);
            }
        }
    }

    #[test]
    fn the_other_buffers_are_counted_in_part_and_more_of_them_where_they_are_fewer() {
        let after = |buffers, every| probability_after(buffers, every, BufferGroup::SmallObjects, 0.01);
        assert_eq!(after(0, 1), 1.0, "nothing is known");
        assert!((0.2..0.3).contains(&after(3, 25)), "{}", after(3, 25));
        assert_eq!(after(1000, 25), LEAST_PART);
        assert!((0.45..0.55).contains(&after(1000, 2)), "{}", after(1000, 2));
        assert!(after(1000, 1) > 0.999);
    }

    #[test]
    fn the_first_buffer_of_a_period_is_counted_whatever_group_it_is_of() {
        for group in [BufferGroup::LargeObject, BufferGroup::SmallObjects, BufferGroup::Unscreened] {
            assert_eq!(after_buffers(1000, 25, 0.01).probability(group, 0.01, false), 1.0);
        }
    }

    #[test]
    fn where_most_buffers_can_be_counted_they_are() {
        let with = |first| probability_after(1000, 25, BufferGroup::SmallObjects, first);
        assert_eq!([0.01, 0.5].map(with), [LEAST_PART; 2]);
        assert!((with(0.8) - 0.6).abs() < 1e-9);
        assert_eq!(with(1.0), 1.0);
    }
}
