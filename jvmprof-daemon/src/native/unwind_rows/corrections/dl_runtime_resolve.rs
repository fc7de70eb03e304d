//! Rows for frames that are found by `rbx`, whose value above the interrupted frame is only in a
//! callee's frame.
//!
//! glibc's `_dl_runtime_resolve` realigns its stack and keeps the old stack pointer in `rbx`. A
//! walk from frame to frame has no `rbx`. But the function that it calls saves it at a constant
//! distance from the stack pointer at the call.

use gimli::X86_64;
use iced_x86::Instruction;
use jvmprof_common::rows::{CfaRule, Register, Row};

use super::cfi_pattern_search::{functions_with, instructions};
use super::row_overrides::RowOverride;
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::cfi::CallFrames;
use crate::types::Svma;

/// Encoding of `DW_CFA_def_cfa_register`, `rbx` (DWARF 5, 7.24).
pub(crate) const BY_RBX: [u8; 2] = [0x0d, 0x03];
/// Number of calls that are evaluated in all of a file's functions.
const MAX_CALLS: usize = 256;

/// Returns rows that hold at the last byte of a call, where they are looked up for its return
/// address.
pub(crate) fn rows_at_calls<S: ByteSource>(frames: &CallFrames, file: &ElfFile<S>) -> Vec<RowOverride> {
    let functions = functions_with(frames, BY_RBX);
    let code = functions.flat_map(|function| instructions(file, function));
    let calls = code.filter(Instruction::is_call_near).take(MAX_CALLS);
    calls.filter_map(|call| row_at_call(frames, &call)).collect()
}

fn row_at_call(frames: &CallFrames, call: &Instruction) -> Option<RowOverride> {
    let last = call.next_ip().wrapping_sub(1);
    let row = frames.row(Svma(last))?;
    let CfaRule::RegisterPlus { register: Register::RBX, add } = row.cfa else { return None };
    let at = frames.offset_of_saved(Svma(call.near_branch_target()), X86_64::RBX)?;
    Some((last..call.next_ip(), Row { cfa: CfaRule::RspIndirect { at, add }, ..row }))
}
