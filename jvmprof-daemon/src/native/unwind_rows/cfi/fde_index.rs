//! Index from addresses to the entries of a section of call frame information.

use std::ops::Range;

use gimli::{BaseAddresses, CommonInformationEntry, Reader, UnwindOffset, UnwindSection};

use super::FrameSectionKind;
use crate::types::Svma;

/// Longest entry that is evaluated, in bytes: it bounds the time of a lookup. The longest of JDK
/// 17's libjvm has 1,800, that of rustc 34,000.
pub(crate) const MAX_ENTRY: usize = 128 << 10;
/// Longest CIE that is evaluated, in bytes: it is, for each of its functions. Compilers' have some
/// thirty.
pub(crate) const MAX_CIE: usize = 4 << 10;
/// Bytes that are evaluated for all rows of a file, for each byte of its section: where functions
/// have 20 bytes and their CIE 32, it is less than three.
const WORK_PER_BYTE: usize = 4;
/// Bytes that are evaluated for all rows in any case: a second or two. rustc's, the largest on a
/// developer's machine, take 9 MB.
const MAX_WORK: usize = 64 << 20;

/// Functions sorted by address, 12 bytes each.
#[derive(Debug, Default)]
pub(crate) struct FdeIndex {
    /// Address that the functions count from. Code that lies 4 GiB or more above it isn't indexed.
    base: u64,
    functions: Box<[IndexedFunction]>,
    malformed: u64,
    over_budget: u64,
    work: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct IndexedFunction {
    start: u32,
    /// Offset of the entry in the section.
    entry: u32,
    len: u32,
}

impl FdeIndex {
    /// Returns the offset in the section of the entry for `pc`.
    pub(crate) fn find(&self, pc: Svma) -> Option<usize> {
        let at = u32::try_from(pc.0.checked_sub(self.base)?).ok()?;
        let index = self.functions.partition_point(|function| function.start <= at).checked_sub(1)?;
        let function = self.functions.get(index)?;
        (at - function.start < function.len).then_some(function.entry as usize)
    }

    /// Returns the last function that begins before `address`.
    pub(crate) fn last_before(&self, address: Svma) -> Option<(Svma, Svma)> {
        let start = |function: &IndexedFunction| self.base + u64::from(function.start);
        let index = self.functions.partition_point(|function| start(function) < address.0).checked_sub(1)?;
        let function = self.functions.get(index)?;
        Some((Svma(start(function)), Svma(start(function) + u64::from(function.len))))
    }

    /// Removes the functions that overlap one of `others`.
    pub(crate) fn remove(&mut self, others: &Self) {
        let base = self.base;
        let range = |base: u64, function: &IndexedFunction| {
            let start = base.saturating_add(function.start.into());
            start..start.saturating_add(function.len.into())
        };
        let is_new = |function: &IndexedFunction| {
            let own = range(base, function);
            let behind = others.functions.partition_point(|other| range(others.base, other).start < own.end);
            let last = behind.checked_sub(1).and_then(|at| others.functions.get(at));
            last.is_none_or(|other| range(others.base, other).end <= own.start)
        };
        self.functions = std::mem::take(&mut self.functions).into_iter().filter(is_new).collect();
    }

    pub(crate) fn len(&self) -> usize {
        self.functions.len()
    }

    pub(crate) fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Returns the number of functions that were left out because all that come before cost too
    /// much to evaluate.
    pub(crate) fn over_budget(&self) -> u64 {
        self.over_budget
    }

    /// Returns the bytes of entries that are evaluated for all rows, each CIE once for each of its
    /// functions.
    pub(crate) fn work(&self) -> usize {
        self.work
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of_val(&*self.functions)
    }

    /// Returns the offsets of all entries in the section, in order of their functions' addresses.
    pub(crate) fn entries(&self) -> impl Iterator<Item = usize> {
        self.functions.iter().map(|function| function.entry as usize)
    }

    /// Returns the first address of each function, and the offset of its entry in the section.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (Svma, usize)> {
        self.functions.iter().map(|it| (Svma(self.base + u64::from(it.start)), it.entry as usize))
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Svma, Svma)> {
        self.functions.iter().map(|function| {
            let start = self.base + u64::from(function.start);
            (Svma(start), Svma(start + u64::from(function.len)))
        })
    }
}

/// Indexes the entries whose function starts in one of the ranges of `code`. Others are of
/// functions that the linker removed: `.debug_frame` keeps them, at address zero.
pub(crate) fn build<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    (section, bytes): (&S, &R),
    kind: FrameSectionKind,
    bases: &BaseAddresses,
    code: &[Range<u64>],
) -> FdeIndex {
    let code = merged(code);
    let base = code.first().map_or(0, |range| range.start);
    let budget = bytes.len().saturating_mul(WORK_PER_BYTE).min(MAX_WORK);
    let (mut functions, mut malformed, mut over_budget, mut work) = (Vec::new(), 0, 0, 0);
    let mut cies = RecentCies::default();
    for entry in FdeOffsets::of(bytes, kind) {
        let fde = section.fde_from_offset(bases, entry.into(), |s: &S, b, at| cies.get(s, b, at));
        let Ok(fde) = fde else {
            malformed += 1;
            continue;
        };
        if fde.entry_len() > MAX_ENTRY || fde.cie().entry_len() > MAX_CIE {
            malformed += 1;
            continue;
        }
        let start = fde.initial_address();
        if fde.len() == 0 || !is_in(&code, start) {
            continue;
        }
        let cost = fde.entry_len() + fde.cie().entry_len();
        if work + cost > budget {
            over_budget += 1;
            continue;
        }
        work += cost;
        let (Ok(start), Ok(entry)) = (u32::try_from(start - base), u32::try_from(entry)) else { continue };
        functions.push(IndexedFunction { start, entry, len: u32::try_from(fde.len()).unwrap_or(u32::MAX) });
    }
    functions.sort_unstable();
    // Of two entries for the same address the first one counts, as in a search from the section's
    // start.
    functions.dedup_by_key(|function| function.start);
    FdeIndex { base, functions: functions.into(), malformed, over_budget, work }
}

/// Sorts ranges and merges neighbours: a file may state thousands, and each of its functions is
/// searched in them.
fn merged(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => merged.push(range),
        }
    }
    merged
}

fn is_in(merged: &[Range<u64>], address: u64) -> bool {
    let index = merged.partition_point(|range| range.start <= address);
    index.checked_sub(1).is_some_and(|index| merged[index].contains(&address))
}

/// Offsets of a section's FDEs. Unlike gimli's own iterator it goes on after a malformed entry, and
/// after an entry of length zero, which ends `.eh_frame` but also stands inside it where linkers
/// put such sections together.
struct FdeOffsets<R> {
    section: R,
    position: usize,
    cie_id: u32,
}

impl<R: Reader<Offset = usize>> FdeOffsets<R> {
    fn of(section: &R, kind: FrameSectionKind) -> Self {
        // The id is read as 32 bits in DWARF64, too: there it is all ones or the offset's low half.
        let cie_id = match kind {
            FrameSectionKind::EhFrame => 0,
            FrameSectionKind::DebugFrame => u32::MAX,
        };
        Self { section: section.clone(), position: 0, cie_id }
    }

    fn word(&self, at: usize) -> Option<u32> {
        let mut section = self.section.clone();
        section.skip(at).and_then(|()| section.read_u32()).ok()
    }
}

impl<R: Reader<Offset = usize>> Iterator for FdeOffsets<R> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            let start = self.position;
            let (mut len, mut body) = (self.word(start)? as usize, start + 4);
            if len == u32::MAX as usize {
                let (low, high) = (self.word(body)? as usize, self.word(body + 4)? as usize);
                (len, body) = (low | high << 32, body + 8);
            }
            self.position = body.checked_add(len)?;
            if len >= 4 && self.word(body)? != self.cie_id {
                return Some(start);
            }
        }
    }
}

/// The most recently parsed CIEs. Functions share a few, by turns; keeping all would let a hostile
/// file take much memory.
pub(crate) struct RecentCies<R: Reader> {
    cies: [Option<(usize, CommonInformationEntry<R>)>; 8],
    next: usize,
}

impl<R: Reader> Default for RecentCies<R> {
    fn default() -> Self {
        Self { cies: std::array::from_fn(|_| None), next: 0 }
    }
}

impl<R: Reader<Offset = usize>> RecentCies<R> {
    pub(crate) fn get<S: UnwindSection<R>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        offset: S::Offset,
    ) -> gimli::Result<CommonInformationEntry<R>> {
        let at = UnwindOffset::into(offset);
        let known = self.cies.iter().flatten().find(|(offset, _)| *offset == at);
        if let Some((_, cie)) = known {
            return Ok(cie.clone());
        }
        let cie = section.cie_from_offset(bases, offset)?;
        self.cies[self.next] = Some((at, cie.clone()));
        self.next = (self.next + 1) % self.cies.len();
        Ok(cie)
    }
}
