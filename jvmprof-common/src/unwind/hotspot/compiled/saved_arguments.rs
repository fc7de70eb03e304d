//! Arguments that a native wrapper keeps below its frame while it waits for its monitor.
//!
//! The wrapper of a `synchronized native` method has its arguments in registers already when it
//! finds the monitor locked by another thread. It pushes them, calls the JVM, and takes them back
//! (openjdk src/hotspot/cpu/x86/sharedRuntime_x86.cpp, `save_args`, `restore_args` and
//! `generate_native_wrapper`, `slow_path_lock`). The call is one of two, by how the stack is
//! aligned (macroAssembler_x86.cpp, `call_VM_leaf_base`):
//!
//! ```text
//! test esp, 15  je L  sub rsp, 8  call  add rsp, 8  jmp E  L: call
//! E: [cmp rsp, [r15 + ...]  jb P  mov qword [r15 + ...], 0]
//! P: pop reg, or movsd xmm, [rsp] and add rsp, 16  ...  jmp back
//! ```
//!
//! What stands in brackets is of JDK 21 and later (`pop_cont_fastpath`).
//!
//! What lies after the call says how far the frame is away. Nothing else pops registers of
//! arguments and jumps.

use super::super::HotspotTarget;
use super::instructions::JMP;
use crate::address::Avma;

/// `add rsp, 8; jmp rel32`, and its length.
const SKIP_CALL: u64 = 0xe9_08c4_8348;
const SKIP_CALL_MASK: u64 = 0xff_ffff_ffff;
const SKIP_CALL_BYTES: u64 = 9;
/// Bytes of the other call, at most: `mov r10, imm64; call r10`.
const MAX_CALL_BYTES: u64 = 13;
/// `cmp rsp, [r15 + disp32]`, its length, and `jb rel8` behind it.
const CMP_RSP: u64 = 0xa7_3b49;
const CMP_RSP_BYTES: u64 = 7;
const JB_SHORT: u64 = 0x72;
/// Bytes from that branch to its target, at most: `mov qword [r15 + disp32], imm32`.
const MAX_BRANCH: u64 = 11;
/// Arguments in registers, at most: five, and eight in those of vectors.
const MAX_ARGUMENTS: u32 = 13;
/// `add rsp, 16`.
const ADD_16: u64 = 0x10c4_8348;
const JMP_SHORT: u64 = 0xeb;

/// Returns the bytes below the frame of the native wrapper that has called the JVM and continues at
/// `pc`; 0 if there are none.
#[inline(always)]
pub fn saved_arguments(target: &mut impl HotspotTarget, pc: Avma) -> u64 {
    let (mut at, mut bytes) = (pc, 0);
    let first = target.read_object(at).unwrap_or(0);
    if first & SKIP_CALL_MASK == SKIP_CALL {
        let call = target.read_object(at + 5).unwrap_or(0) & 0xffff_ffff;
        if call > MAX_CALL_BYTES {
            return 0;
        }
        at += SKIP_CALL_BYTES + call;
        bytes = 8;
    }
    if target.read_object(at).unwrap_or(0) & 0xff_ffff == CMP_RSP {
        let branch = target.read_object(at + CMP_RSP_BYTES).unwrap_or(0);
        let distance = branch >> 8 & 0xff;
        if branch & 0xff != JB_SHORT || distance > MAX_BRANCH {
            return 0;
        }
        at += CMP_RSP_BYTES + 2 + distance;
    }
    let mut arguments = 0;
    while arguments < MAX_ARGUMENTS {
        let word = target.read_object(at).unwrap_or(0);
        let length = pop_length(word);
        if length != 0 {
            at += length;
            bytes += 8;
        } else if is_vector_load(word) {
            if target.read_object(at + 5).unwrap_or(0) & 0xffff_ffff != ADD_16 {
                return 0;
            }
            at += 9;
            bytes += 16;
        } else {
            break;
        }
        arguments += 1;
    }
    let end = target.read_object(at).unwrap_or(0) & 0xff;
    if arguments != 0 && (end == JMP || end == JMP_SHORT) { bytes } else { 0 }
}

/// Returns true if [`saved_arguments`] may begin with this word.
#[inline(always)]
pub(super) const fn may_begin(word: u64) -> bool {
    word & SKIP_CALL_MASK == SKIP_CALL
        || word & 0xff_ffff == CMP_RSP
        || pop_length(word) != 0
        || is_vector_load(word)
}

/// Returns the length of a `pop` of a register of arguments (rsi, rdx, rcx, r8, r9); 0 for any
/// other instruction.
#[inline(always)]
const fn pop_length(word: u64) -> u64 {
    match word & 0xff {
        0x59 | 0x5a | 0x5e => 1,
        0x41 if matches!(word >> 8 & 0xff, 0x58 | 0x59) => 2,
        _ => 0,
    }
}

/// `movsd xmm, [rsp]`: of SSE or VEX, xmm0 to xmm7.
#[inline(always)]
const fn is_vector_load(word: u64) -> bool {
    let prefix = word & 0xff_ffff;
    (prefix == 0x10_0ff2 || prefix == 0x10_fbc5) && word >> 24 & 0xc7 == 0x04 && word >> 32 & 0xff == 0x24
}
