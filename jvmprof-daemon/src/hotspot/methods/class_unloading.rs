//! Were classes unloaded since a sample was taken?
//!
//! A method that an interpreted frame names is read later than the frame was sampled. If its class
//! was unloaded in between, most of what leads to its names may still stand in freed memory, while
//! another class's names stand where its own were: symbols are freed one by one, and reused at
//! once. A JVM counts the classes that it unloads before it frees anything of them (openjdk
//! src/hotspot/share/services/classLoadingService.cpp, `notify_class_unloaded`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Age up to which what is read is believed: to unload a class takes a garbage collection. ns.
const SOON_NS: u64 = 30_000_000;

/// The time of the sample for which is read now, and the time now: `CLOCK_MONOTONIC`, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTimes {
    pub sampled_ns: u64,
    pub now_ns: u64,
}

impl ReadTimes {
    /// Nothing happens between sample and reading: for a process that is stopped, or an image of
    /// one.
    pub const STOPPED: Self = Self { sampled_ns: 0, now_ns: 0 };
}

/// The JVM's counter, as it was seen last.
#[derive(Debug, Default)]
pub(crate) struct ClassUnloads {
    count: AtomicU64,
    /// When it was first seen to be that.
    since_ns: AtomicU64,
}

impl ClassUnloads {
    /// Returns true if methods that have just been read are those of the sample's time, as far as
    /// the JVM's `count` says, which was read behind them, at `read_ns`. A JVM that doesn't count
    /// is believed.
    pub(crate) fn are_methods_as_sampled(&self, count: Option<u64>, times: ReadTimes, read_ns: u64) -> bool {
        let Some(count) = count else { return true };
        if self.count.swap(count, Ordering::Relaxed) != count {
            self.since_ns.store(read_ns, Ordering::Relaxed);
        }
        // As long as none was ever unloaded it doesn't matter since when that is known.
        let is_same = count == 0 || self.since_ns.load(Ordering::Relaxed) <= times.sampled_ns;
        is_same || times.now_ns.saturating_sub(times.sampled_ns) <= SOON_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_late_is_believed_if_no_class_was_unloaded_since() {
        let unloads = ClassUnloads::default();
        let at = |count: u64, sampled_ms: u64, now_ms: u64| {
            let times = ReadTimes { sampled_ns: sampled_ms * 1_000_000, now_ns: now_ms * 1_000_000 };
            unloads.are_methods_as_sampled(Some(count), times, times.now_ns)
        };
        assert!(at(0, 0, 500), "a JVM that starts has unloaded none");
        assert!(!at(3, 500, 600), "three since");
        assert!(at(3, 580, 601), "soon enough");
        assert!(at(3, 600, 900));
        assert!(!at(3, 599, 900), "nobody knows whether it was before or behind");
        assert!(!at(4, 900, 1_000));
        assert!(unloads.are_methods_as_sampled(None, ReadTimes { sampled_ns: 0, now_ns: 1 << 40 }, 1 << 40));
    }

    #[test]
    fn a_count_holds_since_it_was_read_not_since_the_naming_began() {
        let unloads = ClassUnloads::default();
        let times = |sampled_ns: u64, now_ns: u64| ReadTimes { sampled_ns, now_ns };
        let read_ns = 3 * SOON_NS;
        assert!(!unloads.are_methods_as_sampled(Some(1), times(0, 2 * SOON_NS), read_ns));
        let between = times(5 * SOON_NS / 2, 9 * SOON_NS);
        assert!(
            !unloads.are_methods_as_sampled(Some(1), between, 9 * SOON_NS),
            "unloaded before or behind it"
        );
        assert!(unloads.are_methods_as_sampled(Some(1), times(read_ns, 9 * SOON_NS), 9 * SOON_NS));
    }
}
