//! Compiled frames: nmethods of C1, C2 and Graal, and native wrappers.

use super::known::{Known, Nmethod};
use super::leaf::{self, Leaf, SavedRbp};
use super::prologue::{self, Begin};
use super::pushed::{self, Copy};
use super::{
    CODE_BEFORE, Cursor, Target, Words, arrive, byte, code_address, frame_bytes, int, leave, pointer, short,
};
use crate::abi::Stop;
use crate::frame::{FrameWord, compiled_word};
use crate::jvm::Jvm;
use crate::rows::Register;
use crate::unwind::call::{direct_callee, ends_in_call};

/// Bytes that an intrinsic pushes, at most.
const MAX_PUSHED: u64 = 32;
/// `CompLevel_simple` to `CompLevel_full_profile` (openjdk src/hotspot/share/compiler/compilerDefinitions.hpp).
const C1_TIERS: core::ops::RangeInclusive<u64> = 1..=3;
/// What a compiled frame's pc has from its nmethod's begin, at most.
const MAX_DELTA: u64 = 1 << 28;

/// Leaves a frame that was left by a call, so that it is built; or by a signal, as up to JDK 15 at each poll for safepoints, also
/// those behind the end of the frame.
#[inline(always)]
pub(super) fn step(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    blob: u64,
    words: &mut Words,
) -> Result<(), Stop> {
    let (bytes, is_own_pc) = describe(cursor, target, jvm, blob, words)?;
    // What a deoptimized frame's pc was is its own.
    if !is_own_pc {
        return leave(cursor, target, bytes);
    }
    if cursor.exact {
        let bits = target.interrupted(cursor.pc, bytes);
        remember(blob, bits, words);
        let state = Leaf::from_bits(bits);
        let pc = target.read_u64(cursor.sp + state.return_address).ok_or(Stop::StackUnreadable)?;
        return leave_to(cursor, target, state, pc);
    }
    let bytes = bytes + target.spilled(cursor.pc);
    remember(blob, Leaf::built(bytes).to_bits(), words);
    leave(cursor, target, bytes)
}

/// Goes to the caller at `pc`.
#[inline(always)]
fn leave_to(cursor: &mut Cursor, target: &mut impl Target, state: Leaf, pc: u64) -> Result<(), Stop> {
    let fp = match state.rbp {
        SavedRbp::InRegister => cursor.fp,
        SavedRbp::AtSp(offset) => target.read_u64(cursor.sp + offset).ok_or(Stop::StackUnreadable)?,
    };
    arrive(cursor, pc, cursor.sp + state.return_address + 8, fp)
}

/// Says what frame that is, how many bytes it has, and whether its pc isn't the one of a deoptimized frame's handler.
#[inline(always)]
pub(super) fn describe(
    cursor: &Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    blob: u64,
    words: &mut Words,
) -> Result<(u64, bool), Stop> {
    let layout = &jvm.layout;
    let is_offset = layout.deopt_is_offset != 0;
    let mut pc = cursor.pc;
    // A deoptimized frame returns to its handler; where it was is kept in the frame.
    if pc == code_address(target, layout.nmethod_deopt, is_offset, blob)
        || pc == code_address(target, layout.nmethod_deopt_mh, is_offset, blob)
    {
        let slot = cursor.sp.wrapping_add(u64::from(int(target, layout.nmethod_orig_pc)));
        let original = target.read_u64(slot).ok_or(Stop::StackUnreadable)?;
        if original.wrapping_sub(blob) < MAX_DELTA {
            pc = original;
        }
    }
    name(cursor, target, jvm, blob, pc, words);
    let bytes = frame_bytes(target, layout);
    if bytes == 0 {
        return Err(Stop::UnknownStub);
    }
    Ok((bytes, pc == cursor.pc))
}

/// Brings what the frames of the nmethod whose header is loaded are judged by to `words`.
#[inline(always)]
pub(super) fn judge(target: &mut impl Target, jvm: &Jvm, blob: u64, words: &mut Words) {
    let layout = &jvm.layout;
    let code = code_address(target, layout.blob_code_begin, layout.code_is_offset != 0, blob);
    let complete = match layout.frame_complete_bytes {
        2 => i64::from(short(target, layout.blob_frame_complete) as i16),
        _ => i64::from(int(target, layout.blob_frame_complete) as i32),
    };
    // -1: the compiler didn't say.
    let complete = if complete < 0 { 0 } else { complete as u64 };
    let entry = match layout.entry_is_offset {
        0 => pointer(target, layout.nmethod_verified_entry),
        _ => code + u64::from(short(target, layout.nmethod_verified_entry)),
    };
    let (bytes, level) = (frame_bytes(target, layout), byte(target, layout.nmethod_level));
    let compile_id = int(target, layout.nmethod_compile_id);
    let is_osr = u16::from(int(target, layout.nmethod_entry_bci) != u32::MAX);
    let begin = target.traits(entry, bytes, level.into());
    // Without a branch, each side of which the verifier would follow to the frame's end.
    let all_if = |bit: u16| (begin >> bit.trailing_zeros() & 1).wrapping_neg();
    let tells_built = all_if(Nmethod::TELLS_BUILT);
    words.nmethod = Nmethod {
        blob,
        code,
        entry,
        built: (entry + (begin >> TRAIT_BITS)) & tells_built | (code + complete) & !tells_built,
        frame_bytes: bytes & !all_if(Nmethod::NO_FRAME),
        compile_id,
        is_osr,
        traits: begin as u16 & (Nmethod::C1 | Nmethod::SAVES_NO_RBP),
    };
}

/// Behind the bits of [`Nmethod::traits`].
const TRAIT_BITS: u32 = 8;

/// Traits of an nmethod with this entry point, size of its frame and tier; behind their bits where the frame is built, if that is told,
/// in bytes from the entry point on.
#[inline(always)]
pub(super) fn traits(target: &mut impl Target, entry: u64, bytes: u64, level: u64) -> u64 {
    if C1_TIERS.contains(&level) {
        return Nmethod::C1.into();
    }
    if bytes == 0 || !target.load_code(entry) {
        return 0;
    }
    match prologue::begin(target.code(), bytes, |at| target.behind_store(at, bytes)) {
        Begin::Other => 0,
        Begin::NoFrame => Nmethod::NO_FRAME.into(),
        Begin::Frame { built, saves_rbp } => {
            let traits = if saves_rbp { 0 } else { Nmethod::SAVES_NO_RBP };
            u64::from(Nmethod::TELLS_BUILT | traits) | built << TRAIT_BITS
        }
    }
}

/// The interrupted frame, of the nmethod in `words`.
#[inline(always)]
pub(super) fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    words: &mut Words,
) -> Result<(), Stop> {
    let Nmethod { blob, code, entry, built, frame_bytes, compile_id, is_osr, traits } = words.nmethod;
    let word = compiled_word(compile_id, cursor.pc.wrapping_sub(blob), is_osr != 0);
    words.words = [FrameWord::compiled(cursor.pc, true).0, word, 0];
    words.count = 2;
    let begin = cursor.sp;
    let bits = if cursor.pc < entry || cursor.pc == code || frame_bytes == 0 {
        // The class check of an unverified entry point; or a method handle intrinsic or another method that has no frame at all.
        Leaf::AT_ENTRY.to_bits()
    } else {
        if !target.load_code(cursor.pc - CODE_BEFORE as u64) {
            return Err(Stop::CodeUnreadable);
        }
        if cursor.pc >= built {
            skip_search(cursor, target, jvm, frame_bytes - 8);
        }
        let left = built.saturating_sub(cursor.pc);
        let stub = leaf::in_static_call_stub(target.code()).map(|distance| cursor.pc - distance);
        if stub.is_some_and(|stub| target.is_called(cursor.sp, stub)) {
            Leaf::AT_ENTRY.to_bits()
        } else if cursor.sp != begin || (left == 0 && !leaf::may_be_unbuilt(target.code())) {
            Leaf::built(frame_bytes).to_bits()
        } else {
            target.judge_leaf(left, frame_bytes)
        }
    };
    // Without a branch, as above.
    let saves_no_rbp = u64::from(traits >> Nmethod::SAVES_NO_RBP.trailing_zeros() & 1).wrapping_neg();
    let bits = bits & !(Leaf::RBP_BITS & saves_no_rbp);
    let state = Leaf::from_bits(bits);
    let mut pc = target.read_u64(cursor.sp + state.return_address).ok_or(Stop::StackUnreadable)?;
    let mut pushed = 0;
    let is_built = state.return_address == frame_bytes.wrapping_sub(8);
    // What C2 emits may look like what only C1 does.
    if traits & Nmethod::C1 != 0 && is_generated(jvm, pc) && is_built && cursor.sp == begin {
        pushed = target.pushed_words(cursor.pc, cursor.sp + state.return_address, jvm);
        if pushed != 0 {
            pc = target.read_u64(cursor.sp + state.return_address + pushed).ok_or(Stop::StackUnreadable)?;
        }
    }
    // All callers of compiled code are generated code. Intrinsics keep some words on the stack for a while (openjdk
    // src/hotspot/cpu/x86/macroAssembler_x86.cpp `string_compare`): the frame is that much longer.
    while !is_generated(jvm, pc) {
        pushed += 8;
        if pushed > MAX_PUSHED {
            return Err(Stop::ReturnAddressInvalid);
        }
        let word = target.read_u64(cursor.sp + state.return_address + pushed);
        pc = word.ok_or(Stop::StackUnreadable)?;
        if !is_return_to_java(target, jvm, pc) {
            pc = 0;
        }
    }
    if pushed == 0 && cursor.sp == begin {
        remember(blob, bits, words);
    }
    cursor.sp += pushed;
    leave_to(cursor, target, state, pc)
}

/// See [`super::pushed_words`].
#[inline(always)]
pub(super) fn pushed_words(target: &mut impl Target, jvm: &Jvm, pc: u64, usual: u64) -> u64 {
    // The stack, this once.
    if !target.load_code(usual) {
        return 0;
    }
    let mut others = false;
    let mut pushed = 8;
    while pushed <= MAX_PUSHED {
        others |= is_generated(jvm, target.code()[(pushed / 8) as usize]);
        pushed += 8;
    }
    if !others || !target.load_code(pc) {
        return 0;
    }
    let mut pushed = pushed::ahead(target.code(), |at| target.popped(at));
    if pushed == 0 {
        let mut begin = pc - pushed::BEFORE as u64;
        let mut copy = Copy::Unknown as u64;
        if target.load_code(begin) {
            copy = target.last_copy();
        }
        if copy == Copy::Unknown as u64 {
            begin -= pushed::BETWEEN as u64;
            if target.load_code(begin) {
                copy = target.last_copy();
            }
        }
        pushed = if copy == Copy::Begun as u64 { pushed::COPY_BYTES } else { 0 };
    }
    if pushed != 0 && pushed <= MAX_PUSHED && target.returns_to_java(usual + pushed, jvm) {
        pushed
    } else {
        0
    }
}

/// Bytes that C2's search in strings puts on the stack, at most: copies of short strings, and four registers.
const MAX_SEARCH_BYTES: u64 = 32 + 4 * 8;

/// C2's search in strings (openjdk src/hotspot/cpu/x86/c2_MacroAssembler_x86.cpp, `string_indexof`) keeps the stack pointer in
/// rcx, puts copies of strings and some registers on the stack, rcx the last of them, and begins to search. Where either leads
/// to a return address, it says where the frame begins; unless it is there by chance: then the frame itself has a return
/// address, too, and the search's instruction isn't around.
#[inline(always)]
fn skip_search(cursor: &mut Cursor, target: &mut impl Target, jvm: &Jvm, return_address: u64) {
    let pushed = target.read_u64(cursor.sp).unwrap_or(0);
    let kept = target.register(Register::RCX).unwrap_or(0);
    let begin = cursor.sp;
    let is_below =
        |saved: u64| saved.is_multiple_of(16) && saved.wrapping_sub(begin).wrapping_sub(1) < MAX_SEARCH_BYTES;
    // Before rcx is on top, copies' addresses are.
    for saved in [kept, pushed] {
        if is_below(saved)
            && target.is_search(cursor.sp + return_address, saved + return_address, cursor.pc, jvm)
        {
            cursor.sp = saved;
            return;
        }
    }
}

/// How far around the interrupted instruction the search's own is looked for, from the code that is loaded on: the set-up of a
/// search takes some 150 bytes, and windows overlap by the bytes that tell the instruction.
const SEARCH_WINDOWS: [i64; 4] = [61, 122, 183, -61];

/// Whether the frame's return address is in the second of two places: only there is one, or there is one in both while a string
/// is searched. The code around `pc` is loaded, and is so afterwards.
#[inline(always)]
pub(super) fn is_search(target: &mut impl Target, jvm: &Jvm, usual: u64, saved: u64, pc: u64) -> bool {
    if !target.returns_to_java(saved, jvm) {
        return false;
    }
    if !target.returns_to_java(usual, jvm) || leaf::searches_string(target.code()) {
        return true;
    }
    let begin = pc - CODE_BEFORE as u64;
    let mut is_search = false;
    let mut window = 0;
    while window < SEARCH_WINDOWS.len() && !is_search {
        let at = begin.wrapping_add_signed(SEARCH_WINDOWS[window]);
        is_search = target.load_code(at) && leaf::searches_string(target.code());
        window += 1;
    }
    target.load_code(begin) && is_search
}

/// Whether the return address at `slot` is that of a direct call to `callee`.
#[inline(always)]
pub(super) fn is_called(target: &mut impl Target, slot: u64, callee: u64) -> bool {
    let pc = target.read_u64(slot).unwrap_or(0);
    direct_callee(target.read_object(pc.wrapping_sub(8)).unwrap_or(0), pc) == callee
}

/// Whether there is a return address of generated code on the stack. Those into the interpreter have no call before them.
#[inline(always)]
pub(super) fn returns_to_java(target: &mut impl Target, jvm: &Jvm, slot: u64) -> bool {
    let pc = target.read_u64(slot).unwrap_or(0);
    is_return_to_java(target, jvm, pc)
}

#[inline(always)]
fn is_return_to_java(target: &mut impl Target, jvm: &Jvm, pc: u64) -> bool {
    let is_interpreter = pc > jvm.interpreter_start && pc < jvm.interpreter_end;
    is_interpreter || is_generated(jvm, pc) && ends_in_call(target.read_object(pc - 8).unwrap_or(0))
}

#[inline(always)]
fn remember(blob: u64, leaf: u64, words: &mut Words) {
    let word = words.words[1];
    if word as u32 != 0 {
        words.known = Known { kind: Known::COMPILED, blob, word, leaf };
    }
}

#[inline(always)]
fn is_generated(jvm: &Jvm, address: u64) -> bool {
    address >= jvm.code_start && address < jvm.code_end
}

#[inline(always)]
fn name(cursor: &Cursor, target: &impl Target, jvm: &Jvm, blob: u64, pc: u64, words: &mut Words) {
    let compile_id = int(target, jvm.layout.nmethod_compile_id);
    let is_osr = int(target, jvm.layout.nmethod_entry_bci) != u32::MAX;
    let delta = pc.wrapping_sub(blob);
    words.set(FrameWord::compiled(pc, cursor.exact), compiled_word(compile_id, delta, is_osr), 0, 2);
}
