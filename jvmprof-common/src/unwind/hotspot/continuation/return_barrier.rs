//! The stubs by which frames of a virtual thread come back from the heap, where they themselves
//! were interrupted: openjdk src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`.
//! One continues a thread, one is the return barrier.

use super::super::{Cursor, HotspotTarget};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::rows::Register;
use crate::unwind::is_code_address;

/// `pop rcx; mov rdi, r15`: what the stub begins with by which a thread continues.
const POP_RCX_MOV_RDI_R15: u64 = 0xff8b_4959;
/// `mov rsp, [r15 + disp32]`: what the barrier begins with.
pub(super) const MOV_RSP_ENTRY: u64 = 0xa7_8b49;
/// `sub rsp, 16; pop rbp; ret`.
const SUB_POP_RET: u64 = 0xc35d_10ec_8348;

/// Returns true if a thread that continues has just taken its return address off the stack: the
/// stub's second instruction.
#[inline(always)]
pub(super) fn is_after_pop(target: &mut impl HotspotTarget, pc: Avma) -> bool {
    let code = target.read_object(pc - 1).unwrap_or(0);
    code & 0xffff_ffff == POP_RCX_MOV_RDI_R15
}

/// `mov rbx, rax; test rbx, rbx; jne rel8`, after the call that says how much is to be thawed. Only
/// where a thread continues: the barrier takes back what it kept between the first two.
const MOV_TEST_JNE: u64 = 0x75_db85_48d8_8b48;
/// `sub rsp, rbx; and rsp, -16`, which allocate stack.
const SUB_RSP_AND: u64 = 0xf0_e483_48e3_2b48;
const SEVEN_BYTES: u64 = 0xff_ffff_ffff_ffff;
/// Bytes from the first of these instructions to the others: `jne` is followed by `jmp rel32`.
const TO_TEST: u64 = 3;
const TO_JNE: u64 = 6;
const TO_SUB: u64 = 13;

/// Returns true if a thread that continues is about to allocate stack: its stack pointer is at the
/// entry, and it has no frames yet. The barrier's is there, too, but its callers are in the chunk.
#[inline(always)]
pub(super) fn is_at_entry(target: &mut impl HotspotTarget, pc: Avma) -> bool {
    let allocates = target.read_object(pc).unwrap_or(0) & SEVEN_BYTES == SUB_RSP_AND;
    let mut begins = |back: u64| target.read_object(pc - back).unwrap_or(0) & SEVEN_BYTES == MOV_TEST_JNE;
    begins(0) || begins(TO_TEST) || begins(TO_JNE) || allocates && begins(TO_SUB)
}

/// Returns true if the return barrier was interrupted before it allocated stack: at its first
/// instruction, which puts the stack pointer at the entry, or after one of those that keep two
/// registers there. Later, what of any age may look like an entry.
#[inline(always)]
pub(super) fn is_before_allocation(target: &mut impl HotspotTarget, pc: Avma) -> bool {
    let mut begins = |bytes: u64| target.read_object(pc - bytes).unwrap_or(0) & 0xff_ffff == MOV_RSP_ENTRY;
    begins(0) || begins(7) || begins(8) || begins(12) || begins(17)
}

/// `mov rbx, rax`, after the call that has thawed frames; `mov rsp, rbx`: three bytes.
const MOV_RBX_RAX: u64 = 0xd8_8b48;
const MOV_RSP_RBX: u64 = 0xe3_8b48;
/// `add rsp, 16; pop rax; mov rsp, rbx`: the barrier takes back what it kept, by an instruction of
/// five bytes before these.
const RESTORE: u64 = 0xe38b_4858_10c4_8348;

/// Returns the stack pointer of what was thawed, which is in a register until rsp gets it. `code`:
/// at the pc.
#[inline(always)]
fn thawed_sp(target: &mut impl HotspotTarget, pc: Avma, code: u64) -> Option<StackAddress> {
    let mut restores = |from: u64| target.read_object(pc + from).unwrap_or(0) == RESTORE;
    let is_first = code & 0xff_ffff == MOV_RBX_RAX;
    let moves = |code: u64| code & 0xff_ffff == MOV_RSP_RBX;
    if is_first && (moves(code >> 24) || restores(8)) {
        return target.register(Register::RAX).map(StackAddress);
    }
    let moves_next = moves(code) && code >> 24 & 0xffff_ffff == SUB_POP_RET & 0xffff_ffff;
    if moves_next || code == RESTORE || code & 0xffff_ffff == RESTORE >> 32 || restores(5) {
        return target.register(Register::RBX).map(StackAddress);
    }
    None
}

/// Leaves the stubs where they go on with what they have thawed, at one of their last instructions:
/// those after the call that did it, and `sub rsp, 16; pop rbp; ret`.
///
/// # Errors
/// [`Stop::Frozen`] anywhere else in them.
#[inline(always)]
pub fn step_thawed(cursor: &mut Cursor, target: &mut impl HotspotTarget) -> Result<(), Stop> {
    let code = target.read_object(cursor.pc).unwrap_or(0);
    let (sp, fp) = match code {
        _ if code & 0xffff_ffff_ffff == SUB_POP_RET => {
            (cursor.sp, target.read_u64(cursor.sp.wrapping_sub(16)))
        }
        _ if code & 0xffff == SUB_POP_RET >> 32 => (cursor.sp.wrapping_add(16), target.read_u64(cursor.sp)),
        _ if code & 0xff == SUB_POP_RET >> 40 => (cursor.sp.wrapping_add(8), Some(cursor.fp.0)),
        _ => {
            let sp = thawed_sp(target, cursor.pc, code).ok_or(Stop::Frozen)?;
            (sp, target.read_u64(sp.wrapping_sub(16)))
        }
    };
    let (pc, fp) = target.read_u64(sp.wrapping_sub(8)).zip(fp).ok_or(Stop::Frozen)?;
    let (pc, fp) = (Avma(pc), StackAddress(fp));
    *cursor = Cursor { pc, sp, fp, exact: false };
    if is_code_address(pc) { Ok(()) } else { Err(Stop::Frozen) }
}
