//! Functions by address in little memory: 12 bytes a range. Their names stay in the file.

use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfError;
use crate::native::symbols::aliases::{NameRef, SymbolAliases};
use crate::types::Svma;

/// A function that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SymbolRef {
    pub start: Svma,
    /// Size in bytes; where the file states none, up to the next symbol or the section's end.
    pub size: u64,
    name: NameRef,
}

impl SymbolRef {
    /// Returns whether its name is one of `.dynsym`, not of `.symtab`: the two may be in different
    /// files.
    pub fn is_dynamic(&self) -> bool {
        self.name.table() != 0
    }
}

/// Functions of one file.
#[derive(Debug, Default)]
pub struct SymbolTable {
    /// Address that the ranges count from. Symbols 4 GiB or more above it aren't in the table.
    base: u64,
    /// Disjoint ranges, sorted.
    ranges: Box<[SymbolRange]>,
    /// Functions that other ones interrupt, so that their ranges don't have their start and end:
    /// index of the range, start and size of the function. Sorted by index.
    interrupted: Box<[(u32, u32, u32)]>,
    names: SymbolAliases,
}

#[derive(Clone, Copy, Debug)]
struct SymbolRange {
    start: u32,
    end: u32,
    name: NameRef,
}

impl SymbolTable {
    /// Returns the function that contains `address`; `None` in holes, never a neighbour.
    pub fn lookup(&self, address: Svma) -> Option<SymbolRef> {
        let at = u32::try_from(address.0.checked_sub(self.base)?).ok()?;
        let index = self.ranges.partition_point(|range| range.start <= at).checked_sub(1)?;
        let range = self.ranges.get(index).filter(|range| at < range.end)?;
        let interrupted = self.interrupted.binary_search_by_key(&(index as u32), |(index, ..)| *index);
        let (start, size) = match interrupted.ok().and_then(|found| self.interrupted.get(found)) {
            Some((_, start, size)) => (*start, *size),
            None => (range.start, range.end - range.start),
        };
        let start = Svma(self.base + u64::from(start));
        Some(SymbolRef { start, size: u64::from(size), name: range.name })
    }

    /// Returns the addresses at which functions, or parts of them, begin.
    pub(crate) fn starts(&self) -> impl Iterator<Item = Svma> {
        self.ranges.iter().map(|range| Svma(self.base + u64::from(range.start)))
    }

    /// Reads the name of a function that [`Self::lookup`] found from `source`. That must be the
    /// file that this table was loaded from; of two, [`SymbolRef::is_dynamic`] selects one.
    ///
    /// The name is as the file has it: mangled. Bytes that aren't UTF-8 are replaced, and a name
    /// longer than 64 KiB is cut. `None` for a function without a name.
    ///
    /// # Errors
    /// [`ElfError::Read`] where the file doesn't give the bytes.
    pub fn name(&self, found: SymbolRef, source: &impl ByteSource) -> Result<Option<String>, ElfError> {
        self.names.read(found.name, source)
    }

    /// Returns the range of its file with the names of `.symtab`.
    pub(crate) fn symtab_names(&self) -> std::ops::Range<u64> {
        self.names.symtab_names()
    }

    /// Returns the number of ranges that a lookup distinguishes.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.ranges)
            + size_of_val(&*self.interrupted)
            + self.names.size_bytes()
    }
}

/// Addresses from `start` up to and without `end`, counted from the table's base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRange {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Makes a table of functions that may lie inside each other: where they do, the one that starts
/// last has the bytes.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    base: u64,
    ranges: Vec<SymbolRange>,
    interrupted: Vec<(u32, u32, u32)>,
    /// Functions that reach beyond `position`, the one that has the bytes there last.
    open: Vec<SymbolRange>,
    /// Address up to which ranges have been made.
    position: u32,
}

impl TableBuilder {
    /// Makes a builder. `base` is the address that others count from, `functions` the number to
    /// come.
    pub(crate) fn new(base: u64, functions: usize) -> Self {
        let ranges = Vec::with_capacity(functions);
        Self { base, ranges, interrupted: Vec::new(), open: Vec::new(), position: 0 }
    }

    /// Adds a function. They come sorted by start, and of the same start the largest first.
    pub(crate) fn push(&mut self, range: AddressRange, name: NameRef) {
        let AddressRange { start, end } = range;
        if start < end {
            self.make_ranges_up_to(start);
            self.open.push(SymbolRange { start, end, name });
        }
    }

    pub(crate) fn finish(mut self, names: SymbolAliases) -> SymbolTable {
        self.make_ranges_up_to(u32::MAX);
        let (ranges, interrupted) = (self.ranges.into(), self.interrupted.into());
        SymbolTable { base: self.base, ranges, interrupted, names }
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

    fn make_range(&mut self, function: SymbolRange, end: u32) {
        let start = self.position.max(function.start);
        if (start, end) != (function.start, function.end) {
            let size = function.end - function.start;
            self.interrupted.push((self.ranges.len() as u32, function.start, size));
        }
        self.ranges.push(SymbolRange { start, end, ..function });
        self.position = end;
    }
}
