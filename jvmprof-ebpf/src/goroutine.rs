//! The stacks of Go's runtime, for samples that the daemon walks: it has to see what a goroutine
//! was as of the sample.
//!
//! Layouts: go src/runtime/runtime2.go (`g`, `m`, `gobuf`). What isn't Go's has no two structures
//! that refer to each other at these places.

use aya_ebpf::helpers::bpf_get_current_task;
use jvmprof_common::{
    abi::FAR_WORDS,
    address::Avma,
    rows::{GO_G_M, GO_G_SCHED},
};

use crate::{
    memory_copy::append_ranges,
    scratch::{self, MemoryRange, ScratchSlot},
    task::Task,
    user_memory::read_word,
};

/// Distance of `g` from the end of the thread's own memory, in all programs but those whose C code
/// has such memory, too.
const TLS: u64 = 8;

/// `g.stack.hi`: the end of its stack, of the system stack at least as Go found it.
const G_STACK_END: u64 = 8;

/// Bytes above that end: the first frames of a program.
const ABOVE_END: u64 = 1024;

/// `m.g0`: what runs on its system stack.
const M_SYSTEM: u64 = 0;

/// `m.curg`: Go 1.26, and before it.
const M_CURRENT: [u64; 2] = [184, 192];

/// A goroutine's registers, in words.
const SCHED_WORDS: u64 = 8;

/// Returns the `g` of a thread of Go's runtime, or zero.
#[inline(always)]
fn of_thread(thread: Avma) -> Avma {
    let g = Avma(word(thread.wrapping_sub(TLS)));
    let m = Avma(word(g.wrapping_add(GO_G_M)));
    let is_gos =
        m != Avma(0) && (word(m + M_SYSTEM) == g.0 || M_CURRENT.iter().any(|at| word(m + *at) == g.0));
    if is_gos { g } else { Avma(0) }
}

/// Returns the end of the stack that this thread of Go's runtime is on; zero for other threads, and
/// for stacks of signals.
#[inline(always)]
pub fn stack_end(thread: Avma) -> u64 {
    match of_thread(thread) {
        Avma(0) => 0,
        g => word(g + G_STACK_END).wrapping_add(ABOVE_END),
    }
}

/// Writes to [`Scratch::ranges`](crate::scratch::Scratch::ranges) what is to be copied of the
/// goroutine that this thread has left for its system stack, and of how it is found (that there is
/// none, too), and to the header the thread pointer; returns how many ranges these are. A global
/// function: the verifier checks it once, and its stack is free again when they are copied.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_parked(slot: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return 0;
    };
    // SAFETY: the helper has no preconditions.
    let current = Task(unsafe { bpf_get_current_task() });
    let thread = current.thread_pointer().unwrap_or(Avma(0));
    let g = of_thread(thread);
    let m = Avma(word(g.wrapping_add(GO_G_M)));
    if g == Avma(0) || word(m + M_SYSTEM) != g.0 {
        return 0;
    }
    scratch.header.thread_pointer = thread.0;
    let ranges = &mut scratch.ranges;
    ranges[0] = MemoryRange { start: thread - TLS, bytes: 8 };
    ranges[1] = MemoryRange { start: g + GO_G_M, bytes: 8 };
    ranges[2] = MemoryRange { start: m + M_CURRENT[0], bytes: M_CURRENT[1] - M_CURRENT[0] + 8 };
    for at in M_CURRENT {
        let left = Avma(word(m + at));
        if left != Avma(0) && word(left.wrapping_add(GO_G_M)) == m.0 {
            let registers = left + GO_G_SCHED;
            let sp = word(registers);
            let rest = word(left + G_STACK_END).wrapping_sub(sp);
            let most = (FAR_WORDS * 8) as u64;
            ranges[3] = MemoryRange { start: registers, bytes: SCHED_WORDS * 8 };
            ranges[4] = MemoryRange { start: Avma(sp), bytes: if rest < most { rest & !7 } else { most } };
            return 5;
        }
    }
    3
}

/// Appends the goroutine that this thread has left to the sample.
#[inline(always)]
pub fn append_parked(slot: ScratchSlot) {
    let count = find_parked(slot.to_argument());
    if count != 0 {
        append_ranges(slot.to_argument(), count);
    }
}

#[inline(always)]
fn word(address: Avma) -> u64 {
    read_word(address).unwrap_or(0)
}
