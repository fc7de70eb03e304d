//! What censuses say of a window: objects and bytes by stratum.

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::TlabRecord;

use super::{Placement, Stratum, StratumTable, probability};
use crate::hotspot::java_heap::{ObjectCount, TlabObjects};
use crate::types::FastHasher;

/// What the censuses of a process have counted: objects and bytes by stratum, each buffer divided
/// by the probability with which it was chosen.
#[derive(Debug, Default)]
pub(in crate::pipeline::allocation) struct CensusSums {
    pub(super) by_stratum: HashMap<u32, (f64, f64), FastHasher>,
    bytes: f64,
}

/// The censuses of a window. What a program allocates changes with time: each stretch of time has
/// the weight of the bytes that were allocated in it.
#[derive(Debug, Default)]
pub(in crate::pipeline::allocation) struct WindowCensus {
    window: CensusSums,
    /// The stretch of time that is under way: its censuses, and the bytes of all buffers.
    stretch: CensusSums,
    stretch_bytes: u64,
}

impl WindowCensus {
    /// Takes in a census.
    pub(in crate::pipeline::allocation) fn add(
        &mut self,
        tlab: &TlabRecord,
        found: &TlabObjects,
        strata: &mut StratumTable,
    ) {
        self.stretch.add(tlab, found, strata);
    }

    /// Ends a stretch of time in which buffers with so many bytes were given up. Without a census
    /// it becomes a part of the next one.
    pub(in crate::pipeline::allocation) fn end_stretch(&mut self, bytes: u64) {
        self.stretch_bytes += bytes;
        let CensusSums { by_stratum, bytes: counted } = std::mem::take(&mut self.stretch);
        if counted <= 0.0 {
            return;
        }
        let scale = std::mem::take(&mut self.stretch_bytes) as f64 / counted;
        for (stratum, (objects, bytes)) in by_stratum {
            let sums = self.window.by_stratum.entry(stratum).or_default();
            sums.0 += scale * objects;
            sums.1 += scale * bytes;
        }
    }

    /// Ends the window.
    pub(in crate::pipeline::allocation) fn take(&mut self) -> CensusSums {
        std::mem::take(self).window
    }
}

impl CensusSums {
    fn add(&mut self, tlab: &TlabRecord, found: &TlabObjects, strata: &mut StratumTable) {
        let decisive = tlab.used.saturating_sub(tlab.large_first);
        let weight = 1.0 / probability(decisive, tlab.interval).max(1e-9);
        // It is counted by the kernel program.
        let first = found.first.as_ref().filter(|_| tlab.large_first != 0);
        self.bytes += weight * (tlab.used - first.map_or(0, |first| first.bytes)) as f64;
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
            let sums = self.by_stratum.entry(strata.number(stratum)).or_default();
            sums.0 += weight * objects as f64;
            sums.1 += weight * bytes as f64;
        }
    }
}

#[cfg(test)]
mod tests;
