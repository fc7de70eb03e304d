//! Function symbols of a file.
//!
//! A lookup answers only with a function that contains the address: symbols have sizes, and what no symbol covers is a
//! hole. Which symbols count as functions:
//! - `STT_FUNC` and `STT_GNU_IFUNC` (whose code is the resolver's), and `STT_NOTYPE`, which hand-written assembly
//!   leaves on its labels; all only where they lie in a section of code;
//! - where one lies inside another, the inner one has its bytes and the outer one the rest;
//! - of several names for the same bytes, the one that people know: [`Candidate::preference`];
//! - a symbol without a size, in assembly, reaches to the next symbol of the same section, and is only a label where a
//!   function with a size covers it. In `.dynsym` it is left out: the functions between it and the next symbol
//!   are missing there, and would all get its name.

use std::cmp::Reverse;

use object::LittleEndian as Le;
use object::elf::{self, Sym64};
use object::pod;

use crate::native::elf::{ElfError, ElfFile, Section, c_string};
use crate::native::source::ByteSource;
use crate::native::symbols_table::{Range, TableBuilder};

pub use crate::native::symbols_table::{SymbolRef, SymbolTable};

/// Largest symbol table that is read, in bytes: 1.4 million symbols. JDK 17's libjvm has 58,000.
const MAX_SYMBOL_BYTES: u64 = 32 << 20;
/// Largest string table that is read, in bytes.
const MAX_STRING_BYTES: u64 = 64 << 20;
/// Symbols that are read at once.
const PIECE: u64 = 16 << 10;
/// How far a symbol without a size reaches at most, in bytes: behind that it isn't believed to be one function.
const MAX_UNSIZED: u64 = 64 << 10;

impl SymbolTable {
    /// Reads the symbol tables of `file`.
    ///
    /// # Errors
    /// [`ElfError`] where a table can't be read or is too large. A stripped file has an empty table, which is no
    /// error.
    pub fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Self, ElfError> {
        let code = CodeSections::of(file.sections());
        let mut strings = Vec::new();
        let mut candidates = Vec::new();
        for (table, kind) in [elf::SHT_SYMTAB, elf::SHT_DYNSYM].into_iter().enumerate() {
            strings.push(Vec::new());
            let found = file.sections().iter().find(|s| s.kind == kind.0 && !s.no_bits);
            let Some(symbols) = found else { continue };
            strings[table] = read_strings(file, symbols)?;
            read_symbols(file, symbols, &mut |symbol| {
                candidates.extend(Candidate::new(symbol, table as u8, &strings[table], &code));
            })?;
        }
        let name_of = |c: &Candidate| name(&strings[usize::from(c.table)], c.name);
        candidates.sort_unstable_by(|a, b| {
            let order = |c: &Candidate| (c.start, Reverse(c.size));
            let by_name = || a.preference(name_of(a)).cmp(&b.preference(name_of(b)));
            order(a).cmp(&order(b)).then_with(by_name)
        });
        candidates.dedup_by_key(|c| (c.start, c.size));
        give_sizes(&mut candidates, &code);
        let mut builder = TableBuilder::default();
        for candidate in &candidates {
            let range = Range { start: candidate.start, end: candidate.start + u64::from(candidate.size) };
            builder.push(range, name_of(candidate))?;
        }
        Ok(builder.finish())
    }
}

fn read_strings<S: ByteSource>(file: &ElfFile<S>, symbols: &Section) -> Result<Vec<u8>, ElfError> {
    let strings = file.sections().get(symbols.link as usize);
    let strings = strings.filter(|s| s.kind == elf::SHT_STRTAB.0);
    let strings = strings.ok_or_else(|| ElfError::malformed(&symbols.name, "has no string table"))?;
    file.read(strings, MAX_STRING_BYTES)
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
    let entry = size_of::<Sym64<Le>>() as u64;
    let whole = section.size - section.size % entry;
    for offset in (0..whole).step_by((PIECE * entry) as usize) {
        let bytes = file.read_piece(section, offset, (PIECE * entry).min(whole - offset))?;
        let symbols = pod::slice_from_all_bytes::<Sym64<Le>>(&bytes);
        let symbols =
            symbols.map_err(|()| ElfError::malformed(&section.name, "not a whole number of symbols"))?;
        symbols.iter().for_each(&mut *each);
    }
    Ok(())
}

/// The bytes of a name: bounded, because a hostile string table may hold one string without an end.
fn name(strings: &[u8], start: u32) -> &[u8] {
    const MAX_NAME: usize = 16 << 10;
    let start = start as usize;
    let end = strings.len().min(start.saturating_add(MAX_NAME));
    c_string(&strings[..end], start)
}

/// A symbol that may be a function.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: u64,
    /// Zero where the file states none and [`give_sizes`] hasn't yet. Functions of more than 4 GiB are cut.
    size: u32,
    /// The file states the size.
    sized: bool,
    name: u32,
    table: u8,
    function: bool,
    bind: u8,
}

impl Candidate {
    fn new(symbol: &Sym64<Le>, table: u8, strings: &[u8], code: &CodeSections) -> Option<Self> {
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
        let end = code.end_behind(start)?;
        if size == 0 && table != 0 {
            return None;
        }
        let name_start = symbol.st_name.get(Le);
        let text = name(strings, name_start);
        // Labels of compilers and of the annobin plugin of Fedora, which marks the ends of functions with them.
        if text.is_empty() || text.starts_with(b".L") || text.starts_with(b".annobin") {
            return None;
        }
        let size = u32::try_from(size.min(end - start)).unwrap_or(u32::MAX);
        Some(Self {
            start,
            size,
            sized: size != 0,
            name: name_start,
            table,
            function,
            bind: symbol.st_info.st_bind().0,
        })
    }

    /// Sorts the better name first, of names for the same bytes: functions before labels, `.symtab` before `.dynsym`,
    /// `malloc` before `__libc_malloc`, global before weak before local, short before long.
    fn preference<'a>(&self, name: &'a [u8]) -> impl Ord + use<'a> {
        let underscores = name.iter().take_while(|byte| **byte == b'_').count();
        let bind = match elf::SymbolBind(self.bind) {
            elf::STB_GLOBAL => 0,
            elf::STB_WEAK => 1,
            _ => 2,
        };
        (!self.function, self.table, underscores, bind, name.len(), name)
    }
}

/// Gives symbols without a size the bytes up to the next symbol or their section's end; drops those that a function
/// with a size covers. Symbols come sorted by start, of the same start the largest first.
fn give_sizes(candidates: &mut Vec<Candidate>, code: &CodeSections) {
    let (mut next_start, mut last_start) = (None, None);
    for candidate in candidates.iter_mut().rev() {
        let start = candidate.start;
        if last_start.is_some_and(|last| last > start) {
            next_start = last_start;
        }
        last_start = Some(start);
        if !candidate.sized {
            let section_end = code.end_behind(start).unwrap_or(start);
            let end = section_end.min(next_start.unwrap_or(u64::MAX)).min(start.saturating_add(MAX_UNSIZED));
            candidate.size = end.saturating_sub(start) as u32;
        }
    }
    let mut covered_to = 0;
    candidates.retain(|candidate| {
        if candidate.sized {
            covered_to = covered_to.max(candidate.start + u64::from(candidate.size));
            return true;
        }
        candidate.start >= covered_to && candidate.size > 0
    });
}

/// Where the sections of code are.
struct CodeSections {
    /// Start and end, sorted by start.
    ranges: Vec<(u64, u64)>,
}

impl CodeSections {
    fn of(sections: &[Section]) -> Self {
        // In a separate debug file sections of code have no bytes, but the right addresses all the same.
        let code = sections.iter().filter(|s| s.executable);
        let mut ranges: Vec<_> = code.map(|s| (s.address.0, s.address.0.saturating_add(s.size))).collect();
        ranges.sort_unstable();
        Self { ranges }
    }

    /// The end of the section of code that contains `address`.
    fn end_behind(&self, address: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        let (_, end) = self.ranges[..after].last()?;
        (address < *end).then_some(*end)
    }
}
