//! Words that C1's code keeps on the stack for some instructions: its frame is that much longer there.
//!
//! Arguments of the check of a type, and what the copy of an array of objects needs again behind its own (openjdk
//! src/hotspot/cpu/x86/c1_LIRAssembler_x86.cpp, `emit_typecheck_helper` and `emit_arraycopy`):
//!
//! ```text
//! push src  push dst  mov src, [src's class]  ...          the copy alone
//! push sub  push super  call slow_subtype_check  pop  pop
//! cmp src, 0  jne cont  pop dst  pop src  ...  cont: pop dst  pop src   (test src, src since JDK 28)
//! ```

use super::leaf::{bytes, word};
use super::{CODE_BYTES, CODE_WORDS};

type Code = [u64; CODE_WORDS];

/// Registers that are pushed or popped in a row, at most.
const IN_A_ROW: u64 = 4;
/// Bytes that the two of a copy take.
pub const COPY_BYTES: u64 = 2 * 8;
/// `push r64` and `pop r64` without the register, which is in the lowest three bits.
const PUSH: u64 = 0x50;
const POP: u64 = 0x58;
const RBP: u64 = 5;
const RET: u64 = 0xc3;
const JMP: u64 = 0xe9;
/// Opcodes of shifts by an `imm8`, and of `mov r, r`: 89 and 8b.
const SHIFT: u64 = 0xc1;
const MOV: u64 = 0x89;
const CALL: u64 = 0xe8;
const CALL_BYTES: usize = 5;
/// `jne rel32`: two of six bytes.
const JNE: u64 = 0x850f;
const JNE_BYTES: usize = 6;

/// Bytes that the code at a pc will take off the stack again, whose bytes are loaded from there on; 0 if it doesn't show.
/// `popped`: [`popped`] of this code.
#[inline(always)]
pub fn ahead(code: &Code, popped: impl FnOnce(usize) -> u64) -> u64 {
    let (pushes, at) = row(code, 0, PUSH);
    let is_call = word(code, at) & 0xff == CALL;
    if pushes != 0 && !is_call {
        // The second of the copy's two.
        return if pushes == 8 && is_load(word(code, at)) { 8 } else { 0 };
    }
    popped(if is_call { at + CALL_BYTES } else { 0 }).saturating_sub(pushes)
}

/// Bytes that code takes off the stack at once, from this byte on.
#[inline(always)]
pub fn popped(code: &Code, at: usize) -> u64 {
    let (first, mut at) = row(code, at, POP);
    // cmp r32, 0: 83 f8 + register, 00; with 41 before it for r8 and above. test r32, r32: 85 c0 to ff; with 45.
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
    let (second, _) = row(code, at + JNE_BYTES, POP);
    if second == COPY_BYTES { first + COPY_BYTES } else { first }
}

/// How many of the bytes that [`copy`] looks at lie before the pc.
pub const BEFORE: usize = CODE_BYTES - 8;
/// How far apart two such windows are, so that whatever begins a copy lies in one of them.
pub const BETWEEN: usize = BEFORE - 8;

/// What the code before a pc has last done of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// It doesn't show: what comes before that may tell.
    Unknown,
    Begun,
    Ended,
}

/// Whether the code before a pc has begun a copy and not ended it; loaded are [`BEFORE`] bytes before it and some behind. With compact
/// headers (JDK 28) it takes two windows to see all of one.
///
/// Without any branch, by masks with a bit for each byte: the verifier would follow all of them.
#[inline(always)]
pub fn copy(code: &Code) -> Copy {
    let prefix = bytes(code, 0xff, 0x41);
    let load = bytes(code, 0xff, 0x8b);
    let load = load | bytes(code, 0xf0, 0x40) & load >> 1;
    let pushes = two(bytes(code, 0xf8, PUSH), bytes(code, 0xff, PUSH | RBP), prefix);
    let pops = two(bytes(code, 0xf8, POP), bytes(code, 0xff, POP | RBP), prefix);
    // As many bytes as two have, 2 to 4, and the load behind them.
    let begins = |length: usize| {
        let before = (1 << (BEFORE - length + 1)) - 1;
        pushes[length - 2] & load >> length & before
    };
    let begins = begins(2) | begins(3) | begins(4);
    // As a second byte they are operands: of a shift, of `mov r, r`.
    let jumps = bytes(code, 0xff, JMP) & !(bytes(code, 0xff, SHIFT) << 1);
    let returns = bytes(code, 0xff, RET) & !(bytes(code, 0xfd, MOV) << 1);
    let ends = pops[0] | pops[1] | pops[2] | returns | jumps;
    let ends = ends & ((1 << BEFORE) - 1);
    // The last one counts.
    if begins > ends {
        Copy::Begun
    } else if ends == 0 {
        Copy::Unknown
    } else {
        Copy::Ended
    }
}

/// Where two registers are pushed or popped, by the bytes that takes: 2, 3, 4. `any`: the instruction without its prefix; `rbp`:
/// that of rbp.
#[inline(always)]
const fn two(any: u64, rbp: u64, prefix: u64) -> [u64; 3] {
    let low = any & !rbp;
    let high = prefix & any >> 1;
    [low & low >> 1, low & high >> 1 | high & low >> 2, high & high >> 2]
}

/// `mov r, [r + ...]`, with or without a prefix.
#[inline(always)]
fn is_load(word: u64) -> bool {
    word & 0xff == 0x8b || word & 0xfff0 == 0x8b40
}

/// The length of one; 0 if the word begins with something else. That of rbp is a prologue's or an epilogue's.
#[inline(always)]
fn one(word: u64, kind: u64) -> usize {
    if word & 0xf8 == kind && word & 7 != RBP {
        1
    } else if word & 0xf8ff == kind << 8 | 0x41 {
        2
    } else {
        0
    }
}

/// `push` or `pop` in a row: their bytes on the stack, and what lies behind them.
#[inline(always)]
fn row(code: &Code, from: usize, kind: u64) -> (u64, usize) {
    let (mut bytes, mut at) = (0, from);
    while bytes < IN_A_ROW * 8 {
        let length = one(word(code, at), kind);
        if length == 0 {
            break;
        }
        at += length;
        bytes += 8;
    }
    (bytes, at)
}
