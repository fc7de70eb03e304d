//! Function symbols of a file.
//!
//! A lookup returns only a function that contains the address: symbols have sizes, and addresses
//! that no symbol covers are holes. These symbols count as functions:
//! - `STT_FUNC` and `STT_GNU_IFUNC` (whose code is the resolver's), and `STT_NOTYPE`, which
//!   hand-written assembly leaves on its labels; all only where they lie in a section of code;
//! - where one lies inside another, the inner one has its bytes and the outer one the rest;
//! - of several names for the same bytes, the best known one, which is chosen when it is read;
//! - a symbol without a size, in assembly, reaches to the next symbol of the same section, and is
//!   only a label where a function with a size covers it. In `.dynsym` it is left out: the
//!   functions between it and the next symbol are missing there, and would all get its name.

pub(crate) mod address_table;
pub(crate) mod aliases;
pub mod demangle;
pub(crate) mod string_table;

use std::cmp::Reverse;

use object::LittleEndian as Le;
use object::elf::{self, Sym64};
use object::pod;
use smallvec::SmallVec;

use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section};
use crate::native::go::program::GoProgram;
use crate::native::symbols::address_table::{AddressRange, TableBuilder};
use crate::native::symbols::aliases::SymbolAliases;
use crate::native::symbols::string_table::StringTable;

pub use crate::native::symbols::address_table::{SymbolRef, SymbolTable};
use crate::types::FileOffset;

/// Largest symbol table that is read, in bytes: 2.8 million symbols. JDK 17's libjvm has 58,000.
/// While they are sorted each that may be a function takes 16 bytes, and then 12 in the table.
const MAX_SYMBOL_BYTES: u64 = 64 << 20;
/// Bytes of a symbol in the file.
const ENTRY: u64 = size_of::<Sym64<Le>>() as u64;
/// Number of symbols that are read at once.
const PIECE: u64 = 4 << 10;
/// The longest reach of a symbol without a size, in bytes: beyond it, the code is hardly one
/// function any more.
const MAX_UNSIZED: u32 = 64 << 10;

impl SymbolTable {
    /// Reads the symbol tables of `file`, without the names.
    ///
    /// # Errors
    /// [`ElfError`] where a table can't be read or is too large. A stripped file has an empty
    /// table, which is no error.
    pub fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Self, ElfError> {
        Self::load_with(file, file)
    }

    /// Reads the symbol tables of a stripped file: `.symtab` is that of its debug file, whose
    /// addresses must be the same; `.dynsym` is its own. [`SymbolRef::is_dynamic`] selects the file
    /// for a name.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_with<S: ByteSource, D: ByteSource>(
        file: &ElfFile<S>,
        debug: &ElfFile<D>,
    ) -> Result<Self, ElfError> {
        let code = match file.sections() {
            [] => CodeSections::of(debug.sections()),
            sections => CodeSections::of(sections),
        };
        let mut candidates = Vec::new();
        let strings = [
            read_table(debug, elf::SHT_SYMTAB, 0, &code, &mut candidates)?,
            read_table(file, elf::SHT_DYNSYM, 1, &code, &mut candidates)?,
        ];
        let known = |table, name| match table {
            0 => strings[0].has_useful_name(debug.source(), name),
            _ => strings[1].has_useful_name(file.source(), name),
        };
        finish(candidates, strings, &code, known)
    }

    /// Reads the functions of a stripped Go program from its own table, which takes the place of
    /// `.symtab`; `None` if it has none that can be parsed.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_go<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<Self>, ElfError> {
        let Some(program) = GoProgram::open(file)? else { return Ok(None) };
        let (table, names) = (&program.table, program.table.names());
        let place = FileOffset(program.table_offset.0 + names.start);
        let Some(go) = StringTable::at(place, names.end - names.start) else { return Ok(None) };
        let code = CodeSections::of(file.sections());
        let functions =
            table.functions().filter(|function| program.has_code(function)).filter_map(|function| {
                let start = program.address(function.start).0.checked_sub(code.base())?;
                let end = table.steps(&function).last().map_or(function.start, |(end, _)| *end);
                Some(SymbolCandidate {
                    start: u32::try_from(start).ok()?,
                    size: u32::try_from(end - function.start).ok()?,
                    name: u32::try_from(function.name_at - names.start).ok()?,
                    rank: Rank::new(true, 0, elf::STB_LOCAL),
                    sized: true,
                })
            });
        let mut candidates: Vec<_> = functions.collect();
        program.check()?;
        let dynamic = read_table(file, elf::SHT_DYNSYM, 1, &code, &mut candidates)?;
        let strings = [go, dynamic];
        let known = |table: usize, name| strings[table & 1].has_useful_name(file.source(), name);
        finish(candidates, strings, &code, known).map(Some)
    }
}

/// Builds the table from all candidates. `known` is that of [`drop_compiler_labels`].
fn finish(
    mut candidates: Vec<SymbolCandidate>,
    strings: [StringTable; 2],
    code: &CodeSections,
    known: impl Fn(usize, u32) -> Result<bool, ElfError>,
) -> Result<SymbolTable, ElfError> {
    candidates.sort_unstable_by_key(|c| (c.start, Reverse(c.size), c.rank, c.name));
    drop_covered(&mut candidates);
    drop_compiler_labels(&mut candidates, known)?;
    assign_sizes(&mut candidates, code);
    Ok(table_of(candidates, strings, code.base()))
}

/// Adds possible functions in the symbol table of this kind; returns its string table.
fn read_table<S: ByteSource>(
    file: &ElfFile<S>,
    kind: elf::SectionType,
    table: usize,
    code: &CodeSections,
    candidates: &mut Vec<SymbolCandidate>,
) -> Result<StringTable, ElfError> {
    let found = file.sections().iter().find(|s| s.kind == kind.0 && !s.no_bits);
    let Some(symbols) = found else { return Ok(StringTable::default()) };
    let strings = StringTable::of(file, symbols)?;
    // All at once, so that growing doesn't copy; what isn't used is never touched.
    candidates.reserve_exact((symbols.size.min(MAX_SYMBOL_BYTES) / ENTRY) as usize);
    read_symbols(file, symbols, &mut |symbol| {
        candidates.extend(SymbolCandidate::new(symbol, table, strings, code));
    })?;
    Ok(strings)
}

/// Number of candidates whose memory is freed at once, while the table grows.
const FREE_AFTER: usize = 64 << 10;

/// Builds the table. `candidates` come sorted, so that names for the same bytes are side by side.
fn table_of(mut candidates: Vec<SymbolCandidate>, strings: [StringTable; 2], base: u64) -> SymbolTable {
    let mut names = SymbolAliases::new(strings);
    let same_bytes = |a: &SymbolCandidate, b: &SymbolCandidate| (a.start, a.size) == (b.start, b.size);
    let functions = candidates.chunk_by(same_bytes).count();
    let mut builder = TableBuilder::new(base, functions);
    candidates.reverse();
    while let Some(best) = candidates.last().copied() {
        let same = candidates.iter().rev().take_while(|it| same_bytes(it, &best)).count();
        let group = candidates.iter().rev().take(same).take_while(|it| it.rank.group() == best.rank.group());
        let offsets: SmallVec<[_; 4]> = group.map(|it| (it.rank.bind(), it.name)).collect();
        let name = names.add(best.rank.table(), offsets.into_iter());
        let range = AddressRange { start: best.start, end: best.start.saturating_add(best.size) };
        builder.push(range, name);
        candidates.truncate(candidates.len() - same);
        if candidates.capacity() - candidates.len() >= FREE_AFTER {
            candidates.shrink_to_fit();
        }
    }
    names.shrink();
    builder.finish(names)
}

fn read_symbols<S: ByteSource>(
    file: &ElfFile<S>,
    section: &Section,
    each: &mut impl FnMut(&Sym64<Le>),
) -> Result<(), ElfError> {
    if section.size > MAX_SYMBOL_BYTES {
        let (what, size, limit) = (section.name.clone(), section.size, MAX_SYMBOL_BYTES);
        return Err(ElfError::TooLarge { what, size, limit });
    }
    let whole = section.size - section.size % ENTRY;
    for offset in (0..whole).step_by((PIECE * ENTRY) as usize) {
        let bytes = file.read_piece(section, offset, (PIECE * ENTRY).min(whole - offset))?;
        let symbols = pod::slice_from_all_bytes::<Sym64<Le>>(&bytes);
        let symbols =
            symbols.map_err(|()| ElfError::malformed(&section.name, "not a whole number of symbols"))?;
        symbols.iter().for_each(&mut *each);
    }
    Ok(())
}

/// A symbol that may be a function.
#[derive(Clone, Copy, Debug)]
struct SymbolCandidate {
    /// Start address, counted from [`CodeSections::base`].
    start: u32,
    /// Size; zero where the file states none and [`assign_sizes`] hasn't set it yet. Functions of
    /// more than 4 GiB are cut.
    size: u32,
    /// Offset of the name in the string table.
    name: u32,
    rank: Rank,
    /// True if the file states the size.
    sized: bool,
}

impl SymbolCandidate {
    fn new(symbol: &Sym64<Le>, table: usize, strings: StringTable, code: &CodeSections) -> Option<Self> {
        let section = symbol.st_shndx.get(Le);
        if section == elf::SHN_UNDEF || section == elf::SHN_ABS || section == elf::SHN_COMMON {
            return None;
        }
        let kind = symbol.st_info.st_type();
        let function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
        if !function && kind != elf::STT_NOTYPE {
            return None;
        }
        let (start, size) = (symbol.st_value.get(Le), symbol.st_size.get(Le));
        let end = code.end_of_section_at(start)?;
        if size == 0 && table != 0 {
            return None;
        }
        let name = symbol.st_name.get(Le);
        if !strings.has(name) {
            return None;
        }
        Some(Self {
            start: u32::try_from(start.checked_sub(code.base())?).ok()?,
            size: u32::try_from(size.min(end - start)).unwrap_or(u32::MAX),
            name,
            rank: Rank::new(function, table, symbol.st_info.st_bind()),
            sized: size != 0,
        })
    }

    fn end(&self) -> u32 {
        self.start.saturating_add(self.size)
    }
}

/// The rank of a name before it is read; the better one is less: functions before labels,
/// `.symtab` before `.dynsym`, global before weak before local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u8);

impl Rank {
    fn new(function: bool, table: usize, bind: elf::SymbolBind) -> Self {
        let bind = match bind {
            elf::STB_GLOBAL => 0,
            elf::STB_WEAK => 1,
            _ => 2,
        };
        Self(u8::from(!function) << 3 | (table as u8 & 1) << 2 | bind)
    }

    fn is_function(self) -> bool {
        self.0 & 8 == 0
    }

    fn table(self) -> usize {
        usize::from(self.0 >> 2 & 1)
    }

    fn bind(self) -> u8 {
        self.0 & 3
    }

    /// Returns the group of a name: those of a better group are preferred whatever their text is.
    fn group(self) -> u8 {
        self.0 >> 2
    }
}

/// Drops symbols without a size that a function with a size covers. Symbols come sorted by start,
/// of the same start the largest first.
fn drop_covered(candidates: &mut Vec<SymbolCandidate>) {
    let mut covered_to = 0;
    candidates.retain(|candidate| {
        if candidate.sized {
            covered_to = covered_to.max(candidate.end());
        }
        candidate.sized || candidate.start >= covered_to
    });
}

/// Drops compilers' labels, so that they don't cut functions before them short. There are few
/// labels: their names can be read one by one.
fn drop_compiler_labels(
    candidates: &mut Vec<SymbolCandidate>,
    has_useful_name: impl Fn(usize, u32) -> Result<bool, ElfError>,
) -> Result<(), ElfError> {
    let mut result = Ok(());
    candidates.retain(|candidate| {
        if candidate.rank.is_function() || result.is_err() {
            return true;
        }
        let known = has_useful_name(candidate.rank.table(), candidate.name);
        known.unwrap_or_else(|error| {
            result = Err(error);
            true
        })
    });
    result
}

/// Gives symbols without a size the bytes up to the next symbol or their section's end. Symbols
/// come sorted by start.
fn assign_sizes(candidates: &mut [SymbolCandidate], code: &CodeSections) {
    let (mut next_start, mut last_start) = (None, None);
    for candidate in candidates.iter_mut().rev() {
        let start = candidate.start;
        if last_start.is_some_and(|last| last > start) {
            next_start = last_start;
        }
        last_start = Some(start);
        if !candidate.sized {
            let address = code.base() + u64::from(start);
            let section_size = code.end_of_section_at(address).map_or(0, |end| end - address);
            let section_size = u32::try_from(section_size).unwrap_or(u32::MAX);
            let to_next = next_start.map_or(u32::MAX, |next| next - start);
            candidate.size = MAX_UNSIZED.min(section_size).min(to_next);
        }
    }
}

/// The address ranges of the sections of code.
struct CodeSections {
    /// Start and end of each, sorted by start.
    ranges: Vec<(u64, u64)>,
}

impl CodeSections {
    fn of(sections: &[Section]) -> Self {
        // In a separate debug file sections of code have no bytes, but the right addresses all the
        // same.
        let code = sections.iter().filter(|s| s.executable);
        let mut ranges: Vec<_> = code.map(|s| (s.address.0, s.address.0.saturating_add(s.size))).collect();
        ranges.sort_unstable();
        Self { ranges }
    }

    /// Returns the lowest address of code.
    fn base(&self) -> u64 {
        self.ranges.first().map_or(0, |(start, _)| *start)
    }

    /// Returns the end of the section of code that contains `address`.
    fn end_of_section_at(&self, address: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        let (_, end) = self.ranges[..after].last()?;
        (address < *end).then_some(*end)
    }
}
