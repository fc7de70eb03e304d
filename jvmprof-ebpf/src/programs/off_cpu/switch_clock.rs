//! The time of a switch of the scheduler, mostly without reading the hardware's clock, which takes
//! 20 to 60 ns in virtual machines: as long as all else that a switch costs.
//!
//! Where a thread blocks, the scheduler has just read a clock of its own. It leaves that out after
//! a wake-up that is to preempt the thread (`rq_clock_skip_update`, kernel/sched): most such
//! threads are preempted, and some block before. So the clock is read where a thread is preempted
//! or yields, where the CPU was idle, and where the scheduler's is still that of the wake-up. What
//! is left is the time from such a wake-up to a block with a tick of the clock in between.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use jvmprof_common::off_cpu::switch_clock::SwitchClock;

use crate::{globals, task::TypedTask};

/// Returns the time of this CPU's switch, `CLOCK_MONOTONIC` in ns. `clock`: this CPU's; `blocked`:
/// the thread that is switched away, if it blocks; `next`: the one that comes.
#[inline(always)]
pub fn now(clock: &mut SwitchClock, blocked: Option<TypedTask>, next: TypedTask) -> u64 {
    // SAFETY: helper without arguments.
    let monotonic_ns = || unsafe { bpf_ktime_get_ns() };
    let Some(blocked) = blocked.filter(|_| globals::switch_clock() != 0) else {
        return monotonic_ns();
    };
    let cpu_ns = blocked.last_cpu_clock();
    if next.last_queued() == cpu_ns {
        return monotonic_ns();
    }
    clock.monotonic_ns(cpu_ns, monotonic_ns)
}
