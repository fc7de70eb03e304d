//! Interpreted frames (openjdk src/hotspot/cpu/x86/frame_x86.hpp, "interpreter_frame_..._offset").

use super::method_identity::MethodIdentity;
use super::{Cursor, EncodedFrame, HotspotTarget, return_to};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};
use crate::frame::{FrameWord, interpreted_word};
use crate::jvm::Jvm;
use crate::rows::{CfaRule, Register, RowRules};

/// Words below the frame pointer.
pub(super) const SENDER_SP_SLOT: u64 = 1;
pub(super) const LAST_SP_SLOT: u64 = 2;
pub(super) const METHOD_SLOT: u64 = 3;
/// No bytecode lies further from its `ConstMethod`'s begin: a method has at most 65,535 bytes of
/// code.
const MAX_BCP_OFFSET: u64 = 1 << 17;

/// Leaves a frame that is built. `bcp`: the bytecode pointer, if it is known better than by the
/// frame.
#[inline(always)]
pub(super) fn step(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    bcp: Option<u64>,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    let fp = cursor.fp;
    if !fp.is_multiple_of(8) || fp < cursor.sp || fp.0 < 0x1000 {
        return Err(Stop::FramePointerInvalid);
    }
    // From below, so that one window holds them all. While a method is entered its frame grows, and
    // what isn't pushed yet is still in registers.
    let bcp_slot = fp - 8 * u64::from(jvm.layout.interpreter_bcp_slot);
    let saved_bcp = if bcp_slot >= cursor.sp { target.read_u64(bcp_slot) } else { Some(0) };
    let saved_bcp = saved_bcp.ok_or(Stop::StackUnreadable)?;
    let method_slot = fp - 8 * METHOD_SLOT;
    let method =
        if method_slot >= cursor.sp { target.read_u64(method_slot) } else { target.register(Register::RBX) };
    let method = method.ok_or(Stop::StackUnreadable)?;
    let sender_sp = StackAddress(target.read_u64(fp - 8 * SENDER_SP_SLOT).ok_or(Stop::StackUnreadable)?);
    let caller_fp = StackAddress(target.read_u64(fp).ok_or(Stop::StackUnreadable)?);
    let return_address = Avma(target.read_u64(fp + 8).ok_or(Stop::StackUnreadable)?);
    let method = Avma(method);
    let identity = target.identify_method(method, false, jvm);
    encode(cursor, jvm, method, identity, [bcp.unwrap_or(saved_bcp), saved_bcp], frame);
    // Method handle intrinsics take an argument off the stack and leave the sender's stack pointer
    // as it was, so that it may lie a word below the frame's end; an interpreted sender doesn't
    // need it.
    if !sender_sp.is_multiple_of(8) || sender_sp < fp {
        return Err(Stop::FramePointerInvalid);
    }
    let sp = if sender_sp < fp + 16 { fp + 16 } else { sender_sp };
    return_to(cursor, return_address, sp, caller_fp)
}

/// Leaves the interrupted frame: a row says how far it is built.
#[inline(always)]
pub(super) fn step_leaf(
    cursor: &mut Cursor,
    target: &mut impl HotspotTarget,
    jvm: &Jvm,
    frame: &mut EncodedFrame,
) -> Result<(), Stop> {
    frame.set(FrameWord::stub(cursor.pc.0, true), 0, 0, 2);
    let row = target.stub_row(jvm.table, cursor.pc).ok_or(Stop::UnknownStub)?;
    match row.cfa() {
        // The frame is built: it keeps the sender's stack pointer. Templates have the bytecode
        // pointer in r13.
        CfaRule::RbpIndirect { at: -8, add: 0 } => {
            let bcp = target.register(Register::R13);
            return step(cursor, target, jvm, bcp, frame);
        }
        // A method's entry: the sender's stack pointer is in r13, the method in rbx.
        CfaRule::Register(Register::R13) => {
            let method = Avma(target.register(Register::RBX).unwrap_or(0));
            let identity = target.identify_method(method, true, jvm);
            encode(cursor, jvm, method, identity, [0; 2], frame);
        }
        _ => {}
    }
    super::super::row_stepper::step(cursor, &row, target)
}

/// Encodes which method it is and where it is in it. `bcps`: the bytecode pointer, first where it
/// is known best.
#[inline(always)]
pub(super) fn encode(
    cursor: &Cursor,
    jvm: &Jvm,
    method: Avma,
    identity: Option<MethodIdentity>,
    bcps: [u64; 2],
    frame: &mut EncodedFrame,
) {
    let pc = cursor.pc.0 - jvm.interpreter_start;
    let Some(identity) = identity else {
        frame.set(FrameWord::interpreted(method.0, cursor.exact), interpreted_word(0, pc), 0, 3);
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
    let first = FrameWord::interpreted(method.0, cursor.exact);
    frame.set(first, interpreted_word(offset, pc), identity.check, 3);
}
