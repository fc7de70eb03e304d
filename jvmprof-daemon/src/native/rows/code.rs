//! Rows of code that has no call frame information: musl's, hand-written assembly, `_init`.
//!
//! Its frames are found by looking at the code itself. Who can do that lives elsewhere; here is found what there is to look
//! at.

use std::collections::BTreeSet;

use jvmprof_common::rows::{CfaRule, RaRule, RbpRule, Row};

use super::{roots, spans::Spans};
use crate::native::elf::{ElfFile, Section};
use crate::native::source::ByteSource;
use crate::native::symbols::SymbolTable;
use crate::types::Svma;

/// Finds the rows of code: its bytes, their first address, and where functions begin, some of which may be wrong. In order:
/// first address, first one behind it, row.
pub type Analyze = fn(&[u8], Svma, &[Svma]) -> Vec<(u64, u64, Row)>;

/// Less than this between functions is padding; a section of its own isn't.
const MIN_HOLE: u64 = 16;
/// A file with more code than this without frame information is no C library, but a runtime with generated code, which keeps
/// frame pointers: only where its threads begin is looked for.
const MAX_HOLES: u64 = 1 << 20;
/// Bytes of code in which calls are looked for, in all sections together.
const MAX_CODE: u64 = 64 << 20;

/// The rows of all code that is outside `known`, which is sorted.
pub(super) fn spans<S: ByteSource>(file: &ElfFile<S>, known: &[(Svma, Svma)], analyze: Analyze) -> Spans {
    let mut spans = Spans::default();
    let mut sections = file.code();
    sections.sort_by_key(|section| section.address);
    drop_overlaps(&mut sections);
    let holes: Vec<(u64, u64)> = sections.iter().flat_map(|section| holes(section, known)).collect();
    let bytes: u64 = holes.iter().map(|(start, end)| end - start).sum();
    if bytes > MAX_HOLES {
        return roots(file, &sections, &holes);
    }
    if bytes == 0 {
        return spans;
    }
    let code = read(file, &sections);
    let mut entries: Vec<Svma> = calls_into(&holes, &code).into_iter().collect();
    entries.push(file.header().entry);
    if let Ok(symbols) = SymbolTable::load(file) {
        entries.extend(symbols.starts());
    }
    entries.sort_unstable();
    entries.dedup();
    for (start, end) in holes {
        let Some(bytes) = bytes_of(start, end, &code).filter(|bytes| !is_padding(bytes)) else { continue };
        let mut exact = signal_returns(bytes, start);
        exact.extend(roots::entry(bytes, start, file.header().entry));
        exact.sort_unstable_by_key(|(start, ..)| *start);
        let before = |address: u64| entries.partition_point(|entry| entry.0 < address);
        let inside = &entries[before(start)..before(end)];
        for (start, end, row) in with_exact(analyze(bytes, Svma(start), inside), &exact) {
            spans.push(start, end, row);
        }
    }
    spans.finish();
    spans
}

/// Where the program and its threads begin, of a file with more code than is looked at otherwise.
fn roots<S: ByteSource>(file: &ElfFile<S>, sections: &[Section], holes: &[(u64, u64)]) -> Spans {
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
        let Ok(bytes) = file.read_piece(section, start - section.address.0, end - start) else { continue };
        found.extend(roots::entry(&bytes, start, file.header().entry));
        found.extend(roots::threads(&bytes, start));
    }
    found.sort_unstable_by_key(|(start, ..)| *start);
    let mut spans = Spans::default();
    found.into_iter().for_each(|(start, end, row)| spans.push(start, end, row));
    spans.finish();
    spans
}

/// Leaves one section for each address. Linkers write no others; where more share their bytes, each would be read.
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

/// The bytes of these sections, each with its address, as far as [`MAX_CODE`] goes; what can't be read is left out.
fn read<S: ByteSource>(file: &ElfFile<S>, sections: &[Section]) -> Vec<(u64, Vec<u8>)> {
    let mut left = MAX_CODE;
    let mut code = Vec::new();
    for section in sections {
        let Ok(bytes) = file.read(section, left) else { continue };
        left -= bytes.len() as u64;
        code.push((section.address.0, bytes));
    }
    code
}

/// Stretches of a section that no function with frame information covers.
fn holes(section: &Section, known: &[(Svma, Svma)]) -> Vec<(u64, u64)> {
    let (mut at, end) = (section.address.0, section.address.0.saturating_add(section.size));
    let mut holes = Vec::new();
    let first = known.partition_point(|(_, known_end)| known_end.0 <= at);
    let ends = [(Svma(end), Svma(end))];
    for (start, known_end) in known[first..].iter().take_while(|(start, _)| start.0 < end).chain(&ends) {
        let bytes = start.0.saturating_sub(at);
        if bytes >= MIN_HOLE || bytes > 0 && bytes == section.size {
            holes.push((at, start.0));
        }
        at = at.max(known_end.0);
    }
    holes
}

/// The code from `start` to `end`, which lies in one section; `None` if that wasn't read.
fn bytes_of(start: u64, end: u64, code: &[(u64, Vec<u8>)]) -> Option<&[u8]> {
    let section = code.partition_point(|(base, _)| *base <= start).checked_sub(1)?;
    let (base, bytes) = code.get(section)?;
    let from = usize::try_from(start - base).ok()?;
    bytes.get(from..from.checked_add(usize::try_from(end - start).ok()?)?)
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0 | 0x90 | 0xcc))
}

/// Where all code leads into holes: by `call rel32`, or by taking an address, `lea r64, [rip + disp32]`, which is how functions that
/// are never called directly are found. Tables of jumps lie elsewhere.
fn calls_into(holes: &[(u64, u64)], code: &[(u64, Vec<u8>)]) -> BTreeSet<Svma> {
    let in_hole = |address: u64| {
        let index = holes.partition_point(|(start, _)| *start <= address);
        index.checked_sub(1).is_some_and(|index| address < holes[index].1)
    };
    // No more than the holes have bytes, however often each is called.
    let mut entries = BTreeSet::new();
    for (base, bytes) in code {
        for (at, call) in bytes.windows(5).enumerate() {
            let [first, offset @ ..] = call.first_chunk::<5>().unwrap_or(&[0; 5]);
            let takes_address = || {
                let before = at.checked_sub(2).and_then(|from| bytes.get(from..at));
                first & 0xc7 == 0x05 && matches!(before, Some([0x48 | 0x4c, 0x8d]))
            };
            if *first != 0xe8 && !takes_address() {
                continue;
            }
            let next = base + at as u64 + 5;
            let target = next.wrapping_add_signed(i32::from_le_bytes(*offset).into());
            if in_hole(target) {
                entries.insert(Svma(target));
            }
        }
    }
    entries
}

/// Whether this is what a signal's handler returns to: `mov rax, 15; syscall`, or `mov eax, 15; syscall`.
pub(super) fn is_signal_return(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
}

/// The frame that the kernel makes for a signal, whose handler has returned: `rsp` points to the `ucontext`
/// (Linux arch/x86/include/asm/sigframe.h, include/uapi/asm/ucontext.h, sigcontext.h).
pub(super) const SIGNAL_RETURN: Row = Row {
    cfa: CfaRule::RspIndirect { at: 160, add: 0 },
    rbp: RbpRule::AtRsp(120),
    ra: RaRule::AtRsp(168),
    signal: true,
};

/// A row that is known: first address, first one behind it, row.
pub(super) type Known = (u64, u64, Row);

/// Where signal handlers return to, each with the byte before: a return address is looked up before it.
fn signal_returns(code: &[u8], base: u64) -> Vec<Known> {
    let places = (1..code.len()).filter(|at| is_signal_return(&code[*at..]));
    let at = |at: usize| base + at as u64;
    places.map(|place| (at(place) - 1, at(place) + SIGNAL_RETURN_BYTES, SIGNAL_RETURN)).collect()
}

/// At most.
const SIGNAL_RETURN_BYTES: u64 = 9;
/// The longest row that is known, in bytes: where signal handlers return to, with the byte before.
const MAX_KNOWN: u64 = SIGNAL_RETURN_BYTES + 1;

/// Puts what is known in place of what was found.
fn with_exact(rows: Vec<Known>, exact: &[Known]) -> Vec<Known> {
    let mut all = Vec::with_capacity(rows.len() + exact.len());
    for (first, end, row) in rows {
        let mut start = first;
        let near = exact.partition_point(|(from, ..)| from.saturating_add(MAX_KNOWN) <= first);
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
