//! Adding to a word of a map that programs on other CPUs add to, too.
//!
//! The target has no compare-and-swap before version 3 of the instruction set, and so the standard
//! library has no `fetch_add` for it; but it has this instruction (Linux
//! Documentation/bpf/standardization/instruction-set.rst, `BPF_ATOMIC`, without `BPF_FETCH`).

use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// Adds to the word.
///
/// # Safety
/// The pointer is valid and aligned.
#[inline(always)]
pub unsafe fn add(word: *mut u64, value: u64) {
    // What it was isn't used: that the instruction doesn't give.
    // SAFETY: as the caller says.
    let _ = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}
