//! Spills that compiled code keeps below its frame while it calls a collector's barrier.
//!
//! C2's keeps registers. The slow paths of barriers (ZGC's; from JDK 24 on G1's, too) lie after
//! the method's code, lower the stack pointer for the registers that are in use, and call the JVM,
//! directly or by a stub (openjdk src/hotspot/cpu/x86/gc/shared/barrierSetAssembler_x86.cpp,
//! `SaveLiveRegisters`):
//!
//! ```text
//! sub rsp, n  mov [rsp + ...], reg  ...  call  [mov ref, rax]
//! mov reg, [rsp + ...]  vzeroupper  ...  add rsp, n  jmp back
//! ```
//!
//! C1's has the arguments of ZGC's stub there, and rax if it is needed (openjdk
//! src/hotspot/cpu/x86/gc/z/zBarrierSetAssembler_x86.cpp, `generate_c1_load_barrier_stub`):
//!
//! ```text
//! [push rax]  sub rsp, 16  mov [rsp + ...], reg  ...  call
//! add rsp, 16  [mov ref, rax]  [pop rax]  jmp back
//! ```
//!
//! What lies after the call says how far the frame is away. No other code ends in `add rsp` and
//! `jmp`: an epilogue pops rbp in between.

use super::super::HotspotTarget;
use super::instructions::{JMP, VZEROUPPER};
use super::saved_arguments;
use crate::address::Avma;

/// Instructions between the call and `add rsp`, at most: half of the registers that there are, with
/// 512-bit vectors.
const MAX_RESTORED: u32 = 40;
/// Bytes for all of them, at most.
const MAX_BYTES: u64 = 4096;
/// `add rsp, imm8` and `add rsp, imm32`.
const ADD_SHORT: u64 = 0xc4_8348;
const ADD_LONG: u64 = 0xc4_8148;
const JMP_SHORT: u64 = 0xeb;
const POP_RAX: u64 = 0x58;

/// Returns the bytes below the frame of the compiled code that has called something and continues
/// at `pc`, those of [`saved_arguments`] included; 0 if there are none.
#[inline(always)]
pub fn spilled_bytes(target: &mut impl HotspotTarget, pc: Avma) -> u64 {
    let mut at = pc;
    let mut turn = 0;
    while turn < MAX_RESTORED {
        let Some(word) = target.read_object(at) else { return 0 };
        let length = target.restore_length(word);
        if length == 0 {
            break;
        }
        at += length;
        turn += 1;
    }
    let Some(add) = target.read_object(at) else { return 0 };
    if turn == 0 && saved_arguments::may_begin(add) {
        return target.saved_arguments(pc);
    }
    let (bytes, length) = match add & 0xff_ffff {
        ADD_SHORT => (add >> 24 & 0xff, 4),
        ADD_LONG => (add >> 24 & 0xffff_ffff, 7),
        _ => return 0,
    };
    at += length;
    let Some(mut after) = target.read_object(at) else { return 0 };
    if is_mov(after) {
        after >>= 8 * MOV_BYTES;
    }
    let mut popped = 0;
    if after & 0xff == POP_RAX {
        popped = 8;
        after >>= 8;
    }
    let is_jump = after & 0xff == JMP || after & 0xff == JMP_SHORT;
    // The stack pointer is a multiple of 16 at calls, before and after.
    if is_jump && bytes & 15 == 0 && bytes <= MAX_BYTES && (length == 7 || bytes < 0x80) {
        bytes + popped
    } else {
        0
    }
}

/// Returns the length of an instruction that restores a register, or moves a result to where it
/// belongs: the first one of these bytes; 0 if it is another.
#[inline(always)]
pub fn restore_length(word: u64) -> u64 {
    let byte = |at: u32| word >> (8 * at) & 0xff;
    if is_mov(word) {
        return MOV_BYTES;
    }
    if word & 0xff_ffff == VZEROUPPER {
        return 3;
    }
    let is_vector = |opcode: u64| opcode == 0x6f || opcode == 0x7e;
    // By prefix: none, VEX of two bytes, SSE's, VEX of three, SSE's with REX, EVEX.
    let is_sse = byte(0) == 0xf3;
    let is_short = is_vector(byte(2)) && (byte(0) == 0xc5 || is_sse && byte(1) == 0x0f);
    let is_long = byte(0) == 0xc4 && (is_vector(byte(3)) || byte(3) == KMOV)
        || is_sse && byte(1) & 0xf0 == 0x40 && byte(2) == 0x0f && is_vector(byte(3));
    // Where the ModRM byte is.
    let modrm = if byte(0) & 0xf8 == 0x48 && byte(1) == 0x8b {
        2
    } else if is_short {
        3
    } else if is_long {
        4
    } else if byte(0) == 0x62 && is_vector(byte(4)) {
        5
    } else {
        return 0;
    };
    // [rsp], [rsp + disp8], [rsp + disp32].
    if byte(modrm) & 7 != 4 || byte(modrm + 1) != 0x24 {
        return 0;
    }
    let displacement = match byte(modrm) >> 6 {
        0 => 0,
        1 => 1,
        2 => 4,
        _ => return 0,
    };
    u64::from(modrm) + 2 + displacement
}

/// `mov r64, r64`: 48 to 4d, 89 or 8b.
#[inline(always)]
fn is_mov(word: u64) -> bool {
    word & 0xf8 == 0x48 && matches!(word >> 8 & 0xff, 0x89 | 0x8b) && word >> 16 & 0xff >= 0xc0
}

const MOV_BYTES: u64 = 3;
/// `kmovq k, m64`.
const KMOV: u64 = 0x90;
