//! Walking where the return barrier has called the JVM to thaw frames of a virtual thread: to copy
//! them from a chunk to the stack.
//!
//! It allocates stack for them. That memory ends at the continuation's entry; how large it is shows
//! what has been thawed since.

use super::super::{Cursor, HotspotTarget, interpreted_frames};
use super::load_barriers::UNRESOLVED;
use super::stack_chunk::{ChunkBounds, ENTRY_ALIGNMENT, FrozenWalk, METADATA_BYTES, NOT_COUNTED, first_word};
use super::yielding;
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::jvm::Jvm;
use crate::unwind::call_instruction::direct_callee;

/// Distance of the allocated memory from the stack pointer, at most: the barrier keeps two
/// registers, so that its calls have to align the stack pointer, and take that back (openjdk
/// src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`).
const KEPT_BYTES: u64 = 24;
/// Words that are allocated for alignments and metadata beside the frames'
/// (share/runtime/continuationFreezeThaw.cpp, `prepare_thaw_internal`).
pub(super) const EXTRA_WORDS: u64 = 4;
/// Rounds of the search for the entry: chunks of more than 500 words are thawed frame by frame.
const MAX_ROUNDS: u32 = 20;
/// Positions in a round.
const ROUND_STEPS: u64 = 16;
/// `enterSpecial` from where compiled code enters it to where thawed frames return to: 150 bytes on
/// JDK 25.
const MAX_ENTER_BYTES: u64 = 256;
/// Words by which more may be counted as thawed than there were: what is allocated is even, and
/// each interpreted frame may be aligned.
const MAX_ALIGNMENT: u64 = 2;
/// Words between the last expression of an interpreted frame and its callee's return address, at
/// most: the callee's locals that are no arguments.
const MAX_CALLEE_WORDS: u32 = 16;

/// As [`super::frozen_frames::enter`], where the JVM has been called to thaw frames.
#[inline(always)]
pub(super) fn enter(
    cursor: &Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
) -> Result<Avma, Stop> {
    // A thread that continues comes from its entry, and has kept nothing: its frames aren't called
    // from anywhere yet.
    let (stub, ..) = jvm.thaw_stub(cursor.pc).ok_or(Stop::Frozen)?;
    let is_barrier = stub != 0;
    let kept = if is_barrier { KEPT_BYTES } else { 0 };
    let begin = (cursor.sp + kept + (ENTRY_ALIGNMENT - 1)).aligned_down(ENTRY_ALIGNMENT);
    let entry = target.find_continuation_entry(jvm, begin);
    if entry == StackAddress(0) {
        return Err(Stop::Frozen);
    }
    walk.entry = entry;
    if !is_barrier {
        return Ok(Avma(0));
    }
    walk.thaw_words = (entry - begin) / 8;
    // A collector may have been there since.
    match target.youngest_chunk(jvm, entry) {
        Avma(0) => Err(Stop::Frozen),
        chunk => Ok(chunk),
    }
}

/// As [`enter`], where the JVM has frozen all frames of a thread that waits for a monitor, and is
/// to return to the stub that leaves the continuation (openjdk
/// src/hotspot/share/runtime/continuationFreezeThaw.cpp, `patch_return_pc_with_preempt_stub`). They
/// are still on the stack, too, but for the return address that it has replaced; how long they are
/// isn't known.
#[inline(always)]
pub(super) fn enter_preempted(
    cursor: &Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
) -> Result<Avma, Stop> {
    let begin = (cursor.sp + (ENTRY_ALIGNMENT - 1)).aligned_down(ENTRY_ALIGNMENT);
    let entry = target.find_continuation_entry(jvm, begin);
    if entry == StackAddress(0) {
        return Err(Stop::Frozen);
    }
    walk.entry = entry;
    // A collector may have been there since.
    match target.youngest_chunk(jvm, entry) {
        Avma(0) => Err(Stop::Frozen),
        chunk => Ok(chunk),
    }
}

/// Returns the entry of a continuation with a chunk, where the memory ends that begins here; 0 if
/// there is none.
#[inline(always)]
pub fn find_continuation_entry(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    begin: StackAddress,
) -> StackAddress {
    let mut from = begin;
    let mut round = 0;
    while round < MAX_ROUNDS {
        let entry = target.find_entry_nearby(jvm, begin, from);
        if entry != StackAddress(0) {
            return entry;
        }
        from += ENTRY_ALIGNMENT * ROUND_STEPS;
        round += 1;
    }
    StackAddress(0)
}

/// As [`find_continuation_entry`], in the first [`ROUND_STEPS`] positions from `from` on.
#[inline(always)]
pub fn find_entry_nearby(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    begin: StackAddress,
    from: StackAddress,
) -> StackAddress {
    let mut entry = from;
    let mut turn = 0;
    while turn < ROUND_STEPS {
        if target.may_end_at_entry(jvm, begin, entry) {
            let chunk = target.youngest_chunk(jvm, entry);
            if chunk != Avma(0) && chunk != UNRESOLVED {
                return entry;
            }
        }
        entry += ENTRY_ALIGNMENT;
        turn += 1;
    }
    StackAddress(0)
}

/// Returns true if the memory that begins here may end at an entry. What is in it is of any age,
/// and may look like one; its frames have references to continuations, too.
#[inline(always)]
pub fn may_end_at_entry(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    begin: StackAddress,
    entry: StackAddress,
) -> bool {
    let from = Avma(target.read_u64(entry + u64::from(jvm.layout.cont_entry_bytes) + 8).unwrap_or(0));
    if !jvm.in_code_cache(from) {
        return false;
    }
    // Behind a call of `enterSpecial`: the interpreter's, or directly to a little before where
    // frames return to in it.
    let is_interpreter = jvm.returns_to_interpreter(from);
    let callee = direct_callee(target.read_object(from - 8).unwrap_or(0), from);
    if !is_interpreter && jvm.cont_entry_return_pc.wrapping_sub(callee.0) >= MAX_ENTER_BYTES {
        return false;
    }
    // The barrier has kept a register at both ends. There the lowest frame will have its
    // return address: the barrier, or after the call by which `enterSpecial` has thawed it,
    // or has called it.
    let kept = target.read_u64(begin - 8).unwrap_or(0);
    let last = target.read_u64(entry - 8).unwrap_or(0);
    let is_barrier = last >= jvm.return_barrier_start && last < jvm.return_barrier_end;
    let ahead = jvm.cont_entry_return_pc.wrapping_sub(last).wrapping_add(MAX_ENTER_BYTES);
    last == kept || is_barrier || ahead < 2 * MAX_ENTER_BYTES || counts_fit(target, jvm, begin, entry)
}

/// Returns true if the memory is as large as the frames of this entry's chunk take, of which the
/// youngest may have been copied: an interpreted one, whose locals lie above its return address.
#[inline(always)]
fn counts_fit(target: &mut impl HotspotTarget, jvm: &Jvm, begin: StackAddress, entry: StackAddress) -> bool {
    let chunk = target.youngest_chunk(jvm, entry);
    let is_none = chunk == Avma(0) || chunk == UNRESOLVED;
    let bounds = if is_none { ChunkBounds::NONE } else { target.chunk_bounds(jvm, chunk) };
    if bounds == ChunkBounds::NONE {
        return false;
    }
    let sp = bounds.begin();
    let stack = first_word(jvm, chunk);
    let left = target.words_to_thaw(jvm, chunk);
    let thawed = ((entry - begin) / 8).wrapping_sub(EXTRA_WORDS).wrapping_sub(left);
    if left == NOT_COUNTED {
        return false;
    }
    let own = stack + sp * 8;
    thawed < 2
        || thawed & !1 <= sp
            && (is_copied(target, jvm, own, thawed & !1, entry)
                || target.find_thawed_frame(jvm, own, thawed, stack) != StackAddress(0))
}

/// Returns true if exactly so many words before a chunk's own frames were frozen by `doYield`, and
/// the last return address below this entry is theirs, which the JVM is about to replace there.
#[inline(always)]
fn is_copied(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    own: StackAddress,
    words: u64,
    entry: StackAddress,
) -> bool {
    let kept = target.read_u64(own - words * 8 - 8).unwrap_or(0);
    let last = target.read_u64(entry - 8).unwrap_or(0);
    target.read_u64(own - 8) == Some(last)
        && jvm.in_code_cache(Avma(kept))
        && yielding::is_call(target, Avma(kept))
}

/// Returns the stack pointer of the interpreted frame that alone was thawed off a chunk, whose
/// frames begin at `own` since; 0 if it isn't such a frame. Its frame pointer is at `own` less
/// [`METADATA_BYTES`]. `thawed`: words, by the counts of the chunk and of what was allocated.
/// `stack`: the chunk's first word.
#[inline(always)]
pub fn find_thawed_frame(
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    own: StackAddress,
    thawed: u64,
    stack: StackAddress,
) -> StackAddress {
    const NONE: StackAddress = StackAddress(0);
    // Above its link and its return address its caller's frame begins, for those who walk a chunk.
    let fp = own - METADATA_BYTES;
    let Some(sender_sp) = target.read_u64(fp - 8 * interpreted_frames::SENDER_SP_SLOT) else { return NONE };
    let Some(last_sp) = target.read_u64(fp - 8 * interpreted_frames::LAST_SP_SLOT) else { return NONE };
    // Each is a distance from the frame pointer: between them is what is counted.
    if thawed.wrapping_sub(sender_sp.wrapping_sub(last_sp)) > MAX_ALIGNMENT {
        return NONE;
    }
    let mut sp = fp.wrapping_add(last_sp.wrapping_mul(8));
    let mut turn = 0;
    while turn < MAX_CALLEE_WORDS && sp >= stack + METADATA_BYTES && sp < fp {
        let (Some(link), Some(pc)) = (target.read_u64(sp - 16), target.read_u64(sp - 8)) else { return NONE };
        if jvm.returns_to_interpreter(Avma(pc)) && (sp - 16).wrapping_add(link.wrapping_mul(8)) == fp {
            return sp;
        }
        sp -= 8;
        turn += 1;
    }
    NONE
}
