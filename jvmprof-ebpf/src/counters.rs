//! Per-CPU counters: what was taken and what was lost, by event and name.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use jvmprof_common::abi::{Counter, CpuCounters, Event, Stop};

use crate::atomic;

/// Counters of all events.
const COUNTS: usize = Counter::LEN as usize * Event::ALL.len();

#[map]
static COUNTERS: PerCpuArray<CpuCounters> = PerCpuArray::with_max_entries(1, 0);

#[inline(always)]
pub fn count(event: Event, counter: Counter) {
    add_one(event.first_counter() + counter as u32);
}

/// Counts how the walk of a user stack ended.
#[inline(always)]
pub fn count_stop(event: Event, stop: u8) {
    if (stop as usize) < Stop::ALL.len() {
        add_one(event.first_counter() + Counter::StopBase as u32 + stop as u32);
    }
}

#[inline(never)]
fn add_one(index: u32) {
    let index = index as usize;
    if index < COUNTS
        && let Some(counters) = COUNTERS.get_ptr_mut(0)
    {
        // SAFETY: the map lends a valid pointer to this CPU's own value.
        let counter = unsafe { &raw mut (*counters)[index] };
        if index < Counter::LEN as usize {
            // SAFETY: a program of the clock's isn't interrupted by another run of itself on its
            // CPU, and the fork program adds to an index of its own.
            unsafe { *counter += 1 };
        } else {
            // An uprobe's program may be preempted by another thread's.
            // SAFETY: the pointer is valid and aligned.
            unsafe { atomic::add(counter, 1) };
        }
    }
}
