//! Where the return barrier is about to bring frames of a virtual thread back to a stack: see [`super::frozen`].
//!
//! It makes room on the stack, and calls the JVM to copy frames there. Where that room ends is the continuation's entry; how large it
//! is says what has been taken off the chunk since.

use super::frozen::{ENTRY_ALIGNMENT, Frozen, METADATA_WORDS, NO_CHUNK, NOT_SAID};
use super::references::UNKNOWN;
use super::{Cursor, Target, interpreted};
use crate::abi::Stop;
use crate::jvm::Jvm;
use crate::unwind::call::direct_callee;

/// The room for frames begins this far above the stack pointer at most: the barrier keeps two registers, so that its calls have to
/// align the stack pointer, and take that back (openjdk src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`).
const KEPT_BYTES: u64 = 24;
const ADD_RSP_8: u64 = 0x08c4_8348;
/// The room has words for alignments and metadata beside the frames' (share/runtime/continuationFreezeThaw.cpp, `prepare_thaw_internal`).
pub(super) const ROOM_EXTRA: u64 = 4;
/// Stretches in which the end of the room is looked for: chunks of more than 500 words are brought frame by frame.
const MAX_ROOM_STRETCHES: u32 = 20;
/// Places in a stretch.
const ROOM_STRETCH: u64 = 16;
/// `enterSpecial` from where compiled code enters it to where thawed frames return to: 150 bytes on JDK 25.
const MAX_ENTER_BYTES: u64 = 256;
/// Words by which more may be counted as taken than there were: the room is even, and each interpreted frame may be aligned.
const MAX_ALIGNMENT: u64 = 2;
/// What lies between the last expression of an interpreted frame and its callee's return address, at most: the callee's locals that
/// are no arguments.
const MAX_CALLEE_WORDS: u32 = 16;

/// As [`super::frozen::enter`], where the JVM has been called to bring frames back.
#[inline(always)]
pub(super) fn enter(
    cursor: &Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    frozen: &mut Frozen,
) -> Result<u64, Stop> {
    // A thread that continues comes from its entry, and has kept nothing: its frames aren't called from anywhere yet.
    let is_barrier = target.read_object(cursor.pc).unwrap_or(0) & 0xffff_ffff == ADD_RSP_8;
    let kept = if is_barrier { KEPT_BYTES } else { 0 };
    let begin = (cursor.sp + kept + (ENTRY_ALIGNMENT - 1)) & !(ENTRY_ALIGNMENT - 1);
    let entry = target.end_of_room(begin, jvm);
    if entry == 0 {
        return Err(Stop::Frozen);
    }
    frozen.entry = entry;
    if !is_barrier {
        return Ok(0);
    }
    frozen.room = (entry - begin) / 8;
    // A collector may have been there since.
    match target.youngest_chunk(entry, jvm) {
        0 => Err(Stop::Frozen),
        chunk => Ok(chunk),
    }
}

/// The entry of a continuation with a chunk that the room which begins here ends at; 0 if there is none.
#[inline(always)]
pub fn end_of_room(target: &mut impl Target, jvm: &Jvm, begin: u64) -> u64 {
    let mut from = begin;
    let mut stretch = 0;
    while stretch < MAX_ROOM_STRETCHES {
        let entry = target.end_within(begin, from, jvm);
        if entry != 0 {
            return entry;
        }
        from += ENTRY_ALIGNMENT * ROOM_STRETCH;
        stretch += 1;
    }
    0
}

/// As [`end_of_room`], in the first [`ROOM_STRETCH`] places from here on.
#[inline(always)]
pub fn end_within(target: &mut impl Target, jvm: &Jvm, begin: u64, from: u64) -> u64 {
    let mut entry = from;
    let mut turn = 0;
    while turn < ROOM_STRETCH {
        if target.may_end_room(begin, entry, jvm) {
            let chunk = target.youngest_chunk(entry, jvm);
            if chunk != 0 && chunk != UNKNOWN {
                return entry;
            }
        }
        entry += ENTRY_ALIGNMENT;
        turn += 1;
    }
    0
}

/// Whether the room that begins here may end at an entry. What is in the room is of any age, and may look like one; its frames have
/// references to continuations, too.
#[inline(always)]
pub fn may_end_room(target: &mut impl Target, jvm: &Jvm, begin: u64, entry: u64) -> bool {
    let from = target.read_u64(entry + u64::from(jvm.layout.cont_entry_bytes) + 8).unwrap_or(0);
    if from < jvm.code_start || from >= jvm.code_end {
        return false;
    }
    // Behind a call of `enterSpecial`: the interpreter's, or directly to a little before where frames return to in it.
    let is_interpreter = from > jvm.interpreter_start && from <= jvm.interpreter_end;
    let callee = direct_callee(target.read_object(from - 8).unwrap_or(0), from);
    if !is_interpreter && jvm.cont_entry_return_pc.wrapping_sub(callee) >= MAX_ENTER_BYTES {
        return false;
    }
    // The barrier has kept a register at both ends. In its place the lowest frame will have its return address: the barrier, or
    // behind the call by which `enterSpecial` has brought it back, or has called it.
    let kept = target.read_u64(begin - 8).unwrap_or(0);
    let last = target.read_u64(entry - 8).unwrap_or(0);
    let is_barrier = last >= jvm.return_barrier_start && last < jvm.return_barrier_end;
    let ahead = jvm.cont_entry_return_pc.wrapping_sub(last).wrapping_add(MAX_ENTER_BYTES);
    last == kept || is_barrier || ahead < 2 * MAX_ENTER_BYTES || counts_fit(target, jvm, begin, entry)
}

/// Whether the room is as large as the frames of this entry's chunk take, of which the youngest may have been copied: an interpreted
/// one, whose locals lie above its return address.
#[inline(always)]
fn counts_fit(target: &mut impl Target, jvm: &Jvm, begin: u64, entry: u64) -> bool {
    let chunk = target.youngest_chunk(entry, jvm);
    let bounds = if chunk == 0 || chunk == UNKNOWN { NO_CHUNK } else { target.chunk_bounds(chunk, jvm) };
    if bounds == NO_CHUNK {
        return false;
    }
    let sp = bounds >> 32;
    let stack = chunk + u64::from(jvm.chunks.stack);
    let left = target.left_to_thaw(chunk, jvm);
    let taken = ((entry - begin) / 8).wrapping_sub(ROOM_EXTRA).wrapping_sub(left);
    if left == NOT_SAID {
        return false;
    }
    taken < 2 || taken & !1 <= sp && target.find_taken(stack + sp * 8, taken, stack, jvm) != 0
}

/// The stack pointer of the interpreted frame that alone was taken off a chunk, whose frames begin at `own` since; 0 if it isn't such
/// a frame. Its frame pointer is at `own` less [`METADATA_WORDS`]. `taken`: words, by the counts of the chunk and of the room.
#[inline(always)]
pub fn find_taken(target: &mut impl Target, jvm: &Jvm, own: u64, taken: u64, stack: u64) -> u64 {
    // Above its link and its return address its caller's frame begins, for those who walk a chunk.
    let fp = own - 8 * u64::from(METADATA_WORDS);
    let Some(sender_sp) = target.read_u64(fp - 8 * interpreted::SENDER_SP_SLOT) else { return 0 };
    let Some(last_sp) = target.read_u64(fp - 8 * interpreted::LAST_SP_SLOT) else { return 0 };
    // Each is a distance from the frame pointer: between them is what is counted.
    if taken.wrapping_sub(sender_sp.wrapping_sub(last_sp)) > MAX_ALIGNMENT {
        return 0;
    }
    let mut sp = fp.wrapping_add(last_sp.wrapping_mul(8));
    let mut turn = 0;
    while turn < MAX_CALLEE_WORDS && sp >= stack + 16 && sp < fp {
        let (Some(link), Some(pc)) = (target.read_u64(sp - 16), target.read_u64(sp - 8)) else { return 0 };
        let is_interpreted = pc > jvm.interpreter_start && pc <= jvm.interpreter_end;
        if is_interpreted && (sp - 16).wrapping_add(link.wrapping_mul(8)) == fp {
            return sp;
        }
        sp -= 8;
        turn += 1;
    }
    0
}
