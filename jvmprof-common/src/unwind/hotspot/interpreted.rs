//! Interpreted frames (openjdk src/hotspot/cpu/x86/frame_x86.hpp, "interpreter_frame_..._offset").

use super::{Cursor, Target, Words, arrive};
use crate::abi::Stop;
use crate::frame::{FrameWord, interpreted_word};
use crate::jvm::{Jvm, MethodIdentity};
use crate::rows::{CfaRule, Register, Rules};

/// Words below the frame pointer.
pub(super) const SENDER_SP_SLOT: u64 = 1;
pub(super) const LAST_SP_SLOT: u64 = 2;
pub(super) const METHOD_SLOT: u64 = 3;
/// No bytecode lies further from its `ConstMethod`'s begin: a method has at most 65,535 bytes of code.
const MAX_BCP_OFFSET: u64 = 1 << 17;

/// Leaves a frame that is built. `bcp`: the bytecode pointer, if it is known better than by the frame.
#[inline(always)]
pub(super) fn step(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    bcp: Option<u64>,
    words: &mut Words,
) -> Result<(), Stop> {
    let fp = cursor.fp;
    if !fp.is_multiple_of(8) || fp < cursor.sp || fp < 0x1000 {
        return Err(Stop::FramePointerInvalid);
    }
    // From below, so that one window holds them all. While a method is entered its frame grows, and what isn't pushed yet
    // is still in registers.
    let bcp_slot = fp - 8 * u64::from(jvm.layout.interpreter_bcp_slot);
    let saved_bcp = if bcp_slot >= cursor.sp { target.read_u64(bcp_slot) } else { Some(0) };
    let saved_bcp = saved_bcp.ok_or(Stop::StackUnreadable)?;
    let method_slot = fp - 8 * METHOD_SLOT;
    let method =
        if method_slot >= cursor.sp { target.read_u64(method_slot) } else { target.register(Register::RBX) };
    let method = method.ok_or(Stop::StackUnreadable)?;
    let sender_sp = target.read_u64(fp - 8 * SENDER_SP_SLOT).ok_or(Stop::StackUnreadable)?;
    let caller_fp = target.read_u64(fp).ok_or(Stop::StackUnreadable)?;
    let return_address = target.read_u64(fp + 8).ok_or(Stop::StackUnreadable)?;
    let identity = target.identify_method(method, false, jvm);
    name(cursor, jvm, method, identity, [bcp.unwrap_or(saved_bcp), saved_bcp], words);
    // Method handle intrinsics take an argument off the stack and leave the sender's stack pointer as it was, so that it may
    // lie a word below the frame's end; an interpreted sender doesn't need it.
    if !sender_sp.is_multiple_of(8) || sender_sp < fp {
        return Err(Stop::FramePointerInvalid);
    }
    let sp = if sender_sp < fp + 16 { fp + 16 } else { sender_sp };
    arrive(cursor, return_address, sp, caller_fp)
}

/// The interrupted frame: a row says how far it is built.
#[inline(always)]
pub(super) fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl Target,
    jvm: &Jvm,
    words: &mut Words,
) -> Result<(), Stop> {
    words.set(FrameWord::stub(cursor.pc, true), 0, 0, 2);
    let row = target.stub_row(jvm.table, cursor.pc).ok_or(Stop::UnknownStub)?;
    match row.cfa() {
        // The frame is built: it keeps the sender's stack pointer. Templates have the bytecode pointer in r13.
        CfaRule::RbpIndirect { at: -8, add: 0 } => {
            let bcp = target.register(Register::R13);
            return step(cursor, target, jvm, bcp, words);
        }
        // A method's entry: the sender's stack pointer is in r13, the method in rbx.
        CfaRule::Register(Register::R13) => {
            let method = target.register(Register::RBX).unwrap_or(0);
            let identity = target.identify_method(method, true, jvm);
            name(cursor, jvm, method, identity, [0; 2], words);
        }
        _ => {}
    }
    super::super::rows::step(cursor, &row, target)
}

/// Says which method it is and where it is in it. `bcps`: the bytecode pointer, first where it is known best.
#[inline(always)]
pub(super) fn name(
    cursor: &Cursor,
    jvm: &Jvm,
    method: u64,
    identity: Option<MethodIdentity>,
    bcps: [u64; 2],
    words: &mut Words,
) {
    let pc = cursor.pc - jvm.interpreter_start;
    let Some(identity) = identity else {
        words.set(FrameWord::interpreted(method, cursor.exact), interpreted_word(0, pc), 0, 3);
        return;
    };
    let [bcp, saved_bcp] = bcps;
    let mut offset = bcp.wrapping_sub(identity.const_method);
    if offset >= MAX_BCP_OFFSET {
        offset = saved_bcp.wrapping_sub(identity.const_method);
    }
    if offset >= MAX_BCP_OFFSET {
        offset = 0;
    }
    let first = FrameWord::interpreted(method, cursor.exact);
    words.set(first, interpreted_word(offset, pc), identity.check, 3);
}
