//! Named ranges of addresses in little memory: 12 bytes a range and one string of all names.

use crate::native::elf::ElfError;
use crate::types::Svma;

/// Most bytes of names that a table holds: string tables may share tails, so that a small hostile file could
/// otherwise expand without bound.
const MAX_NAMES: usize = 64 << 20;

/// A function that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRef<'a> {
    /// As the file has it: mangled. Bytes that aren't UTF-8 are replaced.
    pub name: &'a str,
    pub start: Svma,
    /// In bytes; where the file states none, up to the next symbol or the section's end.
    pub size: u64,
}

/// The functions of one file.
#[derive(Debug, Default)]
pub struct SymbolTable {
    /// Address that the ranges count from. What lies 4 GiB or more above it isn't in the table.
    base: u64,
    /// Disjoint, sorted.
    ranges: Box<[Stored]>,
    /// Functions that other ones interrupt, so that their ranges don't tell where they start and end: index of the
    /// range, start and size of the function. Sorted by index.
    interrupted: Box<[(u32, u32, u32)]>,
    /// All names, each ended by a zero.
    names: Box<str>,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    start: u32,
    end: u32,
    name: u32,
}

impl SymbolTable {
    /// The function that contains `address`; `None` in holes, never a neighbour.
    pub fn lookup(&self, address: Svma) -> Option<SymbolRef<'_>> {
        let at = u32::try_from(address.0.checked_sub(self.base)?).ok()?;
        let index = self.ranges.partition_point(|range| range.start <= at).checked_sub(1)?;
        let range = self.ranges.get(index).filter(|range| at < range.end)?;
        let interrupted = self.interrupted.binary_search_by_key(&(index as u32), |(index, ..)| *index);
        let (start, size) = match interrupted.ok().and_then(|found| self.interrupted.get(found)) {
            Some((_, start, size)) => (*start, *size),
            None => (range.start, range.end - range.start),
        };
        let name = self.names.get(range.name as usize..)?;
        let name = name.split_once('\0').map_or(name, |(name, _)| name);
        Some(SymbolRef { name, start: Svma(self.base + u64::from(start)), size: u64::from(size) })
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.ranges) + size_of_val(&*self.interrupted) + self.names.len()
    }
}

/// Addresses from `start` up to and without `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Makes a table of functions that may lie inside each other: where they do, the one that starts last has the bytes.
#[derive(Debug, Default)]
pub(crate) struct TableBuilder {
    base: Option<u64>,
    ranges: Vec<Stored>,
    interrupted: Vec<(u32, u32, u32)>,
    names: String,
    /// Functions that reach beyond `position`, the one that has the bytes there last.
    open: Vec<Stored>,
    /// Up to here ranges are made.
    position: u32,
}

impl TableBuilder {
    /// Adds a function. They come sorted by start, and of the same start the largest first.
    pub(crate) fn push(&mut self, range: Range, name: &[u8]) -> Result<(), ElfError> {
        let base = *self.base.get_or_insert(range.start);
        let relative = |address: u64| u32::try_from(address.checked_sub(base)?).ok();
        let Some(start) = relative(range.start) else { return Ok(()) };
        let end = relative(range.end).unwrap_or(u32::MAX);
        if start >= end {
            return Ok(());
        }
        let Ok(offset) = u32::try_from(self.names.len()) else { return Ok(()) };
        if self.names.len() + name.len() > MAX_NAMES {
            let (what, size) = ("names of functions".into(), (self.names.len() + name.len()) as u64);
            return Err(ElfError::TooLarge { what, size, limit: MAX_NAMES as u64 });
        }
        self.names.push_str(&String::from_utf8_lossy(name));
        self.names.push('\0');
        self.make_ranges_up_to(start);
        self.open.push(Stored { start, end, name: offset });
        Ok(())
    }

    pub(crate) fn finish(mut self) -> SymbolTable {
        self.make_ranges_up_to(u32::MAX);
        SymbolTable {
            base: self.base.unwrap_or_default(),
            ranges: self.ranges.into(),
            interrupted: self.interrupted.into(),
            names: self.names.into(),
        }
    }

    fn make_ranges_up_to(&mut self, start: u32) {
        while let Some(top) = self.open.last().copied() {
            let end = top.end.min(start);
            if self.position.max(top.start) < end {
                self.make_range(top, end);
            }
            if top.end > start {
                break;
            }
            self.open.pop();
        }
        self.position = self.position.max(start);
    }

    fn make_range(&mut self, function: Stored, end: u32) {
        let start = self.position.max(function.start);
        if (start, end) != (function.start, function.end) {
            let size = function.end - function.start;
            self.interrupted.push((self.ranges.len() as u32, function.start, size));
        }
        self.ranges.push(Stored { start, end, ..function });
        self.position = end;
    }
}
