//! Estimate of objects and bytes by stack, from kept events and censuses.
//!
//! Objects of one class and about one size, placed in one way, are a stratum. How much a stratum
//! has is known from the censuses or counted by the kernel program; the events that were kept only
//! say how that is spread over stacks.

mod census;
mod draws;

use std::collections::HashMap;
use std::sync::Arc;

use jvmprof_common::allocation::{AllocationRecord, CountedKey, LARGE_OBJECT, size_class};

use super::class_errors::ClassError;
use crate::process::ProcessKey;
use crate::profile::aggregate::SampleWeight;
use crate::types::FastHasher;
use census::CensusErrors;
pub(super) use census::{BufferGroup, CensusSums, WindowCensus};

/// Objects that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stratum {
    /// `None`: the class is unknown.
    class: Option<Arc<str>>,
    size_class: u32,
    placement: Placement,
}

/// The placement of an object, which says what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Placement {
    /// In a buffer: censuses count it. An event is the object at which a buffer ended.
    Inside,
    /// In a buffer, the first of it, and of [`LARGE_OBJECT`] bytes at least: each is an event, and
    /// the kernel program counts it.
    LargeFirst,
    /// Outside buffers: each is an event, and the kernel program counts it.
    Outside,
}

/// The weights of an event: as itself, and a large object as one of the first of their buffers, or
/// one outside as a draw from those inside.
pub(super) type EventWeights = (SampleWeight, Option<SampleWeight>);

/// Sums of one stratum in one process, in this window.
#[derive(Clone, Copy, Debug, Default)]
struct StratumSums {
    /// Of kept events: sums of [`SampleWeight::count`] and [`SampleWeight::value`].
    count_weight: u64,
    value_weight: u64,
    /// What they would stand for if nothing else were known.
    naive_bytes: f64,
    naive_objects: f64,
    /// How many of them were draws.
    draws: u32,
    /// What is known otherwise: by censuses, and of objects that are each an event.
    objects: f64,
    bytes: f64,
    counted_objects: f64,
    counted_bytes: f64,
    /// True if `bytes` are by kept events, for want of a census.
    is_naive: bool,
    /// Shares that have been given out: of the weights, and of the results.
    given: [u64; 4],
}

/// The strata of a window.
#[derive(Debug, Default)]
pub(super) struct StratumTable {
    numbers: HashMap<Stratum, u32>,
    strata: Vec<Stratum>,
    /// The number of the class of each.
    classes: Vec<u32>,
    class_numbers: HashMap<Option<Arc<str>>, u32>,
    sums: HashMap<(ProcessKey, u32), StratumSums, FastHasher>,
    /// Bytes of the smallest object that was outside buffers without ending one, of each process.
    least_outside: HashMap<ProcessKey, u64>,
}

/// Totals of what a process has allocated in a window, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowTotals {
    pub(super) inside: u64,
    pub(super) outside: u64,
    /// Those inside that no census can have counted.
    pub(super) cut: u64,
    /// Bytes of objects that were to be counted by class, and could not be.
    pub(super) unclassified: u64,
    pub(super) unfollowed_events: u64,
}

/// The results of [`StratumTable::estimate`] beside the sums of the strata.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    pub(super) bytes_without_census: u64,
    /// Classes of which no event was kept.
    pub(super) without_stack: Vec<(Arc<str>, SampleWeight)>,
    /// How well the classes are known.
    pub(super) errors: Vec<(Arc<str>, ClassError)>,
}

/// Strata with a class of their own in a window, at most; the objects of further ones have none.
const MAX_STRATA: usize = 65_536;
/// Draws of a stratum, and its objects that they lead to expect in censuses, from which on it is
/// taken for one that censuses can't see if none has it: else chance would have to be less than
/// e^-20.
const BLIND_DRAWS: u32 = 8;
const BLIND_OBJECTS: f64 = 20.0;
/// Weights of objects are counted in these parts.
const UNIT: f64 = 65_536.0;

/// Scales the strata so that they add up to `total` bytes. Those that the kernel program counted
/// stay exact; the others share the rest in proportion to the censuses, which have read `read`
/// bytes; `None`: there are none. Returns the factor of the censuses.
///
/// One that no census has seen has nothing, since those that were seen by chance have as much too
/// much: with its events in their place it would have `1 + e^-m` times its bytes, of `m` objects
/// that are expected in censuses. Only where it can't be chance, and without any census, it counts
/// by its events.
fn scale_to_total(strata: &mut [&mut StratumSums], total: f64, read: Option<f64>) -> f64 {
    let counted: f64 = strata.iter().map(|sums| sums.counted_bytes).sum();
    let rest = (total - counted).max(0.0);
    let naive: f64 = strata.iter().map(|sums| sums.naive_bytes).sum();
    let naive_scale = if naive > 0.0 { rest / naive } else { 0.0 };
    let is_blind = |sums: &StratumSums| {
        let expected = |read: f64| sums.naive_objects * naive_scale * read / rest.max(1.0);
        read.is_none_or(|read| sums.draws >= BLIND_DRAWS && expected(read) >= BLIND_OBJECTS)
    };
    for sums in strata.iter_mut() {
        if sums.bytes <= 0.0 && sums.counted_bytes <= 0.0 && is_blind(sums) {
            sums.bytes = sums.naive_bytes * naive_scale;
            sums.objects = sums.naive_objects * naive_scale;
            sums.is_naive = sums.bytes > 0.0;
        }
    }
    let uncounted: f64 = strata.iter().map(|sums| sums.bytes).sum();
    let scale = if uncounted > 0.0 { rest / uncounted } else { 0.0 };
    // Without anything else, what is counted has to stand for all.
    let counted_scale = if uncounted > 0.0 || counted <= 0.0 { 1.0 } else { total / counted };
    for sums in strata {
        sums.bytes = sums.bytes * scale + sums.counted_bytes * counted_scale;
        sums.objects = sums.objects * scale + sums.counted_objects * counted_scale;
    }
    scale
}

/// The parts of the bytes of a class.
#[derive(Clone, Copy, Debug, Default)]
struct ClassBytes {
    counted: f64,
    by_censuses: f64,
    by_events: f64,
}

/// Returns how well each class is known. `scale`: what the censuses have was multiplied by.
fn class_errors(
    own: &[(u32, &mut StratumSums)],
    strata: &[Stratum],
    classes: &[u32],
    errors: &CensusErrors,
    scale: f64,
) -> Vec<(Arc<str>, ClassError)> {
    let mut by_class: HashMap<u32, (&Arc<str>, ClassBytes), FastHasher> = HashMap::default();
    for (stratum, sums) in own {
        let (Stratum { class, .. }, number) = (&strata[*stratum as usize], classes[*stratum as usize]);
        let Some(class) = class else { continue };
        let (_, bytes) = by_class.entry(number).or_insert((class, ClassBytes::default()));
        bytes.counted += sums.counted_bytes;
        let estimated = (sums.bytes - sums.counted_bytes).max(0.0);
        *(if sums.is_naive { &mut bytes.by_events } else { &mut bytes.by_censuses }) += estimated;
    }
    let error = |(number, (class, bytes)): (u32, (&Arc<str>, ClassBytes))| {
        let of_census = errors.variance(number).map(|variance| variance * scale * scale);
        let variance = match bytes {
            ClassBytes { by_events, .. } if by_events > 0.0 => None,
            ClassBytes { by_censuses, .. } if by_censuses > 0.0 => of_census,
            ClassBytes { counted, .. } => (counted > 0.0).then_some(0.0),
        };
        (Arc::clone(class), ClassError { counted_bytes: bytes.counted, variance })
    };
    by_class.into_iter().map(error).collect()
}

/// Adds large objects inside buffers, of which no event was kept, to those of the same class and
/// size that are each an event, and so get the paths of these: whether an object still fits into a
/// buffer depends on its size and not on its path.
fn add_to_events(own: &mut [(u32, &mut StratumSums)], strata: &[Stratum], numbers: &HashMap<Stratum, u32>) {
    let at: HashMap<u32, usize> = own.iter().enumerate().map(|(at, (stratum, _))| (*stratum, at)).collect();
    for inside in 0..own.len() {
        let (stratum, sums) = (&strata[own[inside].0 as usize], &own[inside].1);
        let is_pathless = sums.value_weight == 0 && sums.bytes >= 1.0;
        let is_large = stratum.size_class > size_class(LARGE_OBJECT);
        if !is_pathless || !is_large || stratum.placement != Placement::Inside {
            continue;
        }
        let has_events = [Placement::LargeFirst, Placement::Outside].into_iter().find_map(|placement| {
            let other = *at.get(numbers.get(&Stratum { placement, ..stratum.clone() })?)?;
            (own[other].1.value_weight > 0).then_some(other)
        });
        if let Some(other) = has_events {
            let sums = &mut own[inside].1;
            let (objects, bytes) = (std::mem::take(&mut sums.objects), std::mem::take(&mut sums.bytes));
            own[other].1.objects += objects;
            own[other].1.bytes += bytes;
        }
    }
}

/// Returns the bytes that passed for an event to be kept, by which it is weighed among all events.
pub(super) fn event_bytes(record: &AllocationRecord) -> u64 {
    let bytes = if record.drawn_bytes == 0 { record.object_bytes.max(1) } else { record.drawn_bytes };
    (bytes as f64 / probability(record.weighed_bytes, record.interval)) as u64
}

/// Returns the probability that a range of so many bytes has one of the random points whose
/// distances have this mean: above zero, since no range is chosen that has no byte.
pub(super) fn probability(bytes: u64, interval: u64) -> f64 {
    if interval == 0 {
        return 1.0;
    }
    -f64::exp_m1(-(bytes.max(1) as f64) / interval as f64)
}

impl StratumTable {
    /// Forgets the window.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.strata.clear();
        self.classes.clear();
        self.class_numbers.clear();
        self.sums.clear();
        self.least_outside.clear();
    }

    fn number(&mut self, mut stratum: Stratum) -> u32 {
        if self.strata.len() >= MAX_STRATA {
            stratum.class = None;
        }
        if let Some(number) = self.numbers.get(&stratum) {
            return *number;
        }
        let number = self.strata.len() as u32;
        let next_class = self.class_numbers.len() as u32;
        self.classes.push(*self.class_numbers.entry(stratum.class.clone()).or_insert(next_class));
        self.strata.push(stratum.clone());
        self.numbers.insert(stratum, number);
        number
    }

    /// Returns the number of a stratum's class.
    fn class_of(&self, stratum: u32) -> u32 {
        self.classes[stratum as usize]
    }

    /// Returns what an event counts for.
    pub(super) fn weigh(
        &mut self,
        key: ProcessKey,
        class: Option<&Arc<str>>,
        record: &AllocationRecord,
    ) -> EventWeights {
        if record.tlab_bytes == 0 && record.drawn_bytes == 0 {
            let least = self.least_outside.entry(key).or_insert(u64::MAX);
            *least = record.object_bytes.min(*least);
        }
        let mut weigh_as = |placement, events| self.weigh_as(key, class, record, placement, events);
        match (record.tlab_bytes, record.object_bytes, record.drawn_bytes) {
            (0, _, 0) => (weigh_as(Placement::Outside, 1), None),
            // It is outside, and its buffer was given up for it.
            (0, ..) => (weigh_as(Placement::Outside, 1), Some(weigh_as(Placement::Inside, 0))),
            (_, ..LARGE_OBJECT, _) => (weigh_as(Placement::Inside, 1), None),
            (_, _, 0) => (weigh_as(Placement::LargeFirst, 1), None),
            _ => (weigh_as(Placement::Inside, 1), Some(weigh_as(Placement::LargeFirst, 0))),
        }
    }

    /// Returns what an event counts for among the objects that are placed so.
    fn weigh_as(
        &mut self,
        key: ProcessKey,
        class: Option<&Arc<str>>,
        record: &AllocationRecord,
        placement: Placement,
        events: u64,
    ) -> SampleWeight {
        let object_bytes = record.object_bytes.max(1);
        let stratum =
            self.number(Stratum { class: class.cloned(), size_class: size_class(object_bytes), placement });
        // The object at which a buffer ended is drawn from the buffer's bytes; any other event is
        // an object by itself.
        let bytes = match (placement, record.drawn_bytes) {
            (Placement::Inside, 1..) => {
                draws::bytes_inside(record, self.least_outside.get(&key).copied().unwrap_or(u64::MAX))
            }
            _ => object_bytes as f64,
        };
        let value = bytes / probability(record.weighed_bytes, record.interval);
        let count = value / object_bytes as f64;
        let weight = SampleWeight {
            stratum,
            events,
            count: ((count * UNIT) as u64).max(1),
            value: (value as u64).max(1),
        };
        let sums = self.sums.entry((key, stratum)).or_default();
        sums.count_weight = sums.count_weight.saturating_add(weight.count);
        sums.value_weight = sums.value_weight.saturating_add(weight.value);
        // What is drawn stands for the first objects, too.
        if placement != Placement::LargeFirst {
            sums.naive_bytes += value;
            sums.naive_objects += count;
            sums.draws += u32::from(record.drawn_bytes != 0);
        }
        weight
    }

    /// Takes in objects that the kernel program has counted, since each is an event.
    pub(super) fn add_counted(
        &mut self,
        key: ProcessKey,
        class: Option<&Arc<str>>,
        of: &CountedKey,
        objects: u64,
        bytes: u64,
    ) {
        let stratum = self.number(Stratum {
            class: class.cloned(),
            size_class: of.size_class.into(),
            placement: if of.is_first == 0 { Placement::Outside } else { Placement::LargeFirst },
        });
        let sums = self.sums.entry((key, stratum)).or_default();
        sums.counted_objects += objects as f64;
        sums.counted_bytes += bytes as f64;
    }

    /// Leaves to the events inside buffers what they stand for beside the large first objects,
    /// which are counted: nothing where censuses would have seen it.
    fn subtract_first(&mut self, key: ProcessKey, has_census: bool) {
        let of_first = |(&(process, stratum), sums): (&(ProcessKey, u32), &StratumSums)| {
            let first = self.strata.get(stratum as usize)?;
            let is_counted = first.placement == Placement::LargeFirst && sums.counted_bytes > 0.0;
            let inside = Stratum { placement: Placement::Inside, ..first.clone() };
            let inside = *self.numbers.get(&inside)?;
            (process == key && is_counted).then_some((inside, sums.counted_objects, sums.counted_bytes))
        };
        let counted: Vec<(u32, f64, f64)> = self.sums.iter().filter_map(of_first).collect();
        for (inside, objects, bytes) in counted {
            let Some(sums) = self.sums.get_mut(&(key, inside)) else { continue };
            let left = |naive: f64, counted: f64| if has_census { 0.0 } else { (naive - counted).max(0.0) };
            sums.naive_objects = left(sums.naive_objects, objects);
            sums.naive_bytes = left(sums.naive_bytes, bytes);
        }
    }

    /// Makes of all that is known of a process what each stratum has: see the module's
    /// documentation.
    pub(super) fn estimate(
        &mut self,
        key: ProcessKey,
        totals: &WindowTotals,
        census: CensusSums,
    ) -> Estimate {
        let has_census = !census.by_stratum.is_empty();
        self.subtract_first(key, has_census);
        for (stratum, (objects, bytes)) in census.by_stratum {
            let sums = self.sums.entry((key, stratum)).or_default();
            (sums.objects, sums.bytes) = (objects, bytes);
        }
        let strata = &self.strata;
        let mut own: Vec<(u32, &mut StratumSums)> = self
            .sums
            .iter_mut()
            .filter(|((process, _), _)| *process == key)
            .map(|((_, stratum), sums)| (*stratum, sums))
            .collect();
        own.sort_by_key(|(stratum, _)| *stratum);
        let mut scale_inside = 0.0;
        for is_outside in [true, false] {
            let total = if is_outside { totals.outside } else { totals.inside } as f64;
            let mut of_kind: Vec<&mut StratumSums> = own
                .iter_mut()
                .filter(|(stratum, _)| {
                    (strata[*stratum as usize].placement == Placement::Outside) == is_outside
                })
                .map(|(_, sums)| &mut **sums)
                .collect();
            let read = (has_census && !is_outside).then(|| census.errors.read());
            scale_inside = scale_to_total(&mut of_kind, total, read);
        }
        let errors = class_errors(&own, strata, &self.classes, &census.errors, scale_inside);
        add_to_events(&mut own, strata, &self.numbers);
        let mut estimate = Estimate { errors, ..Estimate::default() };
        estimate.bytes_without_census = if has_census { totals.cut } else { totals.inside };
        for (stratum, sums) in own {
            if sums.value_weight == 0 && sums.bytes >= 1.0 {
                let weight = SampleWeight { stratum, events: 0, count: 1, value: 1 };
                (sums.count_weight, sums.value_weight) = (1, 1);
                let class = strata[stratum as usize].class.clone();
                estimate.without_stack.push((class.unwrap_or_else(|| "[unknown class]".into()), weight));
            }
        }
        estimate
    }

    /// Returns the objects and bytes of a stack's share in its stratum: a byte at least, if the
    /// stack is that of an event. The shares of all stacks sum up to what the stratum has, rounded.
    pub(super) fn share(&mut self, key: ProcessKey, weight: SampleWeight) -> (u64, u64) {
        let Some(sums) = self.sums.get_mut(&(key, weight.stratum)) else {
            return (0, u64::from(weight.events > 0));
        };
        let [count_weight, value_weight, objects, bytes] = &mut sums.given;
        let share = |given_weight: &mut u64, given: &mut u64, own: u64, all: u64, total: f64| {
            *given_weight = given_weight.saturating_add(own);
            let until = (total * (*given_weight as f64 / all.max(1) as f64)).round() as u64;
            let share = until.saturating_sub(*given);
            *given += share;
            share
        };
        let objects = share(count_weight, objects, weight.count, sums.count_weight, sums.objects);
        let bytes = share(value_weight, bytes, weight.value, sums.value_weight, sums.bytes);
        // The bytes of an event may be in the total of the window before. Parca drops profiles of
        // zeros alone, and with them the event.
        (objects, bytes.max(u64::from(weight.events > 0)))
    }
}

#[cfg(test)]
mod tests;
