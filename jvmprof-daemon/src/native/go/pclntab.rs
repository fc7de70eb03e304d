//! `.gopclntab`: the table of functions of a Go program, which every one of them contains, stripped
//! or not.
//!
//! For each function it has the address, the name and, for each instruction, how far the stack
//! pointer has moved: the runtime itself walks stacks by it. Layouts of Go 1.2 to 1.26: go
//! src/internal/abi/symtab.go, src/debug/gosym/pclntab.go, src/runtime/symtab.go (`moduledata`,
//! `_func`), and these files' history.
//!
//! A large server's table has a hundred megabytes, so it is never in memory as a whole.

use std::ops::Range;

use smallvec::SmallVec;

use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfError;
use crate::native::paged_reader::PagedReader;

/// Largest table that is read, in bytes. Kubernetes' kubelet 1.35 has 24 MB.
pub(crate) const MAX_TABLE: u64 = 512 << 20;
/// Maximum number of functions: kubelet 1.35 has 90,000.
const MAX_FUNCTIONS: u64 = 4 << 20;
/// Maximum number of steps of the stack pointer of one function. Go's own tools have some hundred.
const MAX_STEPS: usize = 1 << 16;
/// Bytes of a function's record that are read.
const RECORD_BYTES: usize = 48;
/// Bytes of a name that are compared.
const MAX_NAME: usize = 32;

/// Sections that may hold the table.
pub(crate) const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

/// The layout of a table, by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PclntabLayout {
    /// Go 1.2 to 1.15: all offsets count from the table's start.
    Go12,
    /// Go 1.16 and 1.17: parts have offsets of their own.
    Go116,
    /// Go 1.18 and 1.19: addresses count from the start of the code.
    Go118,
    /// Go 1.20 on: function records contain their first line.
    Go120,
}

impl PclntabLayout {
    fn from_magic(magic: u32) -> Option<Self> {
        Some(match magic {
            0xffff_fffb => Self::Go12,
            0xffff_fffa => Self::Go116,
            0xffff_fff0 => Self::Go118,
            0xffff_fff1 => Self::Go120,
            _ => return None,
        })
    }

    fn has_offsets(self) -> bool {
        matches!(self, Self::Go118 | Self::Go120)
    }
}

/// A parsed table. Its parts are each read in order, at the same time.
#[derive(Debug)]
pub struct Pclntab<'s, S> {
    index: PagedReader<&'s S>,
    records: PagedReader<&'s S>,
    names: PagedReader<&'s S>,
    steps: PagedReader<&'s S>,
    layout: PclntabLayout,
    functions: u64,
    /// Offsets in the table: of names, of the stack pointer's steps, of the functions.
    names_at: u64,
    steps_at: u64,
    index_at: u64,
    /// The address in the header that addresses count from; zero for absolute ones, and where it
    /// isn't stated.
    stated_text: u64,
}

/// A function of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoFunction {
    /// Start address, from the start of the code, or absolute: see [`Pclntab::is_relative`].
    pub start: u64,
    /// Start of the next function, after padding.
    pub limit: u64,
    /// Offset of the name in the table.
    pub name_at: u64,
    /// The name and the bytes after it: a zero byte ends it.
    name: [u8; MAX_NAME],
    /// True if it writes the stack pointer in ways that its steps don't describe (Go 1.17 on).
    pub writes_sp: bool,
    steps_at: u64,
}

/// The address up to which a function has this many bytes of stack above its return address; the
/// number is negative where the return address itself has been popped.
pub type StackStep = (u64, i32);

impl<'s, S: ByteSource> Pclntab<'s, S> {
    /// Parses the table at `range` of `source`; `None` if it isn't one, or one of an unsupported
    /// version.
    pub fn parse(source: &'s S, range: Range<u64>) -> Option<Self> {
        let index = PagedReader::new(source, ".gopclntab", range, 2);
        let layout = PclntabLayout::from_magic(u32::from_le_bytes(index.bytes(0)?))?;
        // Padding, the least instruction's length, a pointer's size.
        if index.bytes(4)? != [0, 0, 1, 8] {
            return None;
        }
        let field = |number: u64| index.bytes(8 + 8 * number).map(u64::from_le_bytes);
        let functions = field(0).filter(|count| *count <= MAX_FUNCTIONS)?;
        let (stated_text, names_at, steps_at, index_at) = match layout {
            PclntabLayout::Go12 => (0, 0, 0, 16),
            PclntabLayout::Go116 => (0, field(2)?, field(5)?, field(6)?),
            PclntabLayout::Go118 | PclntabLayout::Go120 => (field(2)?, field(3)?, field(6)?, field(7)?),
        };
        let (records, names) = (index.with_pages(2), index.with_pages(8));
        // Functions with the same steps share them, wherever these are: by pages of 64 KiB a server
        // of 220,000 functions has its 12 MB of steps read fifty times over.
        let steps = index.with_small_pages(64);
        let table = Self {
            index,
            records,
            names,
            steps,
            layout,
            functions,
            names_at,
            steps_at,
            index_at,
            stated_text,
        };
        let size = table.index.len();
        let end = index_at.checked_add(functions.checked_mul(table.entry_size())?)?;
        (end <= size && names_at <= size && steps_at <= size).then_some(table)
    }

    /// Returns true if addresses count from the start of the code.
    pub fn is_relative(&self) -> bool {
        self.layout.has_offsets()
    }

    /// Returns the start of the code, if the table states it. A position-independent program is
    /// relocated, so that the file may not.
    pub fn stated_text(&self) -> Option<u64> {
        (self.stated_text != 0).then_some(self.stated_text)
    }

    /// Returns the offsets of the names in the table.
    pub fn names(&self) -> Range<u64> {
        self.names_at..self.names.len()
    }

    /// Returns all functions that are well-formed, in order of their addresses. One that overlaps
    /// an earlier one isn't.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction> {
        let mut end = 0;
        (0..self.functions).filter_map(|number| self.function(number)).filter(move |function| {
            let is_after = function.start >= end;
            end = if is_after { function.limit } else { end };
            is_after
        })
    }

    /// Returns the functions of each of these names, two at most: a second one may be a wrapper.
    pub fn named<const N: usize>(&self, names: [&str; N]) -> [SmallVec<[GoFunction; 2]>; N] {
        let mut found = [const { SmallVec::new_const() }; N];
        for function in self.functions() {
            let same_name = names.iter().position(|name| function.is(name));
            if let Some(found) = same_name.map(|index| &mut found[index]).filter(|found| found.len() < 2) {
                found.push(function);
            }
        }
        found
    }

    /// Returns the steps of a function's stack pointer, in order. They end where the function's
    /// code does, before padding, or where the table is malformed.
    pub fn steps(&self, function: &GoFunction) -> SmallVec<[StackStep; 16]> {
        let (mut steps, mut address, mut held) = (SmallVec::new(), function.start, -1i32);
        let mut varints = Varints::new(&self.steps, function.steps_at);
        while let Some((change, length)) = varints.decode().zip(varints.decode()) {
            // A change of zero ends the steps, unless it is the first; one without progress would
            // never end.
            if (change == 0 || length == 0) && !steps.is_empty() {
                break;
            }
            let change = if change & 1 != 0 { !(change >> 1) } else { change >> 1 };
            held = held.wrapping_add(change.cast_signed());
            address = address.saturating_add(length.into());
            if address > function.limit || !(-8..1 << 30).contains(&held) || steps.len() == MAX_STEPS {
                break;
            }
            steps.push((address, held));
        }
        steps
    }

    /// Returns whether all reads succeeded.
    ///
    /// # Errors
    /// The first read that failed.
    pub(crate) fn check(&self) -> Result<(), ElfError> {
        [&self.index, &self.records, &self.names, &self.steps].into_iter().try_for_each(PagedReader::check)
    }

    fn entry_size(&self) -> u64 {
        if self.layout.has_offsets() { 8 } else { 16 }
    }

    /// Returns the start of a function, and the offset of its record.
    fn entry(&self, number: u64) -> Option<(u64, u64)> {
        let at = self.index_at.checked_add(number * self.entry_size())?;
        if self.layout.has_offsets() {
            let [start, record] = *self.index.bytes::<8>(at)?.as_chunks::<4>().0 else { return None };
            Some((u32::from_le_bytes(start).into(), u32::from_le_bytes(record).into()))
        } else {
            let [start, record] = *self.index.bytes::<16>(at)?.as_chunks::<8>().0 else { return None };
            Some((u64::from_le_bytes(start), u64::from_le_bytes(record)))
        }
    }

    /// Returns the start of a function, or the end of the last one: the entry after the last has
    /// nothing else.
    fn start(&self, number: u64) -> Option<u64> {
        let at = self.index_at.checked_add(number * self.entry_size())?;
        if self.layout.has_offsets() {
            self.index.bytes(at).map(|bytes| u32::from_le_bytes(bytes).into())
        } else {
            self.index.bytes(at).map(u64::from_le_bytes)
        }
    }

    fn function(&self, number: u64) -> Option<GoFunction> {
        let ((start, record), limit) = (self.entry(number)?, self.start(number + 1)?);
        // Of Go 1.2 from the table's begin, else from the functions'.
        let base = if self.layout == PclntabLayout::Go12 { 0 } else { self.index_at };
        let record = base.checked_add(record)?;
        let mut buffer = [0; RECORD_BYTES];
        let count = self.records.read_up_to(record, &mut buffer);
        let bytes = &buffer[..count];
        let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
        // `entry` has four or eight bytes.
        let (own_start, fields) = match self.layout.has_offsets() {
            true => (word(0)?.into(), 4),
            false => (bytes.first_chunk().copied().map(u64::from_le_bytes)?, 8),
        };
        if own_start != start || limit <= start {
            return None;
        }
        let name_at = self.names_at.checked_add(word(fields)?.into())?;
        let steps_at = self.steps_at.checked_add(word(fields + 12)?.into())?;
        if name_at > self.names.len() || steps_at > self.steps.len() {
            return None;
        }
        let flag = match self.layout {
            PclntabLayout::Go12 => None,
            // funcID comes after deferreturn, pcsp, pcfile, pcln, npcdata and cuOffset, and
            // startLine.
            PclntabLayout::Go116 | PclntabLayout::Go118 => bytes.get(fields + 33),
            PclntabLayout::Go120 => bytes.get(fields + 37),
        };
        // What isn't there ends no name.
        let mut name = [u8::MAX; MAX_NAME];
        self.names.read_up_to(name_at, &mut name);
        let writes_sp = flag.is_some_and(|flag| flag & SP_WRITE != 0);
        Some(GoFunction { start, limit, name_at, name, writes_sp, steps_at })
    }
}

/// Varints of 32 bits, one after the other (go src/runtime/symtab.go, `readvarint`).
struct Varints<'r, S> {
    reader: &'r PagedReader<S>,
    /// The place after the bytes in `buffer`.
    at: u64,
    buffer: [u8; VARINT_BYTES],
    /// Bytes of the buffer that aren't decoded yet.
    left: Range<usize>,
}

/// Bytes that are read at once: those of most functions.
const VARINT_BYTES: usize = 32;

impl<'r, S: ByteSource> Varints<'r, S> {
    fn new(reader: &'r PagedReader<S>, at: u64) -> Self {
        Self { reader, at, buffer: [0; VARINT_BYTES], left: 0..0 }
    }

    /// Decodes the next one; `None` at the end of the part.
    fn decode(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..32).step_by(7) {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7f).wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        if self.left.is_empty() {
            let count = self.reader.read_up_to(self.at, &mut self.buffer);
            (self.at, self.left) = (self.at.checked_add(count as u64)?, 0..count);
        }
        self.left.next().map(|index| self.buffer[index])
    }
}

/// Value of `FuncFlagSPWrite` in go src/internal/abi/symtab.go.
const SP_WRITE: u8 = 2;

impl GoFunction {
    /// Returns true if this is its name, which has at most 31 bytes.
    pub fn is(&self, name: &str) -> bool {
        self.name.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table as Go 1.20 writes it, with functions at these addresses; the last address
    /// ends the last one.
    fn table(addresses: &[u32]) -> Vec<u8> {
        let count = addresses.len() as u64 - 1;
        let index = 8 + 8 * 8;
        let records = 8 * count + 4;
        let fields = [count, 0, 0, index, 0, 0, index, index];
        let mut bytes = [&0xffff_fff1_u32.to_le_bytes()[..], &[0, 0, 1, 8]].concat();
        bytes.extend(fields.map(u64::to_le_bytes).concat());
        for (number, address) in addresses.iter().enumerate() {
            bytes.extend(address.to_le_bytes());
            if (number as u64) < count {
                bytes.extend((records as u32 + 44 * number as u32).to_le_bytes());
            }
        }
        for address in &addresses[..count as usize] {
            bytes.extend(address.to_le_bytes());
            bytes.extend([0; 40]);
        }
        bytes
    }

    #[test]
    fn functions_that_overlap_others_are_left_out() {
        let starts = |addresses: &[u32]| {
            let bytes = &*table(addresses);
            let table = Pclntab::parse(&bytes, 0..bytes.len() as u64).expect("a table");
            table.functions().map(|function| (function.start, function.limit)).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[0, 16, 48, 64]), [(0, 16), (16, 48), (48, 64)]);
        // Each would be all of the code.
        assert_eq!(starts(&[0, 64, 0, 64, 0, 64, 80]), [(0, 64), (64, 80)]);
    }
}
