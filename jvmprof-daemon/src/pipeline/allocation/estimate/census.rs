//! Censuses of a window: objects and bytes by stratum, and how well.
//!
//! Chance chooses buffers in two phases: by their bytes, and of some groups of these only a part is
//! counted. What a group has comes from its censuses, how many bytes all its buffers have from the
//! first phase (two-phase sampling for stratification: Neyman 1938; Cochran, Sampling Techniques,
//! 12.2).

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::TlabRecord;

use super::{Placement, Stratum, StratumTable, probability};
use crate::hotspot::java_heap::{ObjectCount, TlabObjects};
use crate::types::FastHasher;

/// The group of a buffer: of the buffers of one, each is counted with about the same probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline::allocation) enum BufferGroup {
    /// All that are chosen are counted.
    Unscreened,
    /// Screening found no large object.
    SmallObjects,
    LargeObject,
}

const GROUPS: usize = 3;

/// Sums that the censuses of a process have counted: objects and bytes by stratum, each buffer
/// times the number of buffers that it stands for.
#[derive(Debug, Default)]
pub(in crate::pipeline::allocation) struct CensusSums {
    pub(super) by_stratum: HashMap<u32, (f64, f64), FastHasher>,
    pub(super) errors: CensusErrors,
}

/// Sums over buffers from which the errors of classes follow.
#[derive(Debug, Default)]
pub(super) struct CensusErrors {
    groups: [GroupErrors; GROUPS],
}

/// The same of one group.
#[derive(Debug, Default)]
struct GroupErrors {
    by_class: HashMap<u32, ClassSums, FastHasher>,
    /// Those that were counted.
    buffers: u32,
    /// Bytes of the buffers, as they are, and each times what it stands for.
    read: f64,
    bytes: f64,
    /// See [`Products::total`]: the bytes squared; of the buffers that were counted, and of those
    /// that the first phase has chosen, by which the bytes of the group are known.
    squared: f64,
    chosen_squared: f64,
}

/// Sums of a class: its bytes, these squared, and these times those of the buffer.
#[derive(Clone, Copy, Debug, Default)]
struct ClassSums {
    bytes: f64,
    squared: f64,
    crossed: f64,
}

/// The censuses of a window. What a program allocates changes with time: each period of time has
/// the weight of the bytes that were allocated in it.
#[derive(Debug, Default)]
pub(in crate::pipeline::allocation) struct WindowCensus {
    window: CensusSums,
    /// The period of time that is under way: its censuses, and the bytes of all buffers.
    period: CensusPeriod,
    period_bytes: u64,
    /// How often bytes were added to it.
    period_turns: u32,
}

/// Censuses with which a period of time ends: with few, what is in one has the weight of all.
const PERIOD_CENSUSES: u32 = 30;
/// Turns with which it ends all the same, with one census at least: two seconds.
const PERIOD_TURNS: u32 = 8;

/// The censuses of a period of time.
#[derive(Debug, Default)]
struct CensusPeriod {
    groups: [GroupCensuses; GROUPS],
}

/// Those of one group, each buffer divided by the probability with which it was counted.
#[derive(Debug, Default)]
struct GroupCensuses {
    /// Bytes of the buffers that the first phase has chosen, counted or not, and these squared;
    /// each divided by the probability of that phase.
    chosen: f64,
    chosen_squared: Products,
    by_stratum: HashMap<u32, (f64, f64), FastHasher>,
    by_class: HashMap<u32, ClassProducts, FastHasher>,
    buffers: u32,
    read: f64,
    bytes: f64,
    squared: Products,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClassProducts {
    bytes: f64,
    squared: Products,
    crossed: Products,
}

/// A sum over buffers of a product, times the weight of the buffer, and times its square.
#[derive(Clone, Copy, Debug, Default)]
struct Products {
    weighed: f64,
    weighed_twice: f64,
}

impl Products {
    fn add(&mut self, weight: f64, product: f64) {
        self.weighed += weight * product;
        self.weighed_twice += weight * weight * product;
    }

    /// Returns the sum of `w (w - 1)` times the products, with weights `w` that are so many times
    /// the present ones. With the squares of errors as products that is the variance of a sum over
    /// buffers of which each was chosen by itself with the probability `1 / w` (Horvitz and
    /// Thompson's estimator, Poisson sampling).
    fn total(self, scale: f64) -> f64 {
        scale * scale * self.weighed_twice - scale * self.weighed
    }
}

impl WindowCensus {
    /// Takes in a buffer that the first phase has chosen.
    pub(in crate::pipeline::allocation) fn add_chosen(&mut self, tlab: &TlabRecord, group: BufferGroup) {
        let (weight, bytes) = (1.0 / probability(tlab.uncounted(), tlab.interval), tlab.uncounted() as f64);
        let of_group = &mut self.period.groups[group as usize];
        of_group.chosen += weight * bytes;
        of_group.chosen_squared.add(weight, bytes * bytes);
    }

    /// Returns true if a buffer of the group was counted in the period of time that is under way.
    pub(in crate::pipeline::allocation) fn has_census(&self, group: BufferGroup) -> bool {
        self.period.groups[group as usize].buffers > 0
    }

    /// Takes in a census of such a buffer, which the second phase has chosen with this probability.
    pub(in crate::pipeline::allocation) fn add(
        &mut self,
        tlab: &TlabRecord,
        (group, second): (BufferGroup, f64),
        found: &TlabObjects,
        strata: &mut StratumTable,
    ) {
        let weight = 1.0 / (probability(tlab.uncounted(), tlab.interval) * second);
        self.period.groups[group as usize].add(tlab, weight, found, strata);
    }

    /// Adds the bytes of buffers that were given up since the last call, four times a second. Ends
    /// the period of time, if it has censuses enough, or is long.
    pub(in crate::pipeline::allocation) fn add_given_up(&mut self, bytes: u64) {
        self.period_bytes += bytes;
        self.period_turns += 1;
        let buffers: u32 = self.period.groups.iter().map(|group| group.buffers).sum();
        if buffers >= PERIOD_CENSUSES || self.period_turns >= PERIOD_TURNS {
            self.end_period();
        }
    }

    /// Ends the period of time. Without a census of each group that has buffers it becomes a part
    /// of the next one.
    fn end_period(&mut self) {
        let groups = &self.period.groups;
        let is_known = groups.iter().all(|group| group.bytes > 0.0 || group.chosen <= 0.0);
        let bytes: f64 = groups.iter().map(|group| group.chosen).sum();
        if !is_known || bytes <= 0.0 {
            return;
        }
        self.period_turns = 0;
        let period = std::mem::take(&mut self.period);
        let scale = std::mem::take(&mut self.period_bytes) as f64 / bytes;
        self.window.add(period, scale);
    }

    /// Ends the window. What is left without a census of a group has the classes of all else; if
    /// there is nothing else, the group has those of the others.
    pub(in crate::pipeline::allocation) fn take(&mut self) -> CensusSums {
        if self.window.by_stratum.is_empty() {
            let uncounted = self.period.groups.iter_mut().filter(|group| group.bytes <= 0.0);
            uncounted.for_each(|group| *group = GroupCensuses::default());
        }
        self.end_period();
        std::mem::take(self).window
    }
}

#[cfg(test)]
impl WindowCensus {
    /// Takes in a census of a buffer without a second phase.
    pub(in crate::pipeline::allocation) fn add_unscreened(
        &mut self,
        tlab: &TlabRecord,
        found: &TlabObjects,
        strata: &mut StratumTable,
    ) {
        self.add_chosen(tlab, BufferGroup::Unscreened);
        self.add(tlab, (BufferGroup::Unscreened, 1.0), found, strata);
    }
}

impl GroupCensuses {
    /// Takes in a census of a buffer that stands for so many.
    fn add(&mut self, tlab: &TlabRecord, weight: f64, found: &TlabObjects, strata: &mut StratumTable) {
        // It is counted by the kernel program.
        let first = found.first.as_ref().filter(|_| tlab.large_first != 0);
        let all_bytes = (tlab.used - first.map_or(0, |first| first.bytes)) as f64;
        self.buffers += 1;
        self.read += all_bytes;
        self.bytes += weight * all_bytes;
        self.squared.add(weight, all_bytes * all_bytes);
        let mut of_classes: HashMap<u32, u64, FastHasher> = HashMap::default();
        for count in &found.counts {
            let is_of_first = |first: &&ObjectCount| {
                Arc::ptr_eq(&first.class, &count.class) && first.size_class == count.size_class
            };
            let (less_objects, less_bytes) =
                first.filter(is_of_first).map_or((0, 0), |first| (first.objects, first.bytes));
            let (objects, bytes) = (count.objects - less_objects, count.bytes - less_bytes);
            if objects == 0 {
                continue;
            }
            let class = Some(Arc::clone(&count.class.name));
            let stratum = Stratum { class, size_class: count.size_class, placement: Placement::Inside };
            let stratum = strata.number(stratum);
            let sums = self.by_stratum.entry(stratum).or_default();
            sums.0 += weight * objects as f64;
            sums.1 += weight * bytes as f64;
            *of_classes.entry(strata.class_of(stratum)).or_default() += bytes;
        }
        for (class, bytes) in of_classes {
            let (sums, bytes) = (self.by_class.entry(class).or_default(), bytes as f64);
            sums.bytes += weight * bytes;
            sums.squared.add(weight, bytes * bytes);
            sums.crossed.add(weight, bytes * all_bytes);
        }
    }
}

impl CensusSums {
    /// Adds a period of time, with weights of the first phase that are so many times its own. The
    /// censuses of a group stand for all its buffers.
    fn add(&mut self, period: CensusPeriod, first_scale: f64) {
        for (errors, group) in self.errors.groups.iter_mut().zip(period.groups) {
            if group.bytes <= 0.0 {
                continue;
            }
            let scale = first_scale * group.chosen / group.bytes;
            for (stratum, (objects, bytes)) in group.by_stratum {
                let sums = self.by_stratum.entry(stratum).or_default();
                sums.0 += scale * objects;
                sums.1 += scale * bytes;
            }
            errors.buffers += group.buffers;
            errors.read += group.read;
            errors.bytes += scale * group.bytes;
            errors.squared += group.squared.total(scale);
            errors.chosen_squared += group.chosen_squared.total(first_scale);
            for (class, products) in group.by_class {
                let sums = errors.by_class.entry(class).or_default();
                sums.bytes += scale * products.bytes;
                sums.squared += products.squared.total(scale);
                sums.crossed += products.crossed.total(scale);
            }
        }
    }
}

impl CensusErrors {
    /// Returns how many buffers were counted.
    fn buffers(&self) -> u32 {
        self.groups.iter().map(|group| group.buffers).sum()
    }

    /// Returns how many bytes were read, or would have been if each group were counted like the one
    /// that was counted least.
    pub(super) fn read(&self) -> f64 {
        let counted = || self.groups.iter().filter(|group| group.bytes > 0.0);
        let part = counted().map(|group| group.read / group.bytes).fold(1.0, f64::min);
        part * counted().map(|group| group.bytes).sum::<f64>()
    }

    /// Returns the variance of the bytes of a class (see [`StratumTable::class_of`]) as the
    /// censuses have them; `None` if it was in none of them, or there are less than two.
    ///
    /// What a buffer has too much is what it has beyond the share of the class in its group, for
    /// which the sums are corrected (a ratio estimate); and the first phase has chosen a group too
    /// often, which makes a difference by what its share is beyond that of all.
    pub(super) fn variance(&self, class: u32) -> Option<f64> {
        let sum = |of: &dyn Fn(&GroupErrors) -> f64| self.groups.iter().map(of).sum::<f64>();
        let of_class = |group: &GroupErrors| group.by_class.get(&class).copied().unwrap_or_default();
        let is_counted = self.groups.iter().any(|group| group.by_class.contains_key(&class));
        let share_of_all =
            sum(&|group: &GroupErrors| of_class(group).bytes) / sum(&|group: &GroupErrors| group.bytes);
        let variance = |group: &GroupErrors| {
            let (sums, buffers) = (of_class(group), f64::from(group.buffers));
            let share = if group.bytes > 0.0 { sums.bytes / group.bytes } else { 0.0 };
            let squares = sums.squared - 2.0 * share * sums.crossed + share * share * group.squared;
            // Their share is nearer to them than that of all buffers.
            let corrected = squares.max(0.0) * buffers / (buffers - 1.0).max(1.0);
            // Where all buffers are chosen it can be below zero: the bytes of some are known later.
            let of_group = group.chosen_squared.max(0.0);
            corrected + (share - share_of_all) * (share - share_of_all) * of_group
        };
        (is_counted && self.buffers() > 1).then(|| sum(&variance))
    }
}

#[cfg(test)]
mod tests;
