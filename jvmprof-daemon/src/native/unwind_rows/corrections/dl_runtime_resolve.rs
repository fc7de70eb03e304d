//! Frames that are found by `rbx`, whose value above the interrupted frame only a callee's frame
//! tells.
//!
//! glibc's `_dl_runtime_resolve` realigns its stack and keeps the old stack pointer in `rbx`. A
//! walk from frame to frame knows no `rbx`. But the function that it calls saves it at a place
//! which is a constant away from the stack pointer at the call.

use gimli::{EhFrame, FrameDescriptionEntry, RegisterRule, UnwindSection, X86_64};
use iced_x86::Instruction;
use jvmprof_common::rows::{CfaRule, Register, Row};

use super::cfi_pattern_search as suspects;
use super::row_overrides::Patch;
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfFile;
use crate::native::unwind_rows::{CONTEXT, Reader, UnwindRows};
use crate::types::Svma;

/// `DW_CFA_def_cfa_register`, `rbx` (DWARF 5, 7.24).
pub(in crate::native::unwind_rows) const BY_RBX: [u8; 2] = [0x0d, 0x03];
/// Calls that are looked at in all of a file's functions: each is evaluated anew.
const MAX_CALLS: usize = 256;

/// Rows that hold at the last byte of a call, where they are looked up for its return address.
pub(in crate::native::unwind_rows) fn rows_at_calls<S: ByteSource>(
    rows: &UnwindRows,
    file: &ElfFile<S>,
) -> Vec<Patch> {
    let functions = suspects::functions(rows, BY_RBX);
    let code = functions.flat_map(|function| suspects::instructions(file, function));
    let calls = code.filter(Instruction::is_call_near).take(MAX_CALLS);
    calls.filter_map(|call| row_at_call(rows, &call)).collect()
}

fn row_at_call(rows: &UnwindRows, call: &Instruction) -> Option<Patch> {
    let last = call.next_ip().wrapping_sub(1);
    let row = rows.row(Svma(last))?;
    let CfaRule::RegisterPlus { register: Register::RBX, add } = row.cfa else { return None };
    let at = saved_rbx(rows, Svma(call.near_branch_target()))?;
    Some((last..call.next_ip(), Row { cfa: CfaRule::RspIndirect { at, add }, ..row }))
}

/// Where a function saves `rbx`, from its caller's stack pointer: everywhere the same, once it has.
fn saved_rbx(rows: &UnwindRows, function: Svma) -> Option<i32> {
    let section = rows.eh_frame();
    let entry = gimli::EhFrameOffset(rows.index.find(function)?);
    let fde: FrameDescriptionEntry<Reader<'_>> =
        section.fde_from_offset(&rows.bases, entry, EhFrame::cie_from_offset).ok()?;
    CONTEXT.with(|context| {
        let mut context = context.try_borrow_mut().ok()?;
        let mut table = fde.rows(&section, &rows.bases, &mut context).ok()?;
        while let Ok(Some(row)) = table.next_row() {
            if let Some(RegisterRule::Offset(offset)) = row.register(X86_64::RBX) {
                return i32::try_from(offset).ok();
            }
        }
        None
    })
}
