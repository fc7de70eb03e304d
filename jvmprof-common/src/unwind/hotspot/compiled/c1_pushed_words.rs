//! Words that C1's code keeps on the stack for some instructions: its frame is that much longer
//! there.
//!
//! Arguments of the check of a type, and what the copy of an array of objects needs again after
//! its own (openjdk src/hotspot/cpu/x86/c1_LIRAssembler_x86.cpp, `emit_typecheck_helper` and
//! `emit_arraycopy`):
//!
//! ```text
//! push src  push dst  mov src, [src's class]  ...          the copy alone
//! push sub  push super  call slow_subtype_check  pop  pop
//! cmp src, 0  jne cont  pop dst  pop src  ...  cont: pop dst  pop src  (test since JDK 28)
//! ```

use super::super::HotspotTarget;
use super::MAX_PUSHED;
use super::instructions::{CODE_BYTES, JMP, LoadedCode, RET, matching_bytes, word};
use crate::address::{Avma, StackAddress};
use crate::jvm::Jvm;
use crate::verifier::Scalar;

/// Registers that are pushed or popped in a row, at most.
const IN_A_ROW: u64 = 4;
/// Bytes that the two of a copy take.
pub const COPY_BYTES: u64 = 2 * 8;
/// `push r64` and `pop r64` without the register, which is in the lowest three bits.
const PUSH: u64 = 0x50;
const POP: u64 = 0x58;
/// rsp and rbp without the lowest bit: C1 pushes neither but for its frames.
const RSP_RBP: u64 = 4;
/// Opcodes of shifts by an `imm8`, and of `mov r, r`: 89 and 8b.
const SHIFT: u64 = 0xc1;
const MOV: u64 = 0x89;
const CALL: u64 = 0xe8;
const CALL_BYTES: usize = 5;
/// `jne rel32`: two of six bytes.
const JNE: u64 = 0x850f;
const JNE_BYTES: usize = 6;

/// Returns the bytes that the interrupted code of C1 has pushed above its frame, which is built and
/// whose return address would be at `usual` without them. What is there may look like one: the
/// remainder of an earlier call.
#[inline(always)]
pub fn pushed_bytes(target: &mut impl HotspotTarget, jvm: &Jvm, pc: Avma, usual: StackAddress) -> u64 {
    // The stack, this once.
    if !target.load_code(usual.avma()) {
        return 0;
    }
    let mut others = false;
    let mut pushed = 8;
    while pushed <= MAX_PUSHED {
        others |= jvm.in_code_cache(Avma(target.code()[(pushed / 8) as usize]));
        pushed += 8;
    }
    if !others || !target.load_code(pc) {
        return 0;
    }
    let mut pushed = pushed_ahead(target);
    if pushed == 0 {
        let mut begin = pc - BEFORE as u64;
        let mut copy = ArrayCopyState::UNKNOWN;
        if target.load_code(begin) {
            copy = target.array_copy_state();
        }
        if copy == ArrayCopyState::UNKNOWN {
            begin -= BETWEEN as u64;
            if target.load_code(begin) {
                copy = target.array_copy_state();
            }
        }
        pushed = if copy == ArrayCopyState::BEGUN { COPY_BYTES } else { 0 };
    }
    if pushed != 0 && pushed <= MAX_PUSHED && target.returns_to_java(jvm, usual + pushed) {
        pushed
    } else {
        0
    }
}

/// Returns the bytes that the code at a return address takes off the stack at once.
#[inline(always)]
pub fn pushed_arguments(target: &mut impl HotspotTarget, pc: Avma) -> u64 {
    if target.load_code(pc) { target.popped_bytes(0) } else { 0 }
}

/// Returns the bytes that the code at a pc, which is loaded from there on, will take off the stack
/// again; 0 if it doesn't show.
#[inline(always)]
pub fn pushed_ahead(target: &impl HotspotTarget) -> u64 {
    let code = target.code();
    let (pushes, at) = run(code, 0, PUSH);
    let is_call = word(code, at) & 0xff == CALL;
    if pushes != 0 && !is_call {
        // The second of the copy's two.
        return if pushes == 8 && is_load(word(code, at)) { 8 } else { 0 };
    }
    target.popped_bytes(if is_call { at + CALL_BYTES } else { 0 }).saturating_sub(pushes)
}

/// Returns the bytes that code takes off the stack at once, from this byte on.
#[inline(always)]
pub fn popped_bytes(code: &LoadedCode, at: usize) -> u64 {
    let (first, mut at) = run(code, at, POP);
    // cmp r32, 0: 83 f8 + register, 00; with 41 before it for r8 and above. test r32, r32: 85 c0 to
    // ff; with 45.
    let compare = word(code, at);
    if compare & 0xc0ff == 0xc085 {
        at += 2;
    } else if compare & 0xff_f8ff == 0x00_f883 || compare & 0xc0_ffff == 0xc0_8545 {
        at += 3;
    } else if compare & 0xfff8_ffff == 0x00f8_8341 {
        at += 4;
    }
    if word(code, at) & 0xffff != JNE {
        return first;
    }
    let (second, _) = run(code, at + JNE_BYTES, POP);
    if second == COPY_BYTES { first + COPY_BYTES } else { first }
}

/// Bytes before the pc that [`array_copy_state`] reads.
pub const BEFORE: usize = CODE_BYTES - 8;
/// Distance of two such windows, so that whatever begins a copy lies in one of them.
pub const BETWEEN: usize = BEFORE - 8;

/// The last step of a copy in the code before a pc.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayCopyState(u64);

impl ArrayCopyState {
    /// It doesn't show: the code before it may.
    pub const UNKNOWN: Self = Self(0);
    pub const BEGUN: Self = Self(1);
    pub const ENDED: Self = Self(2);
}

impl Scalar for ArrayCopyState {
    #[inline(always)]
    fn to_scalar(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn from_scalar(scalar: u64) -> Self {
        Self(scalar)
    }
}

/// Returns whether the code before a pc has begun a copy and not ended it; loaded are [`BEFORE`]
/// bytes before it and some after. With compact headers (JDK 28) it takes two windows to see all
/// of one.
///
/// Without any branch, by masks with a bit for each byte: the verifier would follow all of them.
#[inline(always)]
pub fn array_copy_state(code: &LoadedCode) -> ArrayCopyState {
    let prefix = matching_bytes(code, 0xff, 0x41);
    let rex = matching_bytes(code, 0xf0, 0x40);
    let moves = matching_bytes(code, 0xfd, MOV);
    // Its operand is in memory: ModRM's highest bits aren't both set.
    let load = matching_bytes(code, 0xff, 0x8b) & !(matching_bytes(code, 0xc0, 0xc0) >> 1);
    let load = load | rex & load >> 1;
    // The ModRM byte of a move with a prefix is no push.
    let push = matching_bytes(code, 0xf8, PUSH) & !((moves & rex << 1) << 1);
    let pushes = pair_positions(push, matching_bytes(code, 0xfe, PUSH | RSP_RBP), prefix);
    let pop = matching_bytes(code, 0xf8, POP);
    let pops = pair_positions(pop, matching_bytes(code, 0xfe, POP | RSP_RBP), prefix);
    // As many bytes as two have, 2 to 4, and the load after them.
    let begins = |length: usize| {
        let before = (1 << (BEFORE - length + 1)) - 1;
        pushes[length - 2] & load >> length & before
    };
    let begins = begins(2) | begins(3) | begins(4);
    // As a second byte they are operands: of a shift, of `mov r, r`.
    let jumps = matching_bytes(code, 0xff, JMP) & !(matching_bytes(code, 0xff, SHIFT) << 1);
    let returns = matching_bytes(code, 0xff, RET) & !(moves << 1);
    let ends = pops[0] | pops[1] | pops[2] | returns | jumps;
    let ends = ends & ((1 << BEFORE) - 1);
    // The last one counts.
    if begins > ends {
        ArrayCopyState::BEGUN
    } else if ends == 0 {
        ArrayCopyState::UNKNOWN
    } else {
        ArrayCopyState::ENDED
    }
}

/// Returns where two registers are pushed or popped, by the bytes that takes: 2, 3, 4. `any`: the
/// instruction without its prefix; `of_frames`: those of rsp and rbp.
#[inline(always)]
const fn pair_positions(any: u64, of_frames: u64, prefix: u64) -> [u64; 3] {
    let low = any & !of_frames;
    let high = prefix & any >> 1;
    [low & low >> 1, low & high >> 1 | high & low >> 2, high & high >> 2]
}

/// Returns true for `mov r, [r + ...]`, with or without a prefix.
#[inline(always)]
fn is_load(word: u64) -> bool {
    let has_prefix = word & 0xf0 == 0x40;
    let instruction = if has_prefix { word >> 8 } else { word };
    instruction & 0xff == 0x8b && instruction & 0xc000 != 0xc000
}

/// Returns the length of a `push` or `pop`; 0 if the word begins with something else. Those of rsp
/// and rbp are a prologue's or an epilogue's.
#[inline(always)]
fn push_or_pop_length(word: u64, kind: u64) -> usize {
    if word & 0xf8 == kind && word & 6 != RSP_RBP {
        1
    } else if word & 0xf8ff == kind << 8 | 0x41 {
        2
    } else {
        0
    }
}

/// Returns the bytes that a run of `push` or `pop` takes on the stack, and where it ends.
#[inline(always)]
fn run(code: &LoadedCode, from: usize, kind: u64) -> (u64, usize) {
    let (mut bytes, mut at) = (0, from);
    while bytes < IN_A_ROW * 8 {
        let length = push_or_pop_length(word(code, at), kind);
        if length == 0 {
            break;
        }
        at += length;
        bytes += 8;
    }
    (bytes, at)
}
