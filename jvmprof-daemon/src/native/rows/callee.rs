//! Frames that are found by `rbx`, whose value above the interrupted frame only a callee's frame tells.
//!
//! glibc's `_dl_runtime_resolve` realigns its stack and keeps the old stack pointer in `rbx`. A walk from frame to frame knows
//! no `rbx`. But the function that it calls saves it at a place which is a constant away from the stack pointer at the call.

use std::collections::BTreeMap;

use gimli::{EhFrame, FrameDescriptionEntry, RegisterRule, UnwindSection, X86_64};
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
use jvmprof_common::rows::{CfaRule, Register, Row};

use super::{CONTEXT, Kind, Reader, UnwindRows};
use crate::native::elf::ElfFile;
use crate::native::source::ByteSource;
use crate::types::Svma;

/// `DW_CFA_def_cfa_register`, `rbx` (DWARF 5, 7.24).
const BY_RBX: [u8; 2] = [0x0d, 0x03];
/// Longest function that is looked at, how many of a file, and how many calls in all of them: each is evaluated anew.
const MAX_FUNCTION: u64 = 4 << 10;
const MAX_FUNCTIONS: usize = 64;
const MAX_CALLS: usize = 256;

/// Rows that hold at the last byte of a call, where they are looked up for its return address.
pub(super) fn rows_at_calls<S: ByteSource>(rows: &UnwindRows, file: &ElfFile<S>) -> BTreeMap<u64, Row> {
    let mut found = BTreeMap::new();
    if rows.kind != Kind::EhFrame {
        return found;
    }
    let suspects = rows.index.ranges().zip(rows.index.entries()).filter(|(_, entry)| {
        let length = rows.section.get(*entry..).and_then(|bytes| bytes.first_chunk::<4>());
        let length = length.map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let bytes = rows.section.get(*entry..entry.saturating_add(length)).unwrap_or_default();
        bytes.windows(2).any(|pair| pair == BY_RBX)
    });
    let short = suspects.take(MAX_FUNCTIONS).filter(|((start, end), _)| end.0 - start.0 <= MAX_FUNCTION);
    let calls = short.flat_map(|((start, end), _)| calls(file, start, end));
    for (last, target) in calls.take(MAX_CALLS) {
        if let Some(row) = row_at_call(rows, last, target) {
            found.insert(last.0, row);
        }
    }
    found
}

fn row_at_call(rows: &UnwindRows, last: Svma, target: Svma) -> Option<Row> {
    let row = rows.row(last)?;
    let CfaRule::RegisterPlus { register: Register::RBX, add } = row.cfa else { return None };
    let at = saved_rbx(rows, target)?;
    Some(Row { cfa: CfaRule::RspIndirect { at, add }, ..row })
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

/// The direct calls of a function: the last byte of each, and where it leads.
fn calls<S: ByteSource>(file: &ElfFile<S>, start: Svma, end: Svma) -> Vec<(Svma, Svma)> {
    let holds = |address: u64, size: u64| start.0 >= address && end.0 <= address.saturating_add(size);
    let section = file.code().into_iter().find(|it| holds(it.address.0, it.size));
    let Some(section) = section else { return Vec::new() };
    let piece = file.read_piece(&section, start.0 - section.address.0, end.0 - start.0);
    let Ok(code) = piece else { return Vec::new() };
    let decoder = Decoder::with_ip(64, &code, start.0, DecoderOptions::NONE);
    let calls = decoder
        .into_iter()
        .filter(|it| it.mnemonic() == Mnemonic::Call && it.op0_kind() == OpKind::NearBranch64);
    calls.map(|it| (Svma(it.next_ip() - 1), Svma(it.near_branch_target()))).collect()
}
