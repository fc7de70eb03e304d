//! Compiled frames: nmethods of C1, C2 and Graal, and native wrappers.

pub mod barrier_spills;
pub mod c1_pushed_words;
pub mod epilogue;
pub mod instructions;
pub mod layout_at_pc;
pub mod prologue;
pub mod saved_arguments;
pub mod string_indexof;

use super::cached_frames::{CachedFrame, Nmethod};
use super::code_blobs::{byte, code_address, frame_bytes, int, pointer, short};
use super::frame_layout::{FrameLayout, SavedRbp};
use super::{Cursor, EncodedFrame, HotspotTarget, return_to, step_fixed_size};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::frame::{FrameWord, compiled_word};
use crate::jvm::Jvm;
use crate::unwind::call_instruction::{direct_callee, ends_in_call};
use instructions::{CODE_BEFORE, LoadedCode, word};
use prologue::PrologueShape;

/// Bytes that an intrinsic pushes, at most.
const MAX_PUSHED: u64 = 32;
/// `CompLevel_simple` to `CompLevel_full_profile` (openjdk
/// src/hotspot/share/compiler/compilerDefinitions.hpp).
const C1_TIERS: core::ops::RangeInclusive<u64> = 1..=3;
/// Distance of a compiled frame's pc from its nmethod's begin, at most.
const MAX_DELTA: u64 = 1 << 28;

/// Leaves a frame that was left by a call, so that it is built; or by a signal, as up to JDK 15 at
/// each poll for safepoints, also those after the end of the frame.
#[inline(always)]
pub(super) fn step(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    blob: Avma,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    let (bytes, is_own_pc) = encode(cursor, target, jvm, blob, frame)?;
    // What a deoptimized frame's pc was is its own.
    if !is_own_pc {
        return step_fixed_size(cursor, target, bytes);
    }
    if cursor.exact {
        let layout = target.layout_at_signal(cursor.pc, bytes);
        cache(blob, layout, frame);
        let pc = target.read_u64(cursor.sp + layout.return_address()).ok_or(Stop::StackUnreadable)?;
        return step_by_layout(cursor, target, layout, Avma(pc));
    }
    let bytes = bytes + target.spilled_bytes(cursor.pc);
    cache(blob, FrameLayout::built(bytes), frame);
    step_fixed_size(cursor, target, bytes)
}

/// Moves the cursor to the caller at `pc`.
#[inline(always)]
fn step_by_layout(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    layout: FrameLayout,
    pc: Avma,
) -> Result<(), Stop> {
    let fp = match layout.saved_rbp() {
        SavedRbp::InRegister => cursor.fp,
        SavedRbp::AtSp(offset) => {
            StackAddress(target.read_u64(cursor.sp + offset).ok_or(Stop::StackUnreadable)?)
        }
    };
    return_to(cursor, pc, cursor.sp + layout.return_address() + 8, fp)
}

/// Encodes the frame of the nmethod whose header is loaded, and returns how many bytes it has, and
/// false if its pc is the one of a deoptimized frame's handler.
#[inline(always)]
pub(super) fn encode(
    cursor: &Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    blob: Avma,
    frame: &mut EncodedFrame,
) -> Result<(u64, bool), Stop> {
    let layout = &jvm.layout;
    let is_offset = layout.deopt_is_offset != 0;
    let mut pc = cursor.pc;
    // A deoptimized frame returns to its handler; where it was is kept in the frame.
    if pc == code_address(target, layout.nmethod_deopt, is_offset, blob)
        || pc == code_address(target, layout.nmethod_deopt_mh, is_offset, blob)
    {
        let slot = cursor.sp.wrapping_add(u64::from(int(target, layout.nmethod_orig_pc)));
        let original = Avma(target.read_u64(slot).ok_or(Stop::StackUnreadable)?);
        if original.offset_from(blob) < MAX_DELTA {
            pc = original;
        }
    }
    let compile_id = int(target, layout.nmethod_compile_id);
    let is_osr = int(target, layout.nmethod_entry_bci) != u32::MAX;
    let second = compiled_word(compile_id, pc.offset_from(blob), is_osr);
    frame.set(FrameWord::compiled(pc.0, cursor.exact), second, 0, 2);
    let bytes = frame_bytes(target, layout);
    if bytes == 0 {
        return Err(Stop::UnknownStub);
    }
    Ok((bytes, pc == cursor.pc))
}

/// Reads the nmethod whose header is loaded into [`EncodedFrame::nmethod`].
#[inline(always)]
pub(super) fn read_nmethod(target: &mut impl HotspotTarget, jvm: &Jvm, blob: Avma, frame: &mut EncodedFrame) {
    let layout = &jvm.layout;
    let code = code_address(target, layout.blob_code_begin, layout.code_is_offset != 0, blob);
    let complete = match layout.frame_complete_bytes {
        2 => i64::from(short(target, layout.blob_frame_complete) as i16),
        _ => i64::from(int(target, layout.blob_frame_complete) as i32),
    };
    // -1: the compiler didn't say.
    let complete = if complete < 0 { 0 } else { complete as u64 };
    let entry = match layout.entry_is_offset {
        0 => Avma(pointer(target, layout.nmethod_verified_entry)),
        _ => code + u64::from(short(target, layout.nmethod_verified_entry)),
    };
    let (bytes, level) = (frame_bytes(target, layout), byte(target, layout.nmethod_level));
    let compile_id = int(target, layout.nmethod_compile_id);
    let is_osr = u16::from(int(target, layout.nmethod_entry_bci) != u32::MAX);
    let shape = target.frame_shape(entry, bytes, level.into());
    // Without a branch, each side of which the verifier would follow to the frame's end.
    let all_if = |bit: u16| (shape >> bit.trailing_zeros() & 1).wrapping_neg();
    let has_built = all_if(Nmethod::HAS_BUILT);
    frame.nmethod = Nmethod {
        blob,
        code,
        entry,
        built: Avma((entry.0 + (shape >> SHAPE_FLAG_BITS)) & has_built | (code.0 + complete) & !has_built),
        frame_bytes: bytes & !all_if(Nmethod::NO_FRAME),
        compile_id,
        is_osr,
        flags: shape as u16 & (Nmethod::C1 | Nmethod::SAVES_NO_RBP),
    };
}

/// Bits of a frame's shape that are [`Nmethod::flags`].
const SHAPE_FLAG_BITS: u32 = 8;

/// Loads the code at an nmethod's entry point, and returns the shape of its frames, which have
/// `bytes` by its header: [`Nmethod::flags`], and above them the distance from the entry point to
/// where the frame is built, if the code shows it ([`Nmethod::HAS_BUILT`]). `level`: its tier.
#[inline(always)]
pub fn frame_shape(target: &mut impl HotspotTarget, entry: Avma, bytes: u64, level: u64) -> u64 {
    if C1_TIERS.contains(&level) {
        return Nmethod::C1.into();
    }
    if bytes == 0 || !target.load_code(entry) {
        return 0;
    }
    match prologue::shape(target, bytes) {
        PrologueShape::Unknown => 0,
        PrologueShape::NoFrame => Nmethod::NO_FRAME.into(),
        PrologueShape::Frame { built, saves_rbp } => {
            let flags = if saves_rbp { 0 } else { Nmethod::SAVES_NO_RBP };
            u64::from(Nmethod::HAS_BUILT | flags) | built << SHAPE_FLAG_BITS
        }
    }
}

/// Leaves the interrupted frame, of the nmethod in [`EncodedFrame::nmethod`].
#[inline(always)]
pub(super) fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    let Nmethod { blob, code, entry, built, frame_bytes, compile_id, is_osr, flags } = frame.nmethod;
    let word = compiled_word(compile_id, cursor.pc.offset_from(blob), is_osr != 0);
    frame.words = [FrameWord::compiled(cursor.pc.0, true).0, word, 0];
    frame.count = 2;
    let begin = cursor.sp;
    let layout = if cursor.pc < entry || cursor.pc == code || frame_bytes == 0 {
        // The class check of an unverified entry point; or a method handle intrinsic or another
        // method that has no frame at all.
        FrameLayout::AT_ENTRY
    } else {
        if !target.load_code(cursor.pc - CODE_BEFORE as u64) {
            return Err(Stop::CodeUnreadable);
        }
        if cursor.pc >= built {
            string_indexof::undo_stack_adjustment(cursor, target, jvm, frame_bytes - 8);
        }
        if frame_bytes == 16 && is_after_yield(target.code()) {
            cursor.sp += target.yielded_entry_bytes(cursor.pc);
        }
        let left = built.0.saturating_sub(cursor.pc.0);
        let stub = layout_at_pc::in_static_call_stub(target.code()).map(|distance| cursor.pc - distance);
        if stub.is_some_and(|stub| target.is_direct_call(cursor.sp, stub)) {
            FrameLayout::AT_ENTRY
        } else if cursor.sp != begin || (left == 0 && !epilogue::may_be_unbuilt(target.code())) {
            FrameLayout::built(frame_bytes)
        } else {
            target.layout_at_pc(left, frame_bytes)
        }
    };
    // Without a branch, as above.
    let saves_no_rbp = u64::from(flags >> Nmethod::SAVES_NO_RBP.trailing_zeros() & 1).wrapping_neg();
    let layout = layout.with_rbp_in_register(saves_no_rbp);
    let slot = cursor.sp + layout.return_address();
    let mut pc = Avma(target.read_u64(slot).ok_or(Stop::StackUnreadable)?);
    let mut pushed = 0;
    let is_built = layout.return_address() == frame_bytes.wrapping_sub(8);
    // What C2 emits may look like what only C1 does.
    if flags & Nmethod::C1 != 0 && jvm.in_code_cache(pc) && is_built && cursor.sp == begin {
        pushed = target.c1_pushed_bytes(jvm, cursor.pc, slot);
        if pushed != 0 {
            pc = Avma(target.read_u64(slot + pushed).ok_or(Stop::StackUnreadable)?);
        }
    }
    // All callers of compiled code are generated code. Intrinsics keep some words on the stack for
    // a while (openjdk src/hotspot/cpu/x86/macroAssembler_x86.cpp `string_compare`): the frame is
    // that much longer.
    while !jvm.in_code_cache(pc) {
        pushed += 8;
        if pushed > MAX_PUSHED {
            return Err(Stop::ReturnAddressInvalid);
        }
        pc = Avma(target.read_u64(slot + pushed).ok_or(Stop::StackUnreadable)?);
        if !is_return_to_java(target, jvm, pc) {
            pc = Avma(0);
        }
    }
    if pushed == 0 && cursor.sp == begin {
        cache(blob, layout, frame);
    }
    cursor.sp += pushed;
    step_by_layout(cursor, target, layout, pc)
}

/// Returns true if the loaded code may be one of the last instructions of `doYield`: `mov rbx, [rsp
/// + disp8]`, `mov [r15 + disp32], rbx`, `add rsp, imm8`.
#[inline(always)]
fn is_after_yield(code: &LoadedCode) -> bool {
    let code = word(code, CODE_BEFORE);
    code & 0xffff_ffff == 0x245c_8b48 || code & 0xff_ffff == 0x9f_8949 || code & 0xff_ffff == 0xc4_8348
}

/// Returns true if the return address in `slot` is that of a direct call to `callee`.
#[inline(always)]
pub fn is_direct_call(target: &mut impl HotspotTarget, slot: StackAddress, callee: Avma) -> bool {
    let pc = Avma(target.read_u64(slot).unwrap_or(0));
    direct_callee(target.read_object(pc.wrapping_sub(8)).unwrap_or(0), pc) == callee
}

/// Returns true if there is a return address of generated code in `slot`.
#[inline(always)]
pub fn returns_to_java(target: &mut impl HotspotTarget, jvm: &Jvm, slot: StackAddress) -> bool {
    let pc = Avma(target.read_u64(slot).unwrap_or(0));
    is_return_to_java(target, jvm, pc)
}

/// Returns true for a return address of generated code. Those into the interpreter have no call
/// before them.
#[inline(always)]
fn is_return_to_java(target: &mut impl HotspotTarget, jvm: &Jvm, pc: Avma) -> bool {
    let is_interpreter = pc.0 > jvm.interpreter_start && pc.0 < jvm.interpreter_end;
    is_interpreter || jvm.in_code_cache(pc) && ends_in_call(target.read_object(pc - 8).unwrap_or(0))
}

/// Makes the frame's layout what its pc will be cached with.
#[inline(always)]
fn cache(blob: Avma, layout: FrameLayout, frame: &mut EncodedFrame) {
    let word = frame.words[1];
    if word as u32 != 0 {
        frame.cached = CachedFrame { kind: CachedFrame::COMPILED, blob, word, layout };
    }
}
