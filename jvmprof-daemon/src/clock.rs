//! Clocks of the kernel, in nanoseconds.

use nix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC`, which samples, process events and the records of jitdumps
/// carry.
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread.
///
/// Work is measured by it rather than by the time that passes, which a busy host makes longer.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns 0 where the kernel has no such clock.
fn clock_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
