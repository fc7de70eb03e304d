//! Frames of a virtual thread that lie in the Java heap.
//!
//! When a virtual thread continues, only its youngest frames are copied back to the carrier's stack. The lowest of them returns
//! to the return barrier, which brings the next ones; those lie in a list of `StackChunk` objects (openjdk
//! src/hotspot/share/runtime/continuationFreezeThaw.cpp, share/oops/stackChunkOop.inline.hpp). In a chunk they look as on a
//! stack, except that what points to an interpreted frame, or from it, is a distance in words from where it stands
//! (share/runtime/stackChunkFrameStream.inline.hpp).
//!
//! The thread that is walked is the one that was interrupted, so nobody else changes its chunks, but for a collector, which may
//! move them meanwhile ([`super::references`]). It changes neither return addresses nor what identifies methods.
//!
//! The return barrier itself makes room on the stack for what it is about to bring, and calls the JVM to copy it. The room is for as
//! many words as the chunk had to bring then, and the chunk says how many it still has: the difference is what has been taken off it
//! since. That stays in the chunk all the same, only its index has moved on.

use super::references::{self, UNKNOWN};
use super::{Code, Cursor, Target, Words, barrier, compiled, frame_bytes, interpreted, pointer, thawing};
use crate::abi::Stop;
use crate::frame::FrameWord;
use crate::jvm::{Jvm, NO_FIELD};
use crate::unwind::call::ends_in_call;
use crate::unwind::is_code_address;

/// `ContinuationEntry` lies this far behind the frames on the stack at most, in steps of its alignment: the arguments of the
/// lowest frame may be between them.
const MAX_ENTRY_STEPS: u32 = 16;
pub(super) const ENTRY_ALIGNMENT: u64 = 16;
/// The same where the barrier itself was interrupted before it made room: what it keeps meanwhile.
const INTERRUPTED_STEPS: u32 = 3;
/// `ContinuationEntry::_cont` (openjdk src/hotspot/share/runtime/continuationEntry.hpp): its second field, the third since JDK 25.
/// Which of them it is shows in what it leads to, a continuation with a chunk.
const ENTRY_CONT: [u64; 2] = [8, 16];
/// Empty chunks in a row, at most: one is kept to be filled again.
const MAX_EMPTY: u32 = 4;
/// Words of a chunk, at most.
const MAX_WORDS: u32 = 1 << 27;
/// Return address and saved frame pointer of a callee.
pub(super) const METADATA_WORDS: u32 = 2;

/// The chunk that is walked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// The carrier's `ContinuationEntry`; 0 while frames on a stack are walked.
    pub entry: u64,
    pub chunk: u64,
    /// Where its frames end.
    pub end: u64,
    /// 1 until a frozen frame has been found: what is on the stack is the return barrier still.
    pub at_barrier: u64,
    /// Words of the room on the stack while the JVM brings frames there; else 0.
    pub room: u64,
    /// Where the chunk says that its frames begin, while those before it are walked, which were taken off; else 0. They are compiled,
    /// and end there.
    pub taken_until: u64,
}

/// Goes behind the return barrier, which the cursor's frame is: to the youngest chunk, for [`arrive`]; 0 if the frame is of the
/// stub by which a virtual thread continues.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be, [`Stop::FrozenMoving`].
#[inline(always)]
pub fn enter(cursor: &Cursor, target: &mut impl Target, jvm: &Jvm, frozen: &mut Frozen) -> Result<u64, Stop> {
    let bytes = jvm.layout.cont_entry_bytes;
    if jvm.chunks.klass == 0 || bytes == NO_FIELD || bytes == 0 {
        return Err(Stop::Frozen);
    }
    frozen.room = 0;
    frozen.taken_until = 0;
    // What the barrier itself has called is at work on the chunks.
    let before = target.read_object(cursor.pc - 8).unwrap_or(0);
    if !cursor.exact && ends_in_call(before) {
        return thawing::enter(cursor, target, jvm, frozen);
    }
    let continues = cursor.exact && barrier::is_behind_pop(target, cursor.pc);
    if cursor.exact && !continues && !barrier::is_before_room(target, cursor.pc) {
        return Err(Stop::Frozen);
    }
    let mut entry = (cursor.sp + (ENTRY_ALIGNMENT - 1)) & !(ENTRY_ALIGNMENT - 1);
    let mut turn = if cursor.exact { MAX_ENTRY_STEPS - INTERRUPTED_STEPS } else { 0 };
    while turn < MAX_ENTRY_STEPS {
        let return_address = target.read_u64(entry + u64::from(bytes) + 8).ok_or(Stop::Frozen)?;
        if return_address >= jvm.code_start && return_address < jvm.code_end {
            let chunk = target.youngest_chunk(entry, jvm);
            if chunk == UNKNOWN {
                return Err(Stop::FrozenMoving);
            }
            if chunk != 0 {
                frozen.entry = entry;
                return Ok(if continues { 0 } else { chunk });
            }
        }
        entry += ENTRY_ALIGNMENT;
        turn += 1;
    }
    Err(Stop::Frozen)
}

/// The youngest chunk of the continuation whose `ContinuationEntry` may be here; 0 if it isn't, or has none; [`UNKNOWN`].
#[inline(always)]
pub fn youngest_chunk(target: &mut impl Target, jvm: &Jvm, entry: u64) -> u64 {
    let chunk = tail(target, jvm, entry + ENTRY_CONT[0]);
    if chunk == 0 { tail(target, jvm, entry + ENTRY_CONT[1]) } else { chunk }
}

/// The youngest chunk of the continuation that a slot refers to; 0 if it refers to none; [`UNKNOWN`].
#[inline(always)]
fn tail(target: &mut impl Target, jvm: &Jvm, slot: u64) -> u64 {
    let continuation = target.follow(slot, true, jvm);
    // The entry refers to a chunk, too, whose field at this place would be another.
    if continuation == 0 || continuation == UNKNOWN || is_chunk(target, jvm, continuation) {
        return continuation & UNKNOWN;
    }
    let chunk = target.follow(continuation.wrapping_add(u64::from(jvm.chunks.cont_tail)), false, jvm);
    if chunk == UNKNOWN || references::may_have_moved(target, jvm, continuation) {
        return UNKNOWN;
    }
    if is_chunk(target, jvm, chunk) { chunk } else { 0 }
}

/// Goes to the first frame of this chunk or, if it has none, of those behind it; behind the last one to the carrier's stack.
/// Where it isn't known yet where the code is that frames return to there, `words` say so and that frame is left, too: true.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be, [`Stop::FrozenMoving`].
#[inline(always)]
pub fn arrive(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    frozen: &mut Frozen,
    first: u64,
    words: &mut Words,
) -> Result<bool, Stop> {
    let chunks = &jvm.chunks;
    let mut chunk = first;
    let mut turn = 0;
    while turn < MAX_EMPTY {
        if chunk == UNKNOWN {
            return Err(Stop::FrozenMoving);
        }
        if chunk == 0 {
            let (entry, fp) = (frozen.entry, frozen.entry + u64::from(jvm.layout.cont_entry_bytes));
            frozen.entry = 0;
            if jvm.cont_entry_return_pc != 0 {
                *cursor = Cursor { pc: jvm.cont_entry_return_pc, sp: entry, fp, exact: false };
                return if is_code_address(cursor.pc) { Ok(false) } else { Err(Stop::Frozen) };
            }
            words.set(FrameWord::ENTER_SPECIAL, 0, 0, 2);
            let pc = target.read_u64(fp + 8).ok_or(Stop::Frozen)?;
            *cursor = Cursor { pc, sp: fp + 16, fp: target.read_u64(fp).ok_or(Stop::Frozen)?, exact: false };
            return if is_code_address(pc) { Ok(true) } else { Err(Stop::Frozen) };
        }
        let bounds = target.chunk_bounds(chunk, jvm);
        if bounds == NO_CHUNK {
            return Err(Stop::Frozen);
        }
        let (mut sp, bottom) = (bounds >> 32, bounds & 0xffff_ffff);
        let stack = chunk + u64::from(chunks.stack);
        let room = frozen.room;
        frozen.room = 0;
        if room != 0 {
            let left = match target.left_to_thaw(chunk, jvm) {
                NOT_SAID => bottom - sp,
                left => left,
            };
            let taken = room.wrapping_sub(thawing::ROOM_EXTRA).wrapping_sub(left);
            // The room is even. So are the sizes of compiled frames.
            let compiled = taken & !1;
            if compiled > sp {
                return Err(Stop::Frozen);
            }
            if compiled != 0 {
                let own = stack + sp * 8;
                (frozen.chunk, frozen.end) = (chunk, stack + bottom * 8);
                let taken_sp = target.find_taken(own, taken, stack, jvm);
                if taken_sp != 0 {
                    let pc = target.read_u64(taken_sp - 8).ok_or(Stop::Frozen)?;
                    let fp = own - 8 * u64::from(METADATA_WORDS);
                    *cursor = Cursor { pc, sp: taken_sp, fp, exact: false };
                    return Ok(false);
                }
                frozen.taken_until = own;
                sp -= compiled;
            }
        }
        if sp < bottom && sp >= u64::from(METADATA_WORDS) {
            (frozen.chunk, frozen.end) = (chunk, stack + bottom * 8);
            let sp = stack + sp * 8;
            let pc = target.read_u64(sp - 8).ok_or(Stop::Frozen)?;
            let fp = target.read_u64(sp - 16).ok_or(Stop::Frozen)?;
            at(cursor, jvm, pc, sp, fp, sp - 16)?;
            return Ok(false);
        }
        chunk = parent(target, jvm, chunk);
        turn += 1;
    }
    Err(Stop::Frozen)
}

/// What [`chunk_bounds`] says of what is no chunk.
pub const NO_CHUNK: u64 = u64::MAX;

/// Where the frames of this chunk begin and end, in words from its first one: 32 bits each, the begin in the upper ones.
#[inline(always)]
pub fn chunk_bounds(target: &mut impl Target, jvm: &Jvm, chunk: u64) -> u64 {
    let chunks = &jvm.chunks;
    if !is_chunk(target, jvm, chunk) {
        return NO_CHUNK;
    }
    let (sp, size) = (int(target, chunk, chunks.sp), int(target, chunk, chunks.size));
    let bottom = int(target, chunk, chunks.bottom);
    let bottom = if chunks.bottom_is_argsize == 0 { bottom } else { size.wrapping_sub(bottom) };
    if size > MAX_WORDS || bottom > size || sp > bottom {
        return NO_CHUNK;
    }
    u64::from(sp) << 32 | u64::from(bottom)
}

/// What [`left_to_thaw`] says where a JVM doesn't say where it counts them.
pub const NOT_SAID: u64 = u64::MAX;

/// Words of the room that it would take to bring all frames of this chunk; [`NOT_SAID`].
#[inline(always)]
pub fn left_to_thaw(target: &mut impl Target, jvm: &Jvm, chunk: u64) -> u64 {
    match jvm.chunks.max_thawing {
        0 => NOT_SAID,
        field => u64::from(int(target, chunk, field)),
    }
}

/// Puts the cursor on a frozen frame, whose frame pointer was read from `slot`.
#[inline(always)]
fn at(cursor: &mut Cursor, jvm: &Jvm, pc: u64, sp: u64, fp: u64, slot: u64) -> Result<(), Stop> {
    if pc < jvm.code_start || pc >= jvm.code_end {
        return Err(Stop::Frozen);
    }
    let is_interpreted = pc > jvm.interpreter_start && pc <= jvm.interpreter_end;
    let fp = if is_interpreted { slot.wrapping_add(fp.wrapping_mul(8)) } else { fp };
    *cursor = Cursor { pc, sp, fp, exact: false };
    Ok(())
}

/// Moves the cursor from a frozen frame to its caller, and says what the frame is. True if that was the last one of its chunk,
/// and the cursor is where it was.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be.
#[inline(always)]
pub fn step(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    frozen: &mut Frozen,
    words: &mut Words,
) -> Result<bool, Stop> {
    match Code::from_bits(target.find_code(cursor.pc - 1, jvm)) {
        Ok(Code::Interpreter) if frozen.taken_until != 0 => Err(Stop::Frozen),
        Ok(Code::Interpreter) => step_interpreted(cursor, target, jvm, frozen, words),
        Ok(Code::Nmethod { blob }) => {
            let described = compiled::describe(cursor, target, jvm, blob, words);
            let (bytes, _) = described.map_err(|_| Stop::Frozen)?;
            step_fixed(cursor, target, jvm, frozen, bytes)
        }
        // A safepoint in whose stub the thread was preempted.
        Ok(Code::Stub { .. }) => {
            let name = pointer(target, jvm.layout.blob_name);
            words.set(FrameWord::stub(cursor.pc, false), name, 0, 2);
            let bytes = frame_bytes(target, &jvm.layout);
            if bytes == 0 {
                return Err(Stop::Frozen);
            }
            step_fixed(cursor, target, jvm, frozen, bytes)
        }
        Err(_) => Err(Stop::Frozen),
    }
}

/// The chunk behind the one that is walked; 0 if there is none; [`UNKNOWN`].
#[inline(always)]
pub fn next_chunk(target: &mut impl Target, jvm: &Jvm, frozen: &Frozen) -> u64 {
    parent(target, jvm, frozen.chunk)
}

#[inline(always)]
fn parent(target: &mut impl Target, jvm: &Jvm, chunk: u64) -> u64 {
    target.follow(chunk.wrapping_add(u64::from(jvm.chunks.parent)), false, jvm)
}

/// Leaves a frame of fixed size. True if it was the chunk's last, which returns nowhere.
#[inline(always)]
fn step_fixed(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    frozen: &mut Frozen,
    bytes: u64,
) -> Result<bool, Stop> {
    let sp = cursor.sp + bytes;
    if sp == frozen.taken_until {
        frozen.taken_until = 0;
    }
    if sp + 8 * u64::from(METADATA_WORDS) >= frozen.end {
        return if frozen.taken_until == 0 { Ok(true) } else { Err(Stop::Frozen) };
    }
    if frozen.taken_until != 0 && sp > frozen.taken_until {
        return Err(Stop::Frozen);
    }
    let fp = target.read_u64(sp - 16).ok_or(Stop::Frozen)?;
    let pc = target.read_u64(sp - 8).ok_or(Stop::Frozen)?;
    at(cursor, jvm, pc, sp, fp, sp - 16)?;
    Ok(false)
}

/// Leaves an interpreted frame. True if it was the chunk's last.
#[inline(always)]
fn step_interpreted(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    frozen: &Frozen,
    words: &mut Words,
) -> Result<bool, Stop> {
    let fp = cursor.fp;
    if !fp.is_multiple_of(8) || fp < frozen.chunk || fp >= frozen.end {
        return Err(Stop::Frozen);
    }
    let bcp_slot = u64::from(jvm.layout.interpreter_bcp_slot);
    let bcp = target.read_u64(fp - 8 * bcp_slot).ok_or(Stop::Frozen)?;
    // Above the bytecode pointer: frame_x86.hpp, `interpreter_frame_locals_offset`.
    let locals = target.read_u64(fp - 8 * (bcp_slot - 1)).ok_or(Stop::Frozen)?;
    let method = target.read_u64(fp - 8 * interpreted::METHOD_SLOT).ok_or(Stop::Frozen)?;
    let sender_sp = target.read_u64(fp - 8 * interpreted::SENDER_SP_SLOT).ok_or(Stop::Frozen)?;
    let caller_fp = target.read_u64(fp).ok_or(Stop::Frozen)?;
    let return_address = target.read_u64(fp + 8).ok_or(Stop::Frozen)?;
    let identity = target.identify_method(method, false, jvm);
    interpreted::name(cursor, jvm, method, identity, [bcp; 2], words);
    if fp.wrapping_add(locals.wrapping_mul(8)).wrapping_add(8) >= frozen.end {
        return Ok(true);
    }
    let sp = fp.wrapping_add(sender_sp.wrapping_mul(8));
    if sp < fp || sp >= frozen.end {
        return Err(Stop::Frozen);
    }
    at(cursor, jvm, return_address, sp, caller_fp, fp)?;
    Ok(false)
}

#[inline(always)]
fn is_chunk(target: &mut impl Target, jvm: &Jvm, object: u64) -> bool {
    let chunks = &jvm.chunks;
    let word = target.read_object(object.wrapping_add(u64::from(chunks.klass_at))).unwrap_or(0);
    object != 0 && object.is_multiple_of(8) && word & chunks.klass_mask == chunks.klass
}

#[inline(always)]
fn int(target: &mut impl Target, object: u64, field: u16) -> u32 {
    target.read_object(object + u64::from(field)).map_or(u32::MAX, |value| value as u32)
}
