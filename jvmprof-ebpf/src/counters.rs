//! Per-CPU counters: what was taken and what was lost, by name.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use jvmprof_common::abi::{Counter, Stop};

#[map]
static COUNTERS: PerCpuArray<[u64; Counter::LEN as usize]> = PerCpuArray::with_max_entries(1, 0);

pub fn count(counter: Counter) {
    add_one(counter as u32);
}

/// Counts how the walk of a user stack ended.
pub fn count_stop(stop: u8) {
    if (stop as usize) < Stop::ALL.len() {
        add_one(Counter::StopBase as u32 + stop as u32);
    }
}

fn add_one(index: u32) {
    let index = index as usize;
    if index < Counter::LEN as usize
        && let Some(counters) = COUNTERS.get_ptr_mut(0)
    {
        // SAFETY: the map lends a valid pointer to this CPU's own value; a perf event program isn't
        // interrupted by another run of itself on its CPU, and the fork program adds to an index of
        // its own.
        unsafe { (*counters)[index] += 1 }
    }
}
