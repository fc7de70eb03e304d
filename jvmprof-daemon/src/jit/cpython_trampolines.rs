//! CPython's perf trampolines: the generated code through which it calls each Python function under
//! `-X perf`.
//!
//! A trampoline keeps no frame pointer, and has no unwinding information. But all are copies of the
//! same few instructions (CPython Python/asm_trampoline.S), from which the unwind rows follow
//! wherever they are: the return at the end pops the word eight bytes above the stack pointer of
//! the call.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jvmprof_common::rows::{CfaRule, Row};

use crate::hotspot::ProcessMemory;
use crate::process::{Backing, Process};
use crate::types::Avma;

/// The instructions `sub rsp, 8; call rcx; add rsp, 8; ret`.
const CODE: [u8; 11] = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
/// First instruction where CPython is built for Intel's CET.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Offsets in [`CODE`] between which the stack pointer is eight bytes lower.
const LOWERED: (u32, u32) = (4, 10);
/// Longest memory that is searched, in bytes: CPython's arenas have 64 KiB, and neighbours look
/// like one mapping.
const MAX_ARENA: u64 = 4 << 20;
/// Most arenas of one process.
const MAX_ARENAS: usize = 64;

/// The trampolines in one mapping.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Trampolines {
    /// Offsets of their first bytes from the mapping's start, ascending.
    starts: Box<[u32]>,
    /// Length of the instructions before [`CODE`].
    lead: u32,
}

impl Trampolines {
    /// Finds the trampolines in memory that begins with one.
    pub fn find(bytes: &[u8]) -> Option<Self> {
        let code = match bytes.strip_prefix(&ENDBR64) {
            Some(rest) if rest.starts_with(&CODE) => [&ENDBR64[..], &CODE].concat(),
            _ if bytes.starts_with(&CODE) => CODE.to_vec(),
            _ => return None,
        };
        let mut starts = Vec::new();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= code.len()) {
            if rest.starts_with(&code) {
                starts.push(u32::try_from(at).ok()?);
                at += code.len();
            } else {
                at += 1;
            }
        }
        Some(Self { starts: starts.into(), lead: (code.len() - CODE.len()) as u32 })
    }

    /// Returns the row for the code at an offset from the mapping's start; `None` between
    /// trampolines.
    pub fn row(&self, offset: u32) -> Option<Row> {
        let after = self.starts.partition_point(|start| *start <= offset);
        let within = offset - self.starts.get(after.checked_sub(1)?)?;
        let spans = self.spans();
        let (_, _, row) = spans.into_iter().find(|(start, end, _)| (*start..*end).contains(&within))?;
        Some(row)
    }

    /// Calls `handle` with all rows in order of their addresses: first offset, first offset after
    /// the row, row.
    pub fn for_each(&self, handle: &mut dyn FnMut(u64, u64, Row)) {
        for start in &self.starts {
            for (from, to, row) in self.spans() {
                handle(u64::from(start + from), u64::from(start + to), row);
            }
        }
    }

    /// Returns a hash of the contents, which equal mappings share.
    pub fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn spans(&self) -> [(u32, u32, Row); 3] {
        let row = |cfa| Row { cfa: CfaRule::Rsp(cfa), ..Row::AT_CALL };
        let (low, high) = (self.lead + LOWERED.0, self.lead + LOWERED.1);
        [(0, low, row(8)), (low, high, row(16)), (high, self.lead + CODE.len() as u32, row(8))]
    }
}

/// The trampolines of one process.
#[derive(Debug, Default)]
pub struct TrampolineArenas {
    /// Trampolines by the mapping's start and the first address after it; `None` for other code.
    by_range: HashMap<(Avma, Avma), Option<Arc<Trampolines>>>,
}

impl TrampolineArenas {
    /// Searches mappings of generated code that are new for trampolines.
    pub fn discover(&mut self, process: &Process, memory: &impl ProcessMemory) {
        let ranges = process.mappings.iter().filter(|mapping| mapping.backing == Backing::Anonymous);
        let ranges = ranges.map(|mapping| (mapping.start, mapping.end)).take(MAX_ARENAS);
        let mut known = std::mem::take(&mut self.by_range);
        self.by_range = ranges
            .map(|range| (range, known.remove(&range).unwrap_or_else(|| find(range, memory).map(Arc::new))))
            .collect();
    }

    /// Drops arenas whose memory has changed. Returns true if there were any.
    pub fn drop_changed(&mut self, memory: &impl ProcessMemory) -> bool {
        let before = self.by_range.len();
        self.by_range
            .retain(|range, known| known.is_none() || find(*range, memory).as_ref() == known.as_deref());
        self.by_range.len() != before
    }

    /// Returns the trampolines in the mapping from `start` to `end`.
    pub fn at(&self, start: Avma, end: Avma) -> Option<&Arc<Trampolines>> {
        self.by_range.get(&(start, end))?.as_ref()
    }

    /// Returns true if there are no trampolines.
    pub fn is_empty(&self) -> bool {
        self.by_range.values().all(Option::is_none)
    }
}

fn find((start, end): (Avma, Avma), memory: &impl ProcessMemory) -> Option<Trampolines> {
    let mut first = [0; ENDBR64.len() + CODE.len()];
    let size = end.0.checked_sub(start.0).filter(|size| *size <= MAX_ARENA && *size >= first.len() as u64)?;
    if !memory.read_into(start, &mut first) {
        return None;
    }
    Trampolines::find(&first)?;
    Trampolines::find(&memory.read_bytes(start, usize::try_from(size).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::RecordedMemory;

    /// Returns an arena as CPython fills it.
    fn arena(lead: &[u8], distance: usize, size: usize) -> Vec<u8> {
        let code = [lead, &CODE].concat();
        let mut bytes = vec![0; size];
        for copy in bytes.chunks_exact_mut(distance) {
            copy[..code.len()].copy_from_slice(&code);
        }
        bytes
    }

    #[test]
    fn every_instruction_of_every_copy_has_its_row() {
        for (lead, distance) in [(&[][..], 11), (&[], 96), (&ENDBR64, 15), (&ENDBR64, 32)] {
            let bytes = arena(lead, distance, 65536);
            let found = Trampolines::find(&bytes).expect("trampolines");
            assert_eq!(found.starts.len(), 65536 / distance);
            let mut rows = vec![None; bytes.len()];
            found.for_each(&mut |from, to, row| rows[from as usize..to as usize].fill(Some(row.cfa)));
            for (offset, row) in (0u32..).zip(rows) {
                assert_eq!(found.row(offset).map(|row| row.cfa), row, "{offset}");
                let within = (offset as usize % distance).wrapping_sub(lead.len());
                let expected = match within {
                    _ if offset as usize / distance >= 65536 / distance => None,
                    4..10 => Some(CfaRule::Rsp(16)),
                    0..4 | 10 => Some(CfaRule::Rsp(8)),
                    11.. if offset as usize % distance < lead.len() => Some(CfaRule::Rsp(8)),
                    _ => None,
                };
                assert_eq!(row, expected, "{offset} of {distance}");
            }
        }
    }

    #[test]
    fn other_code_has_none_and_code_that_takes_an_arenas_place_is_noticed() {
        assert_eq!(Trampolines::find(&[0x90; 64]), None);
        assert_eq!(Trampolines::find(&CODE[..10]), None);
        let place = (Avma(0x1000), Avma(0x1000 + 4096));
        let mut memory = RecordedMemory::default();
        memory.insert(place.0, arena(&[], 11, 4096));
        let known = find(place, &memory).map(Arc::new);
        let mut arenas = TrampolineArenas { by_range: HashMap::from([(place, known)]) };
        assert!(!arenas.drop_changed(&memory) && !arenas.is_empty());
        let mut memory = RecordedMemory::default();
        memory.insert(place.0, vec![0x90; 4096]);
        assert!(arenas.drop_changed(&memory) && arenas.is_empty());
    }
}
