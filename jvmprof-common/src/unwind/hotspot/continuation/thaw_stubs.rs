//! The stubs by which frames of a virtual thread come back from the heap, where they themselves
//! were interrupted: openjdk src/hotspot/cpu/x86/stubGenerator_x86_64.cpp, `generate_cont_thaw`.
//! One continues a thread, one is the return barrier, one the barrier for exceptions:
//!
//! ```text
//! begin       pop rcx, or mov rsp, [entry]; push rax; sub rsp, 16; store xmm0
//!             call prepare_thaw
//!             mov rbx, rax; the barriers take back what they have pushed
//! allocation  sub rsp, rbx; and rsp, -16; the barriers push the same again
//!             call thaw
//! thawed      mov rbx, rax; the barriers take it back
//! restore     mov rsp, rbx; sub rsp, 16; pop rbp; ret
//! ```

use super::super::{Cursor, HotspotTarget};
use super::stack_chunk::ENTRY_ALIGNMENT;
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::jvm::{Jvm, THAW_STUBS, ThawStub};
use crate::rows::Register;
use crate::unwind::is_code_address;

/// The places where the continuation's entry is searched for while nothing has been copied yet.
pub(super) struct BeforeThaw {
    /// The entry, or up to so many steps of its alignment below it.
    pub(super) from: StackAddress,
    pub(super) steps: u32,
    /// True where a thread continues: it has no frames yet.
    pub(super) continues: bool,
}

/// Steps to the entry where a barrier was interrupted before it allocated stack: what it keeps
/// meanwhile. Later, what of any age may look like an entry.
const BARRIER_STEPS: u32 = 3;
/// Distances from the allocation to the barriers' second instruction that pushes, which is after
/// `sub rsp, rbx`, `and rsp, -16` and `push rax`; and what is pushed before it, after it, and at a
/// call, which a barrier has to align the stack for.
const TO_SECOND_PUSH: u64 = 8;
const PUSHED_BEFORE: u64 = 8;
const PUSHED_AFTER: u64 = 24;
const PUSHED_AT_CALL: u64 = 32;
/// Distances to [`ThawStub::thawed`] from that call, from where it returns to, `add rsp, 8`, and
/// from the `jmp` over the other call, for which the stack is aligned
/// (src/hotspot/cpu/x86/macroAssembler_x86.cpp, `call_VM_leaf_base`).
const FROM_CALL: u64 = 19;
const FROM_RETURN: u64 = 14;
const FROM_JMP: u64 = 10;

/// Returns true from the return of the call that has copied frames on.
#[inline(always)]
const fn has_thawed(offset: u64, thawed: u64) -> bool {
    offset >= thawed || offset == thawed - FROM_RETURN || offset == thawed - FROM_JMP
}

/// Returns where the entry is for a pc before the call that copies frames; `None` for any other.
#[inline(always)]
pub(super) fn before_thaw(cursor: &Cursor, target: &mut impl HotspotTarget, jvm: &Jvm) -> Option<BeforeThaw> {
    let (index, ThawStub { allocation, thawed, .. }, offset) = jvm.thaw_stub(cursor.pc)?;
    let (allocation, thawed) = (u64::from(allocation), u64::from(thawed));
    if has_thawed(offset, thawed) {
        return None;
    }
    let continues = index == 0;
    let is_allocated = offset > allocation;
    let pushed = match offset.wrapping_sub(allocation) {
        _ if continues || !is_allocated => 0,
        _ if offset == thawed - FROM_CALL => PUSHED_AT_CALL,
        TO_SECOND_PUSH => PUSHED_BEFORE,
        bytes if bytes > TO_SECOND_PUSH => PUSHED_AFTER,
        _ => 0,
    };
    // What was allocated is in rbx, and was rounded up to the alignment of the entry.
    let allocated = if is_allocated { target.register(Register::RBX)? } else { 0 };
    let end = cursor.sp.wrapping_add(allocated).wrapping_add(pushed + ENTRY_ALIGNMENT - 1);
    let steps = if continues || is_allocated { 1 } else { BARRIER_STEPS };
    Some(BeforeThaw { from: end.aligned_down(ENTRY_ALIGNMENT), steps, continues })
}

/// Returns true for the stub behind those that thaw, by which a thread leaves its continuation that
/// was preempted while it waited for a monitor (JDK 24 and later: `generate_cont_preempt_stub`).
#[inline(always)]
pub(super) fn is_preempted(pc: Avma, jvm: &Jvm) -> bool {
    let stub = jvm.thaw_stub(pc);
    stub.is_some_and(|(index, stub, offset)| index == THAW_STUBS - 1 && offset > u64::from(stub.restore))
}

/// `sub rsp, 16; pop rbp; ret`, after [`ThawStub::restore`]. The barrier for exceptions calls for
/// their handler instead of the last two.
const SUB_POP_RET: u64 = 0xc35d_10ec_8348;
const SIX_BYTES: u64 = 0xffff_ffff_ffff;
/// Distances from [`ThawStub::restore`] to these three.
const TO_SUB: u64 = 3;
const TO_POP: u64 = 7;
const TO_RET: u64 = 8;

/// Leaves the stubs where they go on with what they have thawed: from the end of the call that did
/// it to their last instruction.
///
/// # Errors
/// [`Stop::Frozen`] anywhere else in them.
#[inline(always)]
pub fn step_thawed(cursor: &mut Cursor, target: &mut impl HotspotTarget, jvm: &Jvm) -> Result<(), Stop> {
    let (_, ThawStub { thawed, restore, .. }, offset) = jvm.thaw_stub(cursor.pc).ok_or(Stop::Frozen)?;
    let (thawed, restore) = (u64::from(thawed), u64::from(restore));
    if !has_thawed(offset, thawed) {
        return Err(Stop::Frozen);
    }
    // What was thawed is in a register until the stack pointer gets it.
    let (sp, fp) = if offset <= restore {
        let register = if offset <= thawed { Register::RAX } else { Register::RBX };
        let sp = target.register(register).map(StackAddress).ok_or(Stop::Frozen)?;
        (sp, target.read_u64(sp.wrapping_sub(16)))
    } else {
        let end = target.read_object(cursor.pc + restore + TO_SUB - offset).unwrap_or(0);
        let returns = end & SIX_BYTES == SUB_POP_RET;
        match offset - restore {
            TO_SUB => (cursor.sp, target.read_u64(cursor.sp.wrapping_sub(16))),
            TO_POP if returns => (cursor.sp.wrapping_add(16), target.read_u64(cursor.sp)),
            TO_RET if returns => (cursor.sp.wrapping_add(8), Some(cursor.fp.0)),
            _ => return Err(Stop::Frozen),
        }
    };
    let (pc, fp) = target.read_u64(sp.wrapping_sub(8)).zip(fp).ok_or(Stop::Frozen)?;
    let (pc, fp) = (Avma(pc), StackAddress(fp));
    *cursor = Cursor { pc, sp, fp, exact: false };
    if is_code_address(pc) { Ok(()) } else { Err(Stop::Frozen) }
}
