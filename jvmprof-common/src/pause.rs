//! Pauses of JVMs: the times in which a JVM stops all of its Java threads at a safepoint, as the
//! uprobes in libjvm report them to the daemon.
//!
//! HotSpot's VM thread calls three functions that are out of line in each JDK (openjdk
//! src/hotspot/share/services/runtimeService.cpp): `RuntimeService::record_safepoint_begin` when it
//! begins to stop the threads, `record_safepoint_synchronized` when all have stopped, and
//! `record_safepoint_end` when they may go on. Each follows the JVM's own reading of the clock.
//!
//! The VM thread may lose its CPU in between. Since JDK 13 what it has read is in variables, and
//! the second function has the time to the safepoint as its argument: so no uprobe is needed at the
//! first one, where the VM thread would wait for any thread that changes the process's mappings.

/// A JVM whose pauses are followed, by its thread group id: what the daemon sets, and what the
/// kernel programs remember. Only the JVM's VM thread changes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JvmPauseState {
    /// `task_struct.start_boottime` of the process, ns.
    pub start_ns: u64,
    /// The address of `VMThread::_cur_vm_operation`, a `VM_Operation*`; 0 if it isn't known.
    pub operation_at: u64,
    /// The address of `CollectedHeap::_total_collections`, an `unsigned int`; 0 if it isn't known.
    pub collections_at: u64,
    /// The addresses of the performance counters `sun.gc.cause` and `sun.gc.lastCause`; 0 if they
    /// aren't known.
    pub cause_at: u64,
    pub last_cause_at: u64,
    /// 1: `record_safepoint_synchronized` has the time to the safepoint as its argument.
    pub has_duration: u64,
    /// The addresses of the variables that have the times of the last pause, `jlong` of
    /// `CLOCK_MONOTONIC` in ns: `SafepointTracing::_last_safepoint_sync_time_ns` and
    /// `_last_safepoint_end_time_ns`; 0 if they aren't known.
    pub reached_time_at: u64,
    pub end_time_at: u64,
    /// When the last pause ended.
    pub ended_ns: u64,
    /// Of the pause that is under way; `began_ns` 0: there is none.
    pub began_ns: u64,
    pub reached_ns: u64,
    /// See [`PauseRecord::operation`].
    pub operation: u64,
    /// `CollectedHeap::_total_collections` when it began.
    pub collections: u64,
    /// Pauses that have ended, and those of them that the ring buffer had no room for.
    pub taken: u64,
    pub lost: u64,
}

/// Time for which a VM thread may be without a CPU between reading the clock and what follows.
const MAX_LATE_NS: u64 = 10_000_000_000;

/// Returns when a step of a pause was, which is seen at `now_ns`: the time `read` in the JVM's
/// variable, unless that can't be true. `least_ns`: the time of the step before.
#[inline(always)]
pub const fn step_time(read: u64, least_ns: u64, now_ns: u64) -> u64 {
    if read < least_ns || read > now_ns || now_ns - read > MAX_LATE_NS { now_ns } else { read }
}

/// Returns when a pause began that has reached its safepoint. `duration_ns`: how long that took, as
/// the JVM says; `least_ns`: the end of the pause before.
#[inline(always)]
pub const fn begin_time(reached_ns: u64, duration_ns: u64, least_ns: u64) -> u64 {
    let began_ns = reached_ns.saturating_sub(duration_ns);
    if began_ns < least_ns { least_ns } else { began_ns }
}

/// Bytes of the name of a collection's cause, at most: a longer one is left out.
pub const CAUSE_BYTES: usize = 48;

/// A pause: all threads have stopped, or it is over. A record of the ring buffer of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseRecord {
    /// [`PAUSE_MAGIC`].
    pub magic: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// As in [`crate::abi::SampleHeader`].
    pub start_ns: u64,
    pub pid: u32,
    /// 1: it is over.
    pub is_over: u32,
    /// When the JVM began to stop its threads, and when all of them had stopped.
    pub began_ns: u64,
    pub reached_ns: u64,
    /// The first word of the VM operation, the address of its virtual functions; [`NO_OPERATION`],
    /// or 0 if it isn't known.
    pub operation: u64,
    /// The name of the collection's cause, with a NUL behind it; empty where it isn't over yet, or
    /// no collection took place.
    pub cause: [u64; CAUSE_BYTES / 8],
}

/// [`PauseRecord::operation`] where threads are stopped for none: JDK 8 to 12 do so for cleaning
/// up.
pub const NO_OPERATION: u64 = 1;

/// The first word of each [`PauseRecord`]: "jvmstop" and the version of this layout.
pub const PAUSE_MAGIC: u64 = u64::from_le_bytes(*b"jvmstop\x01");

/// The text of `sun.gc.cause` between collections, and the bits of its first word that it is
/// compared by.
pub const NO_CAUSE: u64 = u64::from_le_bytes(*b"No GC\0\0\0");
pub const NO_CAUSE_BITS: u64 = 0xffff_ffff_ffff;

const _: () = assert!(size_of::<JvmPauseState>() == 15 * 8, "no padding: it lies in a map");
const _: () = assert!(size_of::<PauseRecord>() == 7 * 8 + CAUSE_BYTES, "no padding: it is copied as bytes");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_was_when_the_jvm_says_unless_that_cannot_be_true() {
        const S: u64 = 1_000_000_000;
        assert_eq!(step_time(20 * S - 7, 19 * S, 20 * S), 20 * S - 7, "it lost the CPU");
        assert_eq!(step_time(20 * S, 20 * S, 20 * S), 20 * S);
        assert_eq!(step_time(18 * S, 19 * S, 20 * S), 20 * S, "before the step before");
        assert_eq!(step_time(21 * S, 19 * S, 20 * S), 20 * S, "in the future");
        assert_eq!(step_time(5 * S, 0, 20 * S), 20 * S, "another variable");
        assert_eq!(step_time(0, 0, 20 * S), 20 * S, "not set yet");
    }

    #[test]
    fn a_pause_begins_by_its_duration_and_after_the_one_before() {
        assert_eq!(begin_time(100, 7, 80), 93);
        assert_eq!(begin_time(100, 0, 80), 100);
        assert_eq!(begin_time(100, 21, 80), 80);
        assert_eq!(begin_time(100, u64::MAX, 80), 80, "no duration");
    }
}
