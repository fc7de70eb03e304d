//! The time of a switch of the scheduler, mostly without reading the hardware's clock, which takes
//! 20 to 60 ns in virtual machines: as long as all else that a switch costs.
//!
//! Where a thread blocks, the scheduler has just read a clock of its own. Where one is preempted or
//! yields, and where the CPU was idle, it may have left that out (`rq_clock_skip_update`,
//! kernel/sched): there the clock is read.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::map, maps::PerCpuArray};
use jvmprof_common::switch_clock::SwitchClock;

use crate::{globals, task::TypedTask};

#[map]
static SWITCH_CLOCKS: PerCpuArray<SwitchClock> = PerCpuArray::with_max_entries(1, 0);

/// Returns the time of this CPU's switch, `CLOCK_MONOTONIC` in ns. `blocked`: the thread that is
/// switched away, if it blocks.
#[inline(always)]
pub fn now(blocked: Option<TypedTask>) -> u64 {
    // SAFETY: helper without arguments.
    let monotonic_ns = || unsafe { bpf_ktime_get_ns() };
    if globals::switch_clock() == 0 {
        return monotonic_ns();
    }
    match (blocked, SWITCH_CLOCKS.get_ptr_mut(0)) {
        (Some(thread), Some(clock)) => {
            // SAFETY: it is this CPU's, where one switch follows the other.
            unsafe { &mut *clock }.monotonic_ns(thread.last_cpu_clock(), monotonic_ns)
        }
        _ => monotonic_ns(),
    }
}
