//! Composite of what censuses and events say of the small objects inside buffers.
//!
//! Where a program allocates now this and now that, a buffer has much of one class and nothing of
//! another, so that a few hundred censuses say little: less than some thousand events, of which
//! each is one draw, too. Where it allocates the same all the time, a census says more than a
//! thousand events. Both are unbiased. Their mean, each weighed by how well it knows the class, is
//! so, too, and better than either (a composite estimator).

use std::collections::HashMap;

use super::census::{CensusErrors, LARGEST_SMALL};
use super::{Placement, Stratum, StratumSums, is_invisible};
use crate::types::FastHasher;

/// Censuses from which on their errors are known well enough.
const LEAST_CENSUSES: u32 = 8;

/// The inside of buffers, of a class or of all: small objects by censuses and by events.
#[derive(Clone, Copy, Debug, Default)]
struct SmallObjects {
    /// By censuses, large objects included.
    inside: f64,
    bytes: f64,
    naive_bytes: f64,
    naive_objects: f64,
    naive_squared: f64,
}

impl SmallObjects {
    fn add(&mut self, sums: &StratumSums) {
        self.bytes += sums.bytes;
        self.naive_bytes += sums.naive_bytes;
        self.naive_objects += sums.naive_objects;
        self.naive_squared += sums.naive_squared;
    }

    /// Returns true if nearly all that it has inside buffers is small.
    fn is_pure(&self) -> bool {
        self.bytes > 0.0 && self.bytes >= 0.999 * self.inside
    }
}

/// Combines them, for each stratum of small objects; their sum stays that of the censuses. Returns
/// the variances of the classes that have others now.
pub(super) fn combine(
    own: &mut [(u32, &mut StratumSums)],
    strata: &[Stratum],
    classes: &[u32],
    errors: &CensusErrors,
) -> HashMap<u32, f64, FastHasher> {
    let mut variances = HashMap::default();
    let (mut by_class, mut all) =
        (HashMap::<u32, SmallObjects, FastHasher>::default(), SmallObjects::default());
    for (stratum, sums) in own.iter().filter(|(stratum, _)| is_inside(&strata[*stratum as usize])) {
        let of_class = by_class.entry(classes[*stratum as usize]).or_default();
        of_class.inside += sums.bytes;
        if is_small(&strata[*stratum as usize]) {
            of_class.add(sums);
            all.add(sums);
        }
    }
    if errors.buffers() < LEAST_CENSUSES || all.bytes <= 0.0 || all.naive_bytes <= 0.0 {
        return variances;
    }
    let scale = all.bytes / all.naive_bytes;
    // Variances by the bytes that they are of: they differ less between samples than variances do,
    // which are too small where a class is estimated too low. Of events that is their mean weight.
    let weight_of_event = scale * all.naive_squared / all.naive_bytes;
    // Their sum is that of the censuses, with its errors.
    let of_sum = errors.variance_of_small();
    let known = |class: &u32, sums: &SmallObjects| {
        let share = sums.bytes / all.bytes;
        (errors.variance(*class).unwrap_or_default() - share * share * of_sum).max(0.0)
    };
    let pure = || by_class.iter().filter(|(_, sums)| sums.is_pure());
    let pure_bytes: f64 = pure().map(|(_, sums)| sums.bytes).sum();
    let of_pure = pure().map(|(class, sums)| known(class, sums)).sum::<f64>() / pure_bytes.max(1.0);
    let mut parts: HashMap<u32, f64, FastHasher> = HashMap::default();
    for (class, sums) in &by_class {
        let share = (sums.bytes / all.bytes + sums.naive_bytes / all.naive_bytes) / 2.0;
        let of_events = weight_of_event * (1.0 - share);
        let of_censuses = if sums.is_pure() {
            known(class, sums) / sums.bytes
        } else if sums.inside > 0.0 {
            // Their errors are those of the large ones.
            of_pure
        } else {
            // One object in one census would have this.
            errors.mean_weight() * sums.naive_bytes / sums.naive_objects.max(1.0)
        };
        let part = if of_censuses > 0.0 { of_censuses / (of_censuses + of_events) } else { 0.0 };
        parts.insert(*class, part);
        if sums.is_pure() {
            let others = all.naive_squared - sums.naive_squared;
            let squares = (1.0 - share).powi(2) * sums.naive_squared + share.powi(2) * others;
            let (by_censuses, by_events) = (known(class, sums), scale * scale * squares);
            let combined = (1.0 - part).powi(2) * by_censuses + part.powi(2) * by_events;
            variances.insert(*class, share * share * of_sum + combined);
        }
    }
    let inside = own.iter().filter(|(stratum, _)| is_inside(&strata[*stratum as usize]));
    let naive_bytes: f64 = inside.map(|(_, sums)| sums.naive_bytes).sum();
    // What censuses can't see counts by its events alone, in the end.
    let is_combined = |stratum: u32, sums: &StratumSums| {
        is_small(&strata[stratum as usize])
            && (sums.bytes > 0.0 || !is_invisible(sums, errors.read(), naive_bytes))
    };
    let mut combined: Vec<&mut StratumSums> = Vec::new();
    for (stratum, sums) in own.iter_mut().filter(|(stratum, sums)| is_combined(*stratum, sums)) {
        let part = parts.get(&classes[*stratum as usize]).copied().unwrap_or_default();
        sums.bytes = (1.0 - part) * sums.bytes + part * scale * sums.naive_bytes;
        sums.objects = (1.0 - part) * sums.objects + part * scale * sums.naive_objects;
        combined.push(sums);
    }
    let total: f64 = combined.iter().map(|sums| sums.bytes).sum();
    if total > 0.0 {
        for sums in combined {
            sums.bytes *= all.bytes / total;
            sums.objects *= all.bytes / total;
        }
    }
    variances
}

fn is_inside(stratum: &Stratum) -> bool {
    stratum.placement == Placement::Inside
}

fn is_small(stratum: &Stratum) -> bool {
    is_inside(stratum) && stratum.size_class <= LARGEST_SMALL
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jvmprof_common::allocation::{AllocationRecord, TlabRecord, size_class};

    use super::super::{StratumTable, WindowCensus, WindowTotals, probability};
    use super::*;
    use crate::hotspot::java_heap::{JavaClass, ObjectCount, TlabObjects};
    use crate::pipeline::allocation::xorshift::Random;
    use crate::process::ProcessKey;

    const TLAB: u64 = 512 << 10;
    /// Bytes of a small object, and of one that isn't.
    const SMALL: u64 = 32;
    const MEDIUM: u64 = 4096;
    const BUFFERS: u64 = 2000;
    /// Mean distances of censuses and of kept events.
    const CENSUSES: u64 = 20 * TLAB;
    const EVENTS: u64 = 4 * TLAB;

    fn uniform(random: &mut Random) -> f64 {
        f64::from(random.number()) / 4_294_967_296.0
    }

    /// Relative errors of a class, squared and summed up over windows.
    #[derive(Debug, Default)]
    struct Errors {
        /// By censuses alone.
        censuses: f64,
        both: f64,
        stated: f64,
        /// Not squared.
        sum: f64,
    }

    /// Adds a window of two classes, of which the first has this share of each buffer. `second`:
    /// bytes of an object of the other one.
    fn add_window(
        errors: &mut Errors,
        second: u64,
        random: &mut Random,
        mut share: impl FnMut(&mut Random, u64) -> f64,
    ) {
        let sizes = [SMALL, second];
        let key = ProcessKey::numbered(1);
        let classes = ["First", "Second"].map(|name| Arc::new(JavaClass::named(name)));
        let (mut strata, mut census) = (StratumTable::default(), WindowCensus::default());
        let mut truth = 0;
        for buffer in 0..BUFFERS {
            let share = share(random, buffer);
            let first = (share * (TLAB / MEDIUM) as f64) as u64 * MEDIUM;
            truth += first;
            if uniform(random) < probability(TLAB, CENSUSES) {
                let count = |(index, bytes): (usize, u64)| ObjectCount {
                    class: Arc::clone(&classes[index]),
                    size_class: size_class(sizes[index]),
                    objects: bytes / sizes[index],
                    bytes,
                };
                let counts = [first, TLAB - first].into_iter().enumerate().filter(|(_, bytes)| *bytes > 0);
                let found = TlabObjects { counts: counts.map(count).collect(), first: None };
                let tlab = TlabRecord { used: TLAB, interval: CENSUSES, ..TlabRecord::default() };
                census.add_unscreened(&tlab, &found, &mut strata);
            }
            if uniform(random) < probability(TLAB, EVENTS) {
                let index = usize::from(uniform(random) >= share);
                let record = AllocationRecord {
                    object_bytes: sizes[index],
                    tlab_bytes: TLAB + sizes[index],
                    weighed_bytes: TLAB,
                    drawn_bytes: TLAB,
                    interval: EVENTS,
                    ..AllocationRecord::default()
                };
                strata.weigh(key, Some(&classes[index].name), &record);
            }
        }
        census.add_given_up(TLAB * BUFFERS);
        let sums = census.take();
        let name = Some(Arc::clone(&classes[0].name));
        let placement = Placement::Inside;
        let number = strata.number(Stratum { class: name, size_class: size_class(SMALL), placement });
        let by_censuses = sums.by_stratum.get(&number).map_or(0.0, |(_, bytes)| *bytes);
        let totals = WindowTotals { inside: TLAB * BUFFERS, ..WindowTotals::default() };
        let estimate = strata.estimate(key, &totals, sums);
        let truth = truth as f64;
        let error = |bytes: f64| bytes / truth - 1.0;
        let both = error(strata.sums[&(key, number)].bytes);
        let (_, stated) =
            estimate.errors.iter().find(|(name, _)| **name == *"First").expect("it was allocated");
        errors.censuses += error(by_censuses).powi(2);
        errors.both += both.powi(2);
        errors.stated += stated.variance.expect("there are censuses") / (truth * truth);
        errors.sum += both;
    }

    /// Adds windows of a program that fills five buffers at a time with one class.
    fn add_phases(second: u64) -> Errors {
        let (mut random, mut errors) = (Random(0x1234_5678_9abc_def1), Errors::default());
        for _ in 0..200 {
            let mut phase = 0.0;
            add_window(&mut errors, second, &mut random, |random, buffer| {
                if buffer.is_multiple_of(5) {
                    phase = f64::from(u8::from(uniform(random) < 0.2));
                }
                phase
            });
        }
        errors
    }

    #[test]
    fn events_say_more_of_a_program_that_allocates_now_this_and_now_that() {
        let errors = add_phases(SMALL);
        assert!(errors.both < 0.4 * errors.censuses, "{errors:?}");
        assert!(errors.sum.abs() < 3.5 * errors.both.sqrt(), "{errors:?}");
        assert!((0.6..1.8).contains(&(errors.stated / errors.both)), "{errors:?}");
    }

    #[test]
    fn the_only_class_of_small_objects_is_known_as_censuses_know_it() {
        let errors = add_phases(MEDIUM);
        assert!((errors.both / errors.censuses - 1.0).abs() < 1e-6, "{errors:?}");
        assert!((0.6..1.8).contains(&(errors.stated / errors.both)), "{errors:?}");
    }

    #[test]
    fn censuses_say_all_of_a_program_that_allocates_the_same_all_the_time() {
        let (mut random, mut errors) = (Random(0x0dd_ba11_5eed_cafe), Errors::default());
        for _ in 0..100 {
            add_window(&mut errors, SMALL, &mut random, |random, _| 0.18 + 0.04 * uniform(random));
        }
        assert!(errors.both < 1.05 * errors.censuses, "{errors:?}");
        assert!(errors.sum.abs() < 3.5 * errors.both.sqrt(), "{errors:?}");
    }
}
