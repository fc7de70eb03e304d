//! Censuses of a window: objects and bytes by stratum, and how well.

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::TlabRecord;

use super::{Placement, Stratum, StratumTable, probability};
use crate::hotspot::java_heap::{ObjectCount, TlabObjects};
use crate::types::FastHasher;

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
    by_class: HashMap<u32, ClassSums, FastHasher>,
    buffers: u32,
    /// Bytes of the buffers, as they are, and each times what it stands for.
    pub(super) read: f64,
    bytes: f64,
    /// See [`Products::total`]: the bytes squared.
    squared: f64,
}

/// The same of a class: its bytes, these squared, and these times those of the buffer.
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

/// The censuses of a period of time, each buffer divided by the probability with which it was
/// chosen.
#[derive(Debug, Default)]
struct CensusPeriod {
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
    /// Takes in a census.
    pub(in crate::pipeline::allocation) fn add(
        &mut self,
        tlab: &TlabRecord,
        found: &TlabObjects,
        strata: &mut StratumTable,
    ) {
        self.period.add(tlab, found, strata);
    }

    /// Adds the bytes of buffers that were given up since the last call, four times a second. Ends
    /// the period of time, if it has censuses enough, or is long.
    pub(in crate::pipeline::allocation) fn add_given_up(&mut self, bytes: u64) {
        self.period_bytes += bytes;
        self.period_turns += 1;
        if self.period.buffers >= PERIOD_CENSUSES || self.period_turns >= PERIOD_TURNS {
            self.end_period();
        }
    }

    /// Ends the period of time. Without a census it becomes a part of the next one.
    fn end_period(&mut self) {
        if self.period.bytes <= 0.0 {
            return;
        }
        self.period_turns = 0;
        let period = std::mem::take(&mut self.period);
        let scale = std::mem::take(&mut self.period_bytes) as f64 / period.bytes;
        self.window.add(period, scale);
    }

    /// Ends the window.
    pub(in crate::pipeline::allocation) fn take(&mut self) -> CensusSums {
        self.end_period();
        std::mem::take(self).window
    }
}

impl CensusPeriod {
    fn add(&mut self, tlab: &TlabRecord, found: &TlabObjects, strata: &mut StratumTable) {
        let decisive = tlab.used.saturating_sub(tlab.large_first);
        let weight = 1.0 / probability(decisive, tlab.interval);
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
    /// Adds a period of time, with weights that are so many times its own.
    fn add(&mut self, period: CensusPeriod, scale: f64) {
        for (stratum, (objects, bytes)) in period.by_stratum {
            let sums = self.by_stratum.entry(stratum).or_default();
            sums.0 += scale * objects;
            sums.1 += scale * bytes;
        }
        let errors = &mut self.errors;
        errors.buffers += period.buffers;
        errors.read += period.read;
        errors.bytes += scale * period.bytes;
        errors.squared += period.squared.total(scale);
        for (class, products) in period.by_class {
            let sums = errors.by_class.entry(class).or_default();
            sums.bytes += scale * products.bytes;
            sums.squared += products.squared.total(scale);
            sums.crossed += products.crossed.total(scale);
        }
    }
}

impl CensusErrors {
    /// Returns the variance of the bytes of a class (see [`StratumTable::class_of`]) as the
    /// censuses have them; `None` if it was in none of them, or there are less than two. What a
    /// buffer has too much is what it has beyond the share of the class in all of them, for which
    /// the sums are corrected (a ratio estimate).
    pub(super) fn variance(&self, class: u32) -> Option<f64> {
        let sums = self.by_class.get(&class).filter(|_| self.buffers > 1)?;
        let share = sums.bytes / self.bytes;
        let squares = sums.squared - 2.0 * share * sums.crossed + share * share * self.squared;
        let buffers = f64::from(self.buffers);
        // Their share is nearer to them than that of all buffers.
        Some(squares.max(0.0) * buffers / (buffers - 1.0))
    }
}

#[cfg(test)]
mod tests;
