//! Walking the frames in a thread's chunks, from the return barrier to the carrier's stack.

use super::super::code_blobs::{CodeBlob, frame_bytes, pointer};
use super::super::{Cursor, EncodedFrame, HotspotTarget, compiled, interpreted_frames};
use super::load_barriers::UNRESOLVED;
use super::stack_chunk::{
    ChunkBounds, ENTRY_ALIGNMENT, FrozenWalk, METADATA_BYTES, NOT_COUNTED, first_word, parent,
};
use super::{thaw_stubs, thawing};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::frame::FrameWord;
use crate::jvm::{Jvm, NO_FIELD};
use crate::unwind::call_instruction::ends_in_call;
use crate::unwind::is_code_address;

/// Distance of the `ContinuationEntry` from the frames on the stack, at most, in steps of its
/// alignment: the arguments of the lowest frame may be between them.
const MAX_ENTRY_STEPS: u32 = 16;
/// Empty chunks in a row, at most: one is kept to be filled again.
const MAX_EMPTY: u32 = 4;

/// Begins the walk at the return barrier, which the cursor's frame is, and returns the youngest
/// chunk, for [`enter_chunk`]; 0 if the frame is of the stub by which a virtual thread continues.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be, [`Stop::FrozenMoving`].
#[inline(always)]
pub fn enter(
    cursor: &Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
) -> Result<Avma, Stop> {
    let bytes = jvm.layout.cont_entry_bytes;
    if jvm.chunks.klass == 0 || bytes == NO_FIELD || bytes == 0 {
        return Err(Stop::Frozen);
    }
    walk.thaw_words = 0;
    walk.thawed_until = StackAddress(0);
    walk.copied = 0;
    // What the barrier itself has called is at work on the chunks.
    let before = target.read_object(cursor.pc - 8).unwrap_or(0);
    if !cursor.exact && ends_in_call(before) {
        return thawing::enter(cursor, target, jvm, walk);
    }
    if !cursor.exact && thaw_stubs::is_preempted(cursor.pc, jvm) {
        return thawing::enter_preempted(cursor, target, jvm, walk);
    }
    let place = match cursor.exact {
        true => thaw_stubs::before_thaw(cursor, target, jvm).ok_or(Stop::Frozen)?,
        false => thaw_stubs::BeforeThaw {
            from: (cursor.sp + (ENTRY_ALIGNMENT - 1)).aligned_down(ENTRY_ALIGNMENT),
            steps: MAX_ENTRY_STEPS,
            continues: false,
        },
    };
    let mut entry = place.from;
    let mut turn = MAX_ENTRY_STEPS - place.steps;
    while turn < MAX_ENTRY_STEPS {
        let return_address = target.read_u64(entry + u64::from(bytes) + 8).ok_or(Stop::Frozen)?;
        if jvm.in_code_cache(Avma(return_address)) {
            let chunk = target.youngest_chunk(jvm, entry);
            if chunk == UNRESOLVED {
                return Err(Stop::FrozenMoving);
            }
            if chunk != Avma(0) {
                walk.entry = entry;
                return Ok(if place.continues { Avma(0) } else { chunk });
            }
        }
        entry += ENTRY_ALIGNMENT;
        turn += 1;
    }
    Err(Stop::Frozen)
}

/// Moves the cursor to the first frame of this chunk or, if it has none, of the next ones; after
/// the last one to the carrier's stack. Where it isn't known yet where the code is that frames
/// return to there, `frame` is encoded as that one, and left, too: true.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be, [`Stop::FrozenMoving`].
#[inline(always)]
pub fn enter_chunk(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
    first: Avma,
    frame: &mut EncodedFrame,
) -> Result<bool, Stop> {
    let mut chunk = first;
    let mut turn = 0;
    while turn < MAX_EMPTY {
        if chunk == UNRESOLVED {
            return Err(Stop::FrozenMoving);
        }
        if chunk == Avma(0) {
            let (entry, fp) = (walk.entry, walk.entry + u64::from(jvm.layout.cont_entry_bytes));
            walk.entry = StackAddress(0);
            if jvm.cont_entry_return_pc != 0 {
                *cursor = Cursor { pc: Avma(jvm.cont_entry_return_pc), sp: entry, fp, exact: false };
                return if is_code_address(cursor.pc) { Ok(false) } else { Err(Stop::Frozen) };
            }
            frame.set(FrameWord::ENTER_SPECIAL, 0, 0, 2);
            let pc = Avma(target.read_u64(fp + 8).ok_or(Stop::Frozen)?);
            let caller_fp = StackAddress(target.read_u64(fp).ok_or(Stop::Frozen)?);
            *cursor = Cursor { pc, sp: fp + 16, fp: caller_fp, exact: false };
            return if is_code_address(pc) { Ok(true) } else { Err(Stop::Frozen) };
        }
        let bounds = target.chunk_bounds(jvm, chunk);
        if bounds == ChunkBounds::NONE {
            return Err(Stop::Frozen);
        }
        let (mut sp, bottom) = (bounds.begin(), bounds.end());
        let stack = first_word(jvm, chunk);
        let thaw_words = walk.thaw_words;
        walk.thaw_words = 0;
        if thaw_words != 0 {
            // The JVM allocated stack for as many words as the chunk had to thaw then, and the
            // chunk says how many it still has: the difference is what has been thawed since. That
            // stays in the chunk all the same, only its index has moved on.
            let left = match target.words_to_thaw(jvm, chunk) {
                NOT_COUNTED => bottom - sp,
                left => left,
            };
            let thawed = thaw_words.wrapping_sub(thawing::EXTRA_WORDS).wrapping_sub(left);
            // What is allocated is even. So are the sizes of compiled frames.
            let compiled = thawed & !1;
            if compiled > sp {
                return Err(Stop::Frozen);
            }
            if compiled != 0 {
                let own = stack + sp * 8;
                (walk.chunk, walk.end) = (chunk, stack + bottom * 8);
                let thawed_sp = target.find_thawed_frame(jvm, own, thawed, stack);
                if thawed_sp != StackAddress(0) {
                    let pc = Avma(target.read_u64(thawed_sp - 8).ok_or(Stop::Frozen)?);
                    *cursor = Cursor { pc, sp: thawed_sp, fp: own - METADATA_BYTES, exact: false };
                    return Ok(false);
                }
                walk.thawed_until = own;
                sp -= compiled;
            }
        }
        if sp < bottom && sp >= METADATA_BYTES / 8 {
            (walk.chunk, walk.end) = (chunk, stack + bottom * 8);
            let sp = stack + sp * 8;
            set_cursor_by_callee(cursor, target, jvm, sp)?;
            return Ok(false);
        }
        chunk = parent(target, jvm, chunk);
        turn += 1;
    }
    Err(Stop::Frozen)
}

/// Puts the cursor on the frozen frame that begins here, whose pc and frame pointer are its
/// callee's metadata.
#[inline(always)]
fn set_cursor_by_callee(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    sp: StackAddress,
) -> Result<(), Stop> {
    let fp = target.read_u64(sp - METADATA_BYTES).ok_or(Stop::Frozen)?;
    let pc = Avma(target.read_u64(sp - 8).ok_or(Stop::Frozen)?);
    set_cursor(cursor, jvm, pc, sp, fp, sp - METADATA_BYTES)
}

/// Puts the cursor on a frozen frame, whose frame pointer was read from `slot`.
#[inline(always)]
fn set_cursor(
    cursor: &mut Cursor,
    jvm: &Jvm,
    pc: Avma,
    sp: StackAddress,
    fp: u64,
    slot: StackAddress,
) -> Result<(), Stop> {
    if !jvm.in_code_cache(pc) {
        return Err(Stop::Frozen);
    }
    let fp =
        if jvm.returns_to_interpreter(pc) { slot.wrapping_add(fp.wrapping_mul(8)) } else { StackAddress(fp) };
    *cursor = Cursor { pc, sp, fp, exact: false };
    Ok(())
}

/// Moves the cursor from a frozen frame to its caller, and encodes the frame. Returns true if that
/// was the last one of its chunk, and the cursor is where it was.
///
/// # Errors
/// [`Stop::Frozen`] for anything that isn't as it should be.
#[inline(always)]
pub fn step(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
    frame: &mut EncodedFrame,
) -> Result<bool, Stop> {
    match target.find_code_blob(jvm, cursor.pc - 1) {
        Ok(CodeBlob::Interpreter) if walk.thawed_until != StackAddress(0) => Err(Stop::Frozen),
        Ok(CodeBlob::Interpreter) => step_interpreted(cursor, target, jvm, walk, frame),
        Ok(CodeBlob::Nmethod(blob)) => {
            let encoded = compiled::encode(cursor, target, jvm, blob, frame);
            let (bytes, _) = encoded.map_err(|_| Stop::Frozen)?;
            step_fixed_size(cursor, target, jvm, walk, bytes)
        }
        // A safepoint in whose stub the thread was preempted.
        Ok(CodeBlob::Stub(_)) => {
            let name = pointer(target, jvm.layout.blob_name);
            frame.set(FrameWord::stub(cursor.pc.0, false), name, 0, 2);
            let bytes = frame_bytes(target, &jvm.layout);
            if bytes == 0 {
                return Err(Stop::Frozen);
            }
            step_fixed_size(cursor, target, jvm, walk, bytes)
        }
        Err(_) => Err(Stop::Frozen),
    }
}

/// Leaves a frame of fixed size. Returns true if it was the chunk's last, which returns nowhere.
#[inline(always)]
fn step_fixed_size(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &mut FrozenWalk,
    bytes: u64,
) -> Result<bool, Stop> {
    let sp = cursor.sp + bytes;
    if sp == walk.thawed_until {
        walk.thawed_until = StackAddress(0);
    }
    if sp + METADATA_BYTES >= walk.end {
        return if walk.thawed_until == StackAddress(0) { Ok(true) } else { Err(Stop::Frozen) };
    }
    if walk.thawed_until != StackAddress(0) && sp > walk.thawed_until {
        return Err(Stop::Frozen);
    }
    set_cursor_by_callee(cursor, target, jvm, sp)?;
    Ok(false)
}

/// Leaves an interpreted frame. Returns true if it was the chunk's last.
#[inline(always)]
fn step_interpreted(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    walk: &FrozenWalk,
    frame: &mut EncodedFrame,
) -> Result<bool, Stop> {
    let fp = cursor.fp;
    if !fp.is_multiple_of(8) || fp.0 < walk.chunk.0 || fp >= walk.end {
        return Err(Stop::Frozen);
    }
    let bcp_slot = u64::from(jvm.layout.interpreter_bcp_slot);
    let bcp = target.read_u64(fp - 8 * bcp_slot).ok_or(Stop::Frozen)?;
    // Above the bytecode pointer: frame_x86.hpp, `interpreter_frame_locals_offset`.
    let locals = target.read_u64(fp - 8 * (bcp_slot - 1)).ok_or(Stop::Frozen)?;
    let method = Avma(target.read_u64(fp - 8 * interpreted_frames::METHOD_SLOT).ok_or(Stop::Frozen)?);
    let sender_sp = target.read_u64(fp - 8 * interpreted_frames::SENDER_SP_SLOT).ok_or(Stop::Frozen)?;
    let caller_fp = target.read_u64(fp).ok_or(Stop::Frozen)?;
    let return_address = Avma(target.read_u64(fp + 8).ok_or(Stop::Frozen)?);
    let identity = target.identify_method(method, false, jvm);
    interpreted_frames::encode(cursor, jvm, method, identity, [bcp; 2], frame);
    if fp.wrapping_add(locals.wrapping_mul(8)).wrapping_add(8) >= walk.end {
        return Ok(true);
    }
    let sp = fp.wrapping_add(sender_sp.wrapping_mul(8));
    if sp < fp || sp >= walk.end {
        return Err(Stop::Frozen);
    }
    set_cursor(cursor, jvm, return_address, sp, caller_fp, fp)?;
    Ok(false)
}
