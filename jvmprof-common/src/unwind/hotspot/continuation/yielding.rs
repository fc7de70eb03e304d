//! `Continuation.doYield`, by which frames of a virtual thread get into the heap: openjdk
//! src/hotspot/cpu/x86/sharedRuntime_x86_64.cpp, `gen_continuation_yield`. It calls the JVM to copy
//! them, and then leaves the continuation by its entry, where the stack pointer gets to at once.

use super::super::HotspotTarget;
use crate::address::Avma;
use crate::unwind::call_instruction::direct_callee;

/// `mov rsp, [r15 + disp32]`: three bytes.
const MOV_RSP_ENTRY: u64 = 0xa7_8b49;
/// Distances from each instruction between the call that has copied the frames and `mov rsp, [r15 +
/// disp32]` to that one: three stores, `vzeroupper` where the CPU has it, a test and a branch.
const AHEAD: [u64; 11] = [45, 42, 34, 31, 23, 20, 12, 9, 6, 0, 41];
/// Distances from each instruction after that one to `add rsp, imm8`: three pairs of a load and a
/// store, two since JDK 27.
const TO_ADD: [u64; 7] = [0, 7, 12, 19, 24, 31, 36];
/// Bytes from `mov rsp` to `add rsp`, with three pairs and with two.
const TO_MOV: [u64; 2] = [43, 31];
/// `add rsp, imm8; pop rbp; ret`, and which bits of it are the immediate.
const ADD_POP_RET: u64 = 0xc35d_00c4_8348;
const ADD_POP_RET_MASK: u64 = 0xffff_00ff_ffff;

/// Bytes from the entry of `doYield` to that one, with `vzeroupper` at both ends of the call
/// and without it.
const FROM_ENTRY: [u64; 2] = [130, 124];

/// Returns true if a direct call of `doYield` returns here.
#[inline(always)]
pub(super) fn is_call(target: &mut impl HotspotTarget, pc: Avma) -> bool {
    let callee = direct_callee(target.read_object(pc - 8).unwrap_or(0), pc);
    let mut moves = |bytes: u64| target.read_object(callee + bytes).unwrap_or(0) & 0xff_ffff == MOV_RSP_ENTRY;
    callee != Avma(0) && (moves(FROM_ENTRY[0]) || moves(FROM_ENTRY[1]))
}

/// Returns true if this is a pc of `doYield` from the call on that copies the frames of its
/// callers. No method but it has its stack pointer from its thread.
#[inline(always)]
pub fn is_yielding(target: &mut impl HotspotTarget, pc: Avma) -> bool {
    let mut index = 0;
    while index < AHEAD.len() {
        if target.read_object(pc + AHEAD[index]).unwrap_or(0) & 0xff_ffff == MOV_RSP_ENTRY {
            return true;
        }
        index += 1;
    }
    false
}

/// Returns the bytes of the entry that are still on the stack where `doYield` leaves the
/// continuation: above them are its caller's saved `rbp` and return address. 0 anywhere else.
#[inline(always)]
pub fn entry_bytes(target: &mut impl HotspotTarget, pc: Avma) -> u64 {
    let mut index = 0;
    while index < TO_ADD.len() {
        let add = pc + TO_ADD[index];
        let code = target.read_object(add).unwrap_or(0);
        if code & ADD_POP_RET_MASK == ADD_POP_RET {
            let mut moves = |bytes: u64| {
                let code = target.read_object(add - bytes).unwrap_or(0);
                bytes > TO_ADD[index] && code & 0xff_ffff == MOV_RSP_ENTRY
            };
            return if moves(TO_MOV[0]) || moves(TO_MOV[1]) { code >> 24 & 0x7f } else { 0 };
        }
        index += 1;
    }
    0
}
