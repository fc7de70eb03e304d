//! Bytes that a draw stands for: the object at which a thread gave its buffer up.
//!
//! A thread whose buffer has no room for an object takes a new one only if little is left of it,
//! `refill_waste_limit`; else the object goes outside (openjdk share/gc/shared/memAllocator.cpp,
//! `mem_allocate_inside_tlab_slow`). With *T* bytes of a buffer, an object of *s* bytes is the one
//! at which it ends with the probability min(*s*, limit) / *T*, and fits into it with (*T* − *s*) /
//! *T*.

use jvmprof_common::allocation::AllocationRecord;

/// The part of its buffer that a thread gives up at most is one of so many
/// (share/gc/shared/tlab_globals.hpp, `TLABRefillWasteFraction`).
const REFILL_WASTE_FRACTION: f64 = 64.0;

/// Returns how many bytes inside buffers a draw stands for, if all draws are kept: those that the
/// buffer had, where the object is small. A larger one than the limit is drawn as often as one of
/// the limit's size, so that it stands for more, and for less where few have room for it.
/// `least_outside`: bytes of the smallest object that went outside.
pub(super) fn bytes_inside(record: &AllocationRecord, least_outside: u64) -> f64 {
    let (object, drawn) = (record.object_bytes.max(1) as f64, record.drawn_bytes as f64);
    // A new buffer has what the thread wants beside the object. The end of a region may have cut
    // one of the two.
    let buffer = record.drawn_bytes.max(record.tlab_bytes.saturating_sub(record.object_bytes));
    let limit = buffer.max(1) as f64 / REFILL_WASTE_FRACTION;
    // ZGC's buffers are smaller than threads want, and the limit is of what these want.
    let limit = if least_outside as f64 > 2.0 * limit { least_outside as f64 } else { limit };
    // As the first of its buffer it is inside, too.
    let first = object.min(limit);
    object / first * ((drawn - object).max(0.0) + first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jvmprof_common::allocation::LARGE_OBJECT;

    use super::super::StratumTable;
    use super::*;
    use crate::pipeline::allocation::xorshift::Random;
    use crate::process::ProcessKey;

    const BUFFER: u64 = 384 << 10;
    const FILLER: u64 = 1600;

    /// A thread that fills buffers with objects of one class, by two paths, and others between
    /// them.
    struct Thread {
        sizes: [u64; 2],
        limit: u64,
        random: Random,
        strata: StratumTable,
        free: u64,
        used: u64,
        /// By path: bytes inside buffers, without large objects that are their first ones, and what
        /// the draws come to, objects and bytes.
        inside: [u64; 2],
        drawn: [(u64, u64); 2],
    }

    impl Thread {
        fn new(sizes: [u64; 2], limit: u64) -> Self {
            let random = Random(0x0ddb_a115_eed5_cafe);
            let strata = StratumTable::default();
            Self { sizes, limit, random, strata, free: 0, used: 0, inside: [0; 2], drawn: [(0, 0); 2] }
        }

        fn allocate(&mut self, bytes: u64, path: Option<usize>) {
            let fits = bytes <= self.free;
            let is_outside = !fits && self.free > self.limit;
            if !fits && let Some(path) = path {
                let (tlab_bytes, drawn_bytes) = if is_outside { (0, 0) } else { (BUFFER + bytes, self.used) };
                let record = AllocationRecord {
                    object_bytes: bytes,
                    tlab_bytes,
                    drawn_bytes,
                    ..AllocationRecord::default()
                };
                let name: Arc<str> = "byte[]".into();
                let (weight, _) = self.strata.weigh(ProcessKey::numbered(1), Some(&name), &record);
                if is_outside {
                    return;
                }
                let (objects, all) = &mut self.drawn[path];
                (*objects, *all) = (*objects + weight.count, *all + weight.value);
            }
            if is_outside {
                return;
            }
            if let Some(path) = path.filter(|_| fits || bytes < LARGE_OBJECT) {
                self.inside[path] += bytes;
            }
            (self.free, self.used) =
                if fits { (self.free - bytes, self.used + bytes) } else { (BUFFER, bytes) };
        }

        /// Allocates objects by both paths alike, and as many bytes beside them.
        fn run(&mut self, objects: u32) {
            let mean = (self.sizes[0] + self.sizes[1]) / 2 / FILLER;
            for _ in 0..objects {
                let path = self.random.number() as usize & 1;
                self.allocate(self.sizes[path], Some(path));
                for _ in 0..u64::from(self.random.number()) % (2 * mean + 1) {
                    self.allocate(FILLER, None);
                }
            }
        }
    }

    #[test]
    fn paths_whose_objects_have_unequal_sizes_have_the_bytes_that_they_allocate_inside_buffers() {
        const LIMIT: u64 = BUFFER / 64;
        for (sizes, limit, objects) in [
            ([34_000, 64_000], LIMIT, 400_000),
            ([8_504, 16_000], LIMIT, 400_000),
            ([4_304, 8_000], LIMIT, 400_000),
            ([600, 1_000], LIMIT, 2_000_000),
            // Of a thread that wants larger buffers than there are.
            ([8_504, 16_000], 8 * LIMIT, 400_000),
        ] {
            let mut thread = Thread::new(sizes, limit);
            thread.run(objects);
            let share = |of: [u64; 2]| of[0] as f64 / (of[0] + of[1]) as f64;
            let (expected, found) = (share(thread.inside), share(thread.drawn.map(|(_, bytes)| bytes)));
            assert!((found / expected - 1.0).abs() < 0.06, "{sizes:?}: {found}, not {expected}");
            let inside = [0, 1].map(|path| thread.inside[path] / sizes[path]);
            let (expected, found) = (share(inside), share(thread.drawn.map(|(objects, _)| objects)));
            assert!((found / expected - 1.0).abs() < 0.06, "{sizes:?}: {found} of objects, not {expected}");
        }
    }

    #[test]
    fn an_object_outside_for_which_a_buffer_was_given_up_is_a_draw_from_those_inside() {
        let mut strata = StratumTable::default();
        let record = |drawn_bytes| AllocationRecord {
            object_bytes: 4_000,
            drawn_bytes,
            weighed_bytes: drawn_bytes + 4_000,
            ..AllocationRecord::default()
        };
        let name: Arc<str> = "byte[]".into();
        let mut weigh =
            |drawn_bytes| strata.weigh(ProcessKey::numbered(1), Some(&name), &record(drawn_bytes));
        let (as_itself, as_draw) = weigh(BUFFER);
        let as_draw = as_draw.expect("a draw");
        assert_eq!([as_itself.events, as_draw.events], [1, 0], "it is one event");
        assert_eq!([as_itself.value, as_draw.value], [4_000, BUFFER]);
        assert_ne!(as_itself.stratum, as_draw.stratum);
        let (other, None) = weigh(0) else { panic!("its thread has its buffer still") };
        assert_eq!((other.value, other.stratum), (4_000, as_itself.stratum));
    }

    #[test]
    fn a_small_object_stands_for_its_buffer() {
        let record = AllocationRecord {
            object_bytes: 1000,
            tlab_bytes: BUFFER + 1000,
            drawn_bytes: 380_000,
            ..AllocationRecord::default()
        };
        assert_eq!(bytes_inside(&record, u64::MAX) as u64, 380_000);
        // The new buffer was cut by the end of a region.
        assert_eq!(bytes_inside(&AllocationRecord { tlab_bytes: 2048, ..record }, 7_000) as u64, 380_000);
    }
}
