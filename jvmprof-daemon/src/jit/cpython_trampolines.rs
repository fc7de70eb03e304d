//! CPython's perf trampolines: the generated code through which it calls each Python function under
//! `-X perf`.
//!
//! A trampoline keeps no frame pointer, and nothing tells how to unwind it. But all are copies of
//! the same few instructions (CPython Python/asm_trampoline.S), from which the rules follow,
//! whoever wrote them and wherever they are: the return at the end takes what lies eight bytes
//! above the stack pointer of the call.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jvmprof_common::rows::{CfaRule, Row};

use crate::hotspot::ProcessMemory;
use crate::process::{Backing, Process};
use crate::types::Avma;

/// `sub rsp, 8; call rcx; add rsp, 8; ret`.
const CODE: [u8; 11] = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];
/// In front of it where CPython is built for Intel's CET.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Offsets in [`CODE`] between which the stack pointer is eight bytes lower.
const LOWERED: (u32, u32) = (4, 10);
/// Most memory that is searched, bytes: CPython's arenas have 64 KiB, and neighbours look like one.
const MAX_ARENA: u64 = 4 << 20;
/// Most arenas of one process.
const MAX_ARENAS: usize = 64;

/// The trampolines in one stretch of memory.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Trampolines {
    /// Where they begin, from the memory's start in bytes, ascending.
    starts: Box<[u32]>,
    /// Length of what stands in front of [`CODE`].
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

    /// The row for the code at an offset from the memory's start; `None` between trampolines.
    pub fn row(&self, offset: u32) -> Option<Row> {
        let behind = self.starts.partition_point(|start| *start <= offset);
        let within = offset - self.starts.get(behind.checked_sub(1)?)?;
        let spans = self.spans();
        let (_, _, row) = spans.into_iter().find(|(start, end, _)| (*start..*end).contains(&within))?;
        Some(row)
    }

    /// Hands on all rows, in order of their addresses: first offset, first one behind it, row.
    pub fn for_each(&self, handle: &mut dyn FnMut(u64, u64, Row)) {
        for start in &self.starts {
            for (from, to, row) in self.spans() {
                handle(u64::from(start + from), u64::from(start + to), row);
            }
        }
    }

    /// A number for what it is, the same for the same memory.
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
pub struct Arenas {
    /// By the memory's start and the address behind it.
    by_place: HashMap<(Avma, Avma), Option<Arc<Trampolines>>>,
}

impl Arenas {
    /// Looks for trampolines where the process has mapped new memory for code.
    pub fn look(&mut self, process: &Process, memory: &impl ProcessMemory) {
        let places = process.mappings.iter().filter(|mapping| mapping.backing == Backing::Anonymous);
        let places = places.map(|mapping| (mapping.start, mapping.end)).take(MAX_ARENAS);
        let mut known = std::mem::take(&mut self.by_place);
        self.by_place = places
            .map(|place| (place, known.remove(&place).unwrap_or_else(|| find(place, memory).map(Arc::new))))
            .collect();
    }

    /// Forgets arenas whose memory has become something else. True if there were any.
    pub fn verify(&mut self, memory: &impl ProcessMemory) -> bool {
        let before = self.by_place.len();
        self.by_place
            .retain(|place, known| known.is_none() || find(*place, memory).as_ref() == known.as_deref());
        self.by_place.len() != before
    }

    /// The trampolines in the memory that begins at `start`.
    pub fn at(&self, start: Avma, end: Avma) -> Option<&Arc<Trampolines>> {
        self.by_place.get(&(start, end))?.as_ref()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_place.values().all(Option::is_none)
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

    /// An arena as CPython fills it.
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
        let mut arenas = Arenas { by_place: HashMap::from([(place, known)]) };
        assert!(!arenas.verify(&memory) && !arenas.is_empty());
        let mut memory = RecordedMemory::default();
        memory.insert(place.0, vec![0x90; 4096]);
        assert!(arenas.verify(&memory) && arenas.is_empty());
    }
}
