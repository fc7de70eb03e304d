//! Rows of code that has no call frame information: musl's, hand-written assembly, `_init`.
//!
//! Its rows are found by analysis of the code itself, which is injected as [`AnalyzeCode`]; this
//! module finds the code to analyze.

pub(super) mod entry_points;

use std::collections::BTreeSet;

use jvmprof_common::rows::Row;
use memchr::memchr2_iter;

use super::row_table::{CompactRowTable, RowRange};
use super::signal_return::{MAX_ROW, signal_returns};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfFile, Section};
use crate::native::symbols::SymbolTable;
use crate::types::Svma;

/// Analysis that finds the rows of code from its bytes, their first address, and the starts of
/// functions, some of which may be wrong. Rows are in order: first address, first one after it,
/// row.
pub type AnalyzeCode = fn(&[u8], Svma, &[Svma]) -> Vec<(u64, u64, Row)>;

/// Least size of a hole that is analyzed. A smaller one between functions is padding; a section of
/// its own isn't.
const MIN_HOLE: u64 = 16;
/// Limit of code without frame information. A file with more of it is no C library, but a runtime
/// with generated code, which keeps frame pointers: only the starts of its threads are searched.
const MAX_HOLES: u64 = 1 << 20;
/// Bytes of code that are searched for calls, in all sections together.
const MAX_CODE: u64 = 64 << 20;

/// Returns the rows of all code that is outside `functions`, which are sorted.
pub(super) fn table<S: ByteSource>(
    file: &ElfFile<S>,
    functions: impl Iterator<Item = (Svma, Svma)>,
    analyze: AnalyzeCode,
) -> CompactRowTable {
    let mut sections = file.code();
    sections.sort_by_key(|section| section.address);
    drop_overlaps(&mut sections);
    let holes = holes(&sections, functions);
    let bytes: u64 = holes.iter().map(|(start, end)| end - start).sum();
    if bytes > MAX_HOLES {
        return entry_rows(file, &sections, &holes);
    }
    let mut table = CompactRowTable::default();
    if bytes == 0 {
        return table;
    }
    let sections = within_budget(sections);
    let mut entries: Vec<Svma> = calls_into(&holes, file, &sections).into_iter().collect();
    entries.push(file.header().entry);
    if let Ok(symbols) = SymbolTable::load(file) {
        entries.extend(symbols.starts());
    }
    entries.sort_unstable();
    entries.dedup();
    for (start, end) in holes {
        let bytes = bytes_of(start, end, file, &sections);
        let Some(bytes) = bytes.filter(|bytes| !is_padding(bytes)) else { continue };
        let mut exact = signal_returns(&bytes, start);
        exact.extend(entry_points::program_entry(&bytes, start, file.header().entry));
        exact.sort_unstable_by_key(|(start, ..)| *start);
        let before = |address: u64| entries.partition_point(|entry| entry.0 < address);
        let inside = &entries[before(start)..before(end)];
        for (start, end, row) in with_exact(analyze(&bytes, Svma(start), inside), &exact) {
            table.push(start, end, row);
        }
    }
    table.finish();
    table
}

/// Returns the rows where the program and its threads begin, for a file with more code than is
/// analyzed.
fn entry_rows<S: ByteSource>(
    file: &ElfFile<S>,
    sections: &[Section],
    holes: &[(u64, u64)],
) -> CompactRowTable {
    let mut found = Vec::new();
    let mut left = MAX_CODE;
    for (start, end) in holes.iter().copied() {
        if end - start > left {
            continue;
        }
        left -= end - start;
        let holds =
            |section: &&Section| start.checked_sub(section.address.0).is_some_and(|at| at < section.size);
        let Some(section) = sections.iter().find(holds) else { continue };
        for from in (start..end).step_by(PIECE as usize) {
            // What begins in a piece may end in the next one.
            let length = (PIECE + entry_points::MAX_BEGIN as u64).min(end - from);
            let piece = file.read_piece(section, from - section.address.0, length);
            let Ok(bytes) = piece else { continue };
            found.extend(entry_points::program_entry(&bytes, from, file.header().entry));
            found.extend(entry_points::thread_entries(&bytes, from));
        }
    }
    found.sort_unstable_by_key(|(start, ..)| *start);
    let mut table = CompactRowTable::default();
    found.into_iter().for_each(|(start, end, row)| table.push(start, end, row));
    table.finish();
    table
}

/// Keeps one section for each address. Linkers write no others; where more share their bytes, each
/// would be read.
fn drop_overlaps(sections: &mut Vec<Section>) {
    let mut end = 0;
    sections.retain(|section| {
        let is_behind = section.address.0 >= end;
        if is_behind {
            end = section.address.0.saturating_add(section.size);
        }
        is_behind
    });
}

/// Returns those of the sections that together have no more than [`MAX_CODE`] bytes.
fn within_budget(mut sections: Vec<Section>) -> Vec<Section> {
    let mut left = MAX_CODE;
    sections.retain(|section| {
        let fits = section.size <= left;
        left -= if fits { section.size } else { 0 };
        fits
    });
    sections
}

/// Returns the parts of the sections, which are sorted, that no function with frame information
/// covers.
fn holes(sections: &[Section], functions: impl Iterator<Item = (Svma, Svma)>) -> Vec<(u64, u64)> {
    let (mut holes, mut functions, mut covered_to) = (Vec::new(), functions.peekable(), 0);
    for section in sections {
        let (start, end) = (section.address.0, section.address.0.saturating_add(section.size));
        let mut at = start.max(covered_to);
        loop {
            let next = functions.next_if(|(function, _)| function.0 < end);
            let hole_end = next.map_or(end, |(function, _)| function.0);
            let bytes = hole_end.saturating_sub(at);
            if bytes >= MIN_HOLE || bytes > 0 && bytes == section.size {
                holes.push((at, hole_end));
            }
            let Some((_, function_end)) = next else { break };
            (at, covered_to) = (at.max(function_end.0), covered_to.max(function_end.0));
        }
    }
    holes
}

/// Returns the code from `start` to `end`, which lies in one section; `None` if it can't be read.
fn bytes_of<S: ByteSource>(start: u64, end: u64, file: &ElfFile<S>, sections: &[Section]) -> Option<Vec<u8>> {
    let section = sections.partition_point(|section| section.address.0 <= start).checked_sub(1)?;
    let section = sections.get(section)?;
    file.read_piece(section, start - section.address.0, end - start).ok()
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0 | 0x90 | 0xcc))
}

/// Returns the addresses in holes that code refers to: by `call rel32`, or by taking an address,
/// `lea r64, [rip + disp32]`, which finds functions that are never called directly. Jump tables lie
/// elsewhere.
fn calls_into<S: ByteSource>(
    holes: &[(u64, u64)],
    file: &ElfFile<S>,
    sections: &[Section],
) -> BTreeSet<Svma> {
    let in_hole = |address: u64| {
        let index = holes.partition_point(|(start, _)| *start <= address);
        index.checked_sub(1).is_some_and(|index| address < holes[index].1)
    };
    // No more than the holes have bytes, however often each is called.
    let mut entries = BTreeSet::new();
    for section in sections {
        for at in (0..section.size).step_by(PIECE as usize) {
            // What begins at the end of the piece before may end in this one.
            let from = at.saturating_sub(LEA_BYTES as u64 - 1);
            let piece = file.read_piece(section, from, (at + PIECE).min(section.size) - from);
            let Ok(bytes) = piece else { continue };
            let base = section.address.0.wrapping_add(from);
            let targets = memchr2_iter(CALL, LEA, &bytes).filter_map(|at| leads_to(&bytes, at, base));
            entries.extend(targets.filter(|target| in_hole(*target)).map(Svma));
        }
    }
    entries
}

/// Bytes of code that are searched at once.
const PIECE: u64 = 256 << 10;
const CALL: u8 = 0xe8;
const LEA: u8 = 0x8d;
/// Bytes of a `lea` with prefix, ModRM byte and displacement.
const LEA_BYTES: usize = 7;

/// Returns the target of a call or an address in this code whose opcode is at `at`. `base` is the
/// address of the first byte.
fn leads_to(code: &[u8], at: usize, base: u64) -> Option<u64> {
    let displacement = match code[at] {
        CALL => at + 1,
        _ => {
            let is_wide = matches!(code.get(at.checked_sub(1)?)?, 0x48 | 0x4c);
            // To any register, from rip on.
            (is_wide && code.get(at + 1)? & 0xc7 == 0x05).then_some(at + 2)?
        }
    };
    let offset = i32::from_le_bytes(*code.get(displacement..)?.first_chunk()?);
    Some(base.wrapping_add(displacement as u64 + 4).wrapping_add_signed(offset.into()))
}

/// Replaces analyzed rows by known ones.
fn with_exact(rows: Vec<RowRange>, exact: &[RowRange]) -> Vec<RowRange> {
    let mut all = Vec::with_capacity(rows.len() + exact.len());
    for (first, end, row) in rows {
        let mut start = first;
        let near = exact.partition_point(|(from, ..)| from.saturating_add(MAX_ROW) <= first);
        let near = exact[near..].iter().take_while(|(from, ..)| *from < end);
        for (from, to, _) in near.filter(|(_, to, _)| *to > first) {
            if start < *from {
                all.push((start, *from, row));
            }
            start = start.max(*to);
        }
        if start < end {
            all.push((start, end, row));
        }
    }
    all.extend(exact);
    all.sort_unstable_by_key(|(start, ..)| *start);
    all
}
