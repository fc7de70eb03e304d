//! Allocation in the Java heap, as the uprobes of a JVM report it to the daemon.
//!
//! A thread of a JVM allocates in its own buffer, the TLAB, and reports two events: that it got a
//! new buffer for an object (openjdk src/hotspot/share/gc/shared/allocTracer.cpp,
//! `AllocTracer::send_allocation_in_new_tlab`), and that it allocated an object outside it
//! (`send_allocation_outside_tlab`). The kernel program follows each thread's
//! `Thread::_allocated_bytes`, keeps some events with their stacks, and names some buffers that
//! were given up for a census: `docs/allocation.md` explains what is made of them.

mod random_distance;

pub use random_distance::RandomDistance;

/// The daemon's settings for a JVM, by its thread group id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationTarget {
    /// `task_struct.start_boottime` of the process, ns.
    pub start_ns: u64,
    /// Threads that began later than this (`CLOCK_BOOTTIME`, ns) are counted from their first byte.
    pub since_ns: u64,
    /// The mean distance of the events that are kept, in bytes that one thread allocates; not 0.
    pub interval: u64,
    /// The mean distance of censuses, in bytes that one thread allocates; 0: there are none.
    pub census_interval: u64,
    /// The address of `CollectedHeap::_total_collections`, an `unsigned int`; 0 if it isn't known.
    pub collections_at: u64,
    /// The offset of `Thread::_allocated_bytes`, a `jlong`.
    pub allocated_bytes_offset: u32,
    /// Zero.
    pub reserved: u32,
}

/// State of an allocating thread in the kernel program, by its id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatingThread {
    /// The address of its `JavaThread`, and [`AllocationTarget::start_ns`]: others mean another
    /// thread.
    pub thread: u64,
    pub start_ns: u64,
    /// `Thread::_allocated_bytes` when it got its buffer.
    pub allocated: u64,
    /// Bytes outside its buffer since then.
    pub outside: u64,
    /// The first address of its buffer, and its bytes.
    pub tlab_start: u64,
    pub tlab_bytes: u64,
    /// Bytes of the buffer's first object, if it is a [`LARGE_OBJECT`]; else 0.
    pub large_first: u64,
    /// `CollectedHeap::_total_collections` when it got its buffer.
    pub collections: u64,
    /// 1 if it has filled a buffer since the last collection.
    pub has_filled: u64,
    /// Bytes in buffers since its last event that was a draw.
    pub undrawn: u64,
    /// Bytes to the next event that is kept, and to the next census.
    pub to_sample: RandomDistance,
    pub to_census: RandomDistance,
}

/// Totals of what a process has allocated since it became a target, by its thread group id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatedTotals {
    /// Bytes in buffers that were given up.
    pub inside: u64,
    /// Bytes of objects outside buffers.
    pub outside: u64,
    /// Bytes of objects that aren't in the totals by class, since those were full.
    pub unclassified: u64,
    /// Bytes of `inside` that are large objects, the first of their buffers.
    pub large_first: u64,
    /// Bytes of `inside` beside these that no census can count, since a collection began while
    /// their buffer was in use, or nothing is known of it.
    pub cut: u64,
    /// Events of threads that could not be followed, since too many are.
    pub unfollowed_events: u64,
}

/// The objects that a total counts since each is an event: those outside buffers, and large ones
/// that are the first of their buffer. One class and size, rounded up to a power of two, of one
/// process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CountedKey {
    pub klass: u64,
    pub pid: u32,
    /// See [`size_class`].
    pub size_class: u16,
    /// 1 for the first of a buffer.
    pub is_first: u16,
}

/// Bytes from which on the first object of a buffer is counted by itself: censuses see few objects
/// so large.
pub const LARGE_OBJECT: u64 = 16 << 10;

/// Objects and their bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectTotals {
    pub objects: u64,
    pub bytes: u64,
}

/// Data of a kept event beside its stack: the first words of its sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationRecord {
    /// The address of the object's `Klass`.
    pub klass: u64,
    /// Bytes of the object.
    pub object_bytes: u64,
    /// Bytes of the buffer that it was the first object of; 0: it is outside.
    pub tlab_bytes: u64,
    /// The bytes that decided by chance whether the event is kept, and the mean distance then.
    pub weighed_bytes: u64,
    pub interval: u64,
    /// The bytes in buffers that the object is a draw from; 0: it is none. One outside is one if its
    /// thread has given its buffer up for it.
    pub drawn_bytes: u64,
}

/// Words of an [`AllocationRecord`].
pub const ALLOCATION_WORDS: usize = size_of::<AllocationRecord>() / 8;

/// A buffer that was given up and is chosen for a census: a record of the ring buffer of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlabRecord {
    /// [`TLAB_MAGIC`].
    pub magic: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// As in [`crate::abi::SampleHeader`].
    pub start_ns: u64,
    pub pid: u32,
    pub tid: u32,
    /// The first address of the buffer, and how many of its bytes are objects.
    pub start: u64,
    pub used: u64,
    /// Bytes of the first of them, if it is a [`LARGE_OBJECT`], which the kernel program counts;
    /// else 0.
    pub large_first: u64,
    /// `CollectedHeap::_total_collections`, the same when the buffer was got and given up.
    pub collections: u64,
    /// The mean distance of censuses, bytes.
    pub interval: u64,
}

impl TlabRecord {
    /// Returns the bytes of objects that aren't counted otherwise: by them chance decided whether
    /// the buffer is chosen.
    #[inline(always)]
    pub const fn uncounted(&self) -> u64 {
        self.used.saturating_sub(self.large_first)
    }
}

/// The first word of each [`TlabRecord`]: "jvmtlab" and the version of this layout.
pub const TLAB_MAGIC: u64 = u64::from_le_bytes(*b"jvmtlab\x02");

const _: () = assert!(size_of::<AllocationTarget>() == 6 * 8, "no padding: it lies in a map");
const _: () = assert!(size_of::<AllocatingThread>() == 14 * 8, "no padding: it lies in a map");
const _: () = assert!(size_of::<AllocatedTotals>() == 6 * 8, "no padding: it lies in a map");
const _: () = assert!(size_of::<TlabRecord>() == 9 * 8, "no padding: it is a record of the ring buffer");
const _: () = assert!(size_of::<CountedKey>() == 2 * 8, "no padding: it is a map's key");

/// Returns the class of objects of about this size: the logarithm of the next power of two.
#[inline(always)]
pub const fn size_class(bytes: u64) -> u32 {
    64 - bytes.saturating_sub(1).leading_zeros()
}

/// Bits after the point of [`ln_of_fraction`]'s result.
const POINT: u32 = 16;
/// ln 2 with so many.
const LN_2: u64 = 45_426;

/// Returns a distance with an exponential distribution of this mean, at least 1, from a uniformly
/// distributed number. It is off by 2e-4 of the mean at most. Means above 2^40 aren't meant.
#[inline(always)]
pub const fn exponential_distance(random: u32, mean: u64) -> u64 {
    let distance = (mean * minus_ln(random)) >> POINT;
    if distance == 0 { 1 } else { distance }
}

/// Returns `-ln((random + 1) / 2^32)`, with [`POINT`] bits after the point.
#[inline(always)]
const fn minus_ln(random: u32) -> u64 {
    // (random + 1) is 2^exponent * (1 + fraction).
    let value = random as u64 + 1;
    let exponent = 63 - value.leading_zeros() as u64;
    let fraction = ((value << (32 - exponent)) & 0xffff_ffff) >> POINT;
    (32 - exponent) * LN_2 - ln_of_fraction(fraction)
}

/// Returns ln(1 + fraction) of a fraction in [0, 1), both with [`POINT`] bits after the point: a
/// polynomial (Abramowitz and Stegun, 4.1.43, of five terms) whose error is 1e-5 at most.
#[inline(always)]
const fn ln_of_fraction(fraction: u64) -> u64 {
    const TERMS: [i64; 5] = [2108, -8917, 18_971, -32_238, 65_503];
    let fraction = fraction as i64;
    let mut sum = TERMS[0];
    sum = ((sum * fraction) >> POINT) + TERMS[1];
    sum = ((sum * fraction) >> POINT) + TERMS[2];
    sum = ((sum * fraction) >> POINT) + TERMS[3];
    sum = ((sum * fraction) >> POINT) + TERMS[4];
    ((sum * fraction) >> POINT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_exact_to_two_ten_thousandths() {
        let mut worst: f64 = 0.0;
        for index in 0..2_000_000_u64 {
            let random = (index * 2147) as u32;
            let exact = -((f64::from(random) + 1.0) / 4_294_967_296.0).ln();
            let found = minus_ln(random) as f64 / 65_536.0;
            worst = worst.max((found - exact).abs());
        }
        for random in [0, 1, 2, 3, u32::MAX - 1, u32::MAX] {
            let exact = -((f64::from(random) + 1.0) / 4_294_967_296.0).ln();
            worst = worst.max((minus_ln(random) as f64 / 65_536.0 - exact).abs());
        }
        assert!(worst < 2e-4, "{worst}");
    }

    #[test]
    fn distances_have_the_mean_and_the_shape_of_the_exponential_distribution() {
        const MEAN: u64 = 512 << 10;
        let count = 1 << 20;
        let distances = (0..count).map(|index: u64| {
            // Each stretch of the numbers once.
            exponential_distance((index * 4096 + 2048) as u32, MEAN)
        });
        let all: Vec<u64> = distances.collect();
        let mean = all.iter().sum::<u64>() as f64 / count as f64;
        assert!((mean / MEAN as f64 - 1.0).abs() < 1e-3, "{mean}");
        for times in [0.1, 1.0, 3.0] {
            let beyond = all.iter().filter(|distance| **distance as f64 > times * MEAN as f64).count();
            let share = beyond as f64 / count as f64;
            assert!((share - f64::exp(-times)).abs() < 1e-3, "{times}: {share}");
        }
        assert_eq!(exponential_distance(u32::MAX, MEAN), 1);
    }

    #[test]
    fn sizes_are_rounded_up_to_powers_of_two() {
        for (bytes, class) in [(1, 0), (2, 1), (16, 4), (17, 5), (24, 5), (32, 5), (33, 6), (65_552, 17)] {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
        assert_eq!(size_class(0), 0);
    }
}
