//! The stacks of Go's runtime, for samples that the daemon walks: it has to see what a goroutine was as of the sample.
//!
//! Layouts: go src/runtime/runtime2.go (`g`, `m`, `gobuf`). What isn't Go's has no two structures that refer to each other at
//! these places.

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_user};
use jvmprof_common::{
    abi::FAR_WORDS,
    rows::{GO_G_M, GO_G_SCHED},
};

use crate::{
    emit::copy_stretches,
    scratch::{self, Stretch},
    task::Task,
};

/// Where the thread's own memory has `g`, in all programs but those whose C code has such memory, too.
const TLS: u64 = 8;

/// `g.stack.hi`: the end of its stack, of the system stack at least as Go found it.
const G_STACK_END: u64 = 8;

/// What lies above that end: the first frames of a program.
const ABOVE_END: u64 = 1024;

/// `m.g0`: what runs on its system stack.
const M_SYSTEM: u64 = 0;

/// `m.curg`: Go 1.26, and before it.
const M_CURRENT: [u64; 2] = [184, 192];

/// A goroutine's registers, in words.
const SCHED_WORDS: u64 = 8;

/// The `g` of a thread of Go's runtime, or zero.
#[inline(always)]
fn of_thread(thread: u64) -> u64 {
    let g = word(thread.wrapping_sub(TLS));
    let m = word(g.wrapping_add(GO_G_M));
    let is_gos = m != 0 && (word(m + M_SYSTEM) == g || M_CURRENT.iter().any(|at| word(m + at) == g));
    if is_gos { g } else { 0 }
}

/// Where the stack ends that this thread of Go's runtime is on; zero for other threads, and for stacks of signals.
#[inline(always)]
pub fn stack_end(thread: u64) -> u64 {
    match of_thread(thread) {
        0 => 0,
        g => word(g + G_STACK_END).wrapping_add(ABOVE_END),
    }
}

/// Finds the goroutine that this thread has left for its system stack: what of it is to be copied, and of how it is found (that
/// there is none, too). How many stretches these are. A global function: the verifier checks it once, and its stack is free again
/// when they are copied.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_left() -> u64 {
    let Some(scratch) = scratch::get() else {
        return 0;
    };
    // SAFETY: the helper has no preconditions.
    let current = Task(unsafe { bpf_get_current_task() });
    let thread = current.thread_pointer().unwrap_or(0);
    let g = of_thread(thread);
    let m = word(g.wrapping_add(GO_G_M));
    if g == 0 || word(m + M_SYSTEM) != g {
        return 0;
    }
    scratch.header.thread_pointer = thread;
    let stretches = &mut scratch.stretches;
    stretches[0] = Stretch { start: thread - TLS, bytes: 8 };
    stretches[1] = Stretch { start: g + GO_G_M, bytes: 8 };
    stretches[2] = Stretch { start: m + M_CURRENT[0], bytes: M_CURRENT[1] - M_CURRENT[0] + 8 };
    for at in M_CURRENT {
        let left = word(m + at);
        if left != 0 && word(left.wrapping_add(GO_G_M)) == m {
            let registers = left + GO_G_SCHED;
            let sp = word(registers);
            let rest = word(left + G_STACK_END).wrapping_sub(sp);
            let most = (FAR_WORDS * 8) as u64;
            stretches[3] = Stretch { start: registers, bytes: SCHED_WORDS * 8 };
            stretches[4] = Stretch { start: sp, bytes: if rest < most { rest & !7 } else { most } };
            return 5;
        }
    }
    3
}

/// Copies the goroutine that this thread has left.
#[inline(always)]
pub fn copy_left() {
    let count = find_left();
    if count != 0 {
        copy_stretches(count);
    }
}

#[inline(always)]
fn word(address: u64) -> u64 {
    // SAFETY: the helper reads any user address without faulting and reports failure.
    unsafe { bpf_probe_read_user(address as *const u64) }.unwrap_or(0)
}
