//! The frame-pointer stepper: rbp points to the caller's rbp, the return address stands above it.

use super::{Cursor, Memory, USER_ADDRESS_END, is_code_address};
use crate::abi::Stop;
use crate::address::{Avma, StackAddress};

/// Moves the cursor to the caller by the frame pointer (System V ABI for x86-64, 3.2.2).
///
/// # Errors
/// [`Stop::ChainEnded`] at a zero frame pointer or return address; the other reasons name what was
/// no frame.
#[inline(always)]
pub fn step(cursor: &mut Cursor, memory: &mut impl Memory) -> Result<(), Stop> {
    let fp = cursor.fp;
    if fp == StackAddress(0) {
        return Err(Stop::ChainEnded);
    }
    // A caller's frame lies above its callee's: going up only is also what ends a walk through
    // garbage.
    if !fp.is_multiple_of(8) || fp < cursor.sp || fp.0 >= USER_ADDRESS_END {
        return Err(Stop::FramePointerInvalid);
    }
    let Some(caller_fp) = memory.read_u64(fp) else {
        return Err(Stop::StackUnreadable);
    };
    let Some(return_address) = memory.read_u64(fp + 8) else {
        return Err(Stop::StackUnreadable);
    };
    if return_address == 0 {
        return Err(Stop::ChainEnded);
    }
    let return_address = Avma(return_address);
    if !is_code_address(return_address) {
        return Err(Stop::ReturnAddressInvalid);
    }
    *cursor = Cursor { pc: return_address, sp: fp + 16, fp: StackAddress(caller_fp), exact: false };
    Ok(())
}
