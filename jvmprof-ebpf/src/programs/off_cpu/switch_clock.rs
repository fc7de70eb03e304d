//! The time of a switch of the scheduler, without reading the hardware's clock each time: that
//! would take as long as all else that a switch costs (20 to 60 ns in virtual machines).
//!
//! The scheduler has just read a clock of its own, which counts the same nanoseconds from another
//! begin. So the difference between the two is measured once a millisecond, on each CPU, and added.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::map, maps::PerCpuArray};
use jvmprof_common::switch_clock::SwitchClock;

use crate::task::TypedTask;

#[map]
static SWITCH_CLOCKS: PerCpuArray<SwitchClock> = PerCpuArray::with_max_entries(1, 0);

/// Returns the time of this CPU's switch, `CLOCK_MONOTONIC` in ns. `previous`: the thread that is
/// switched away.
#[inline(always)]
pub fn now(previous: TypedTask) -> u64 {
    // SAFETY: helper without arguments.
    let monotonic_ns = || unsafe { bpf_ktime_get_ns() };
    match (previous.cpu_clock(), SWITCH_CLOCKS.get_ptr_mut(0)) {
        // SAFETY: it is this CPU's, where one switch follows the other.
        (Some(cpu_ns), Some(clock)) => unsafe { &mut *clock }.monotonic_ns(cpu_ns, monotonic_ns),
        _ => monotonic_ns(),
    }
}
