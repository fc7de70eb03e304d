//! The names of each function of a file, and which of several the profile shows.
//!
//! All names of a large program together take tens of megabytes, of which a profile needs a few
//! kilobytes. So only their positions are kept: four bytes for each.

use super::string_table::{OFFSET_BITS, StringTable, is_useful};
use crate::native::byte_source::ByteSource;
use crate::native::elf::ElfError;

/// The other bits of a word select the table.
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
/// Longest part of a name that is read, in bytes. Names of C++ templates have some thousand.
const MAX_NAME: u64 = 64 << 10;
/// Most names for the same bytes among which one is chosen. A linker that folds identical code may
/// give thousands.
const MAX_ALIASES: usize = 1024;

/// Reference to the names of a function, valid for the table that it came from.
///
/// The highest bit is the string table's number, the next one distinguishes an offset in that table
/// from an index of aliases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameRef(u32);

impl NameRef {
    const SEVERAL: u32 = 1 << 30;

    fn new(table: usize, several: bool, value: u32) -> Self {
        let several = if several { Self::SEVERAL } else { 0 };
        Self((table as u32) << 31 | several | value & OFFSET_MASK)
    }

    pub(crate) fn table(self) -> usize {
        (self.0 >> 31) as usize
    }

    fn several(self) -> bool {
        self.0 & Self::SEVERAL != 0
    }

    fn value(self) -> u32 {
        self.0 & OFFSET_MASK
    }
}

/// One of several names. The highest bit marks the last one of a function, the next two are the
/// rank of its binding.
#[derive(Clone, Copy, Debug)]
struct Alias(u32);

impl Alias {
    const LAST: u32 = 1 << 31;

    fn new(bind: u8, offset: u32) -> Self {
        Self(u32::from(bind & 3) << OFFSET_BITS | offset & OFFSET_MASK)
    }

    fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// Returns the rank of the binding; zero is the best.
    fn bind(self) -> u32 {
        (self.0 & !Self::LAST) >> OFFSET_BITS
    }

    fn offset(self) -> u32 {
        self.0 & OFFSET_MASK
    }
}

/// Positions of all names of a file.
#[derive(Debug, Default)]
pub(crate) struct SymbolAliases {
    tables: [StringTable; 2],
    aliases: Vec<Alias>,
}

impl SymbolAliases {
    /// Makes an empty list. `tables` are those of `.symtab` and `.dynsym`.
    pub(crate) fn new(tables: [StringTable; 2]) -> Self {
        Self { tables, aliases: Vec::new() }
    }

    /// Adds the names of a function, all from the same table: the rank of each one's binding, and
    /// its offset. Those with the better rank come first.
    pub(crate) fn add(&mut self, table: usize, names: impl ExactSizeIterator<Item = (u8, u32)>) -> NameRef {
        let (several, index) = (names.len() > 1, self.aliases.len());
        let mut names = names.take(MAX_ALIASES).map(|(bind, offset)| Alias::new(bind, offset));
        if !several {
            return NameRef::new(table, false, names.next().map_or(0, Alias::offset));
        }
        self.aliases.extend(names);
        if let Some(last) = self.aliases.last_mut() {
            last.0 |= Alias::LAST;
        }
        NameRef::new(table, true, index as u32)
    }

    /// Returns the offsets in the file of `.symtab`.
    pub(crate) fn symtab_names(&self) -> std::ops::Range<u64> {
        let StringTable { offset, size } = self.tables[0];
        offset.0..offset.0 + size
    }

    pub(crate) fn shrink(&mut self) {
        self.aliases.shrink_to_fit();
    }

    /// Bytes of memory held beside the value itself.
    pub(crate) fn size_bytes(&self) -> usize {
        self.aliases.capacity() * size_of::<Alias>()
    }

    /// Reads the best of the names; `None` if no name is useful.
    pub(crate) fn read(&self, name: NameRef, source: &impl ByteSource) -> Result<Option<String>, ElfError> {
        let table = self.tables.get(name.table()).copied().unwrap_or_default();
        let mut best = None;
        if name.several() {
            let aliases = self.aliases.get(name.value() as usize..).unwrap_or_default();
            for alias in aliases {
                let text = table.read(source, alias.offset(), MAX_NAME)?;
                let better =
                    |best: &(u32, Vec<u8>)| preference(alias.bind(), &text) < preference(best.0, &best.1);
                if is_useful(&text) && best.as_ref().is_none_or(better) {
                    best = Some((alias.bind(), text));
                }
                if alias.is_last() {
                    break;
                }
            }
        } else {
            best = Some((0, table.read(source, name.value(), MAX_NAME)?)).filter(|(_, text)| is_useful(text));
        }
        Ok(best.map(|(_, text)| String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Sorts the better name first: `malloc` before `__libc_malloc`, global before weak before local,
/// short before long.
fn preference(bind: u32, name: &[u8]) -> impl Ord + use<'_> {
    let underscores = name.iter().take_while(|byte| **byte == b'_').count();
    (underscores, bind, name.len(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FileOffset;

    fn names_of(file: &[u8]) -> SymbolAliases {
        let table = StringTable { offset: FileOffset(4), size: file.len() as u64 - 4 };
        SymbolAliases::new([StringTable::default(), table])
    }

    fn read(file: &[u8], offsets: &[(u8, u32)]) -> Option<String> {
        let mut names = names_of(file);
        names.add(1, [(2, 9), (2, 9)].into_iter());
        let name = names.add(1, offsets.iter().copied());
        names.add(1, [(0, 1), (0, 1)].into_iter());
        names.read(name, &file).expect("inside the file")
    }

    #[test]
    fn the_name_that_people_know_is_chosen_when_it_is_read() {
        let file = b"ELF!\0__libc_malloc\0malloc\0mallok\0.Lhere\0";
        let (libc_malloc, malloc, mallok, label) = (1, 15, 22, 29);
        assert_eq!(read(file, &[(0, libc_malloc), (1, malloc)]).as_deref(), Some("malloc"));
        assert_eq!(read(file, &[(0, mallok), (1, malloc)]).as_deref(), Some("mallok"));
        assert_eq!(read(file, &[(0, malloc), (0, mallok)]).as_deref(), Some("malloc"));
        assert_eq!(read(file, &[(0, label), (1, libc_malloc)]).as_deref(), Some("__libc_malloc"));
        assert_eq!(read(file, &[(0, malloc + 3)]).as_deref(), Some("loc"), "names share tails");
        for nothing in [0, label, label + 6, 4000, OFFSET_MASK] {
            assert_eq!(read(file, &[(0, nothing)]), None, "{nothing}");
            assert_eq!(read(file, &[(0, nothing), (0, nothing)]), None, "{nothing}");
        }
    }

    #[test]
    fn names_of_any_length_are_read_up_to_a_limit() {
        for len in [1, 255, 256, 257, 1023, 1024, 5000, 65_536] {
            let text = "x".repeat(len);
            let ended = format!("ELF!\0{text}\0behind");
            assert_eq!(read(ended.as_bytes(), &[(0, 1)]).map(|name| name.len()), Some(len));
            let at_the_end = format!("ELF!\0{text}");
            assert_eq!(read(at_the_end.as_bytes(), &[(0, 1)]), Some(text));
        }
        let endless = "x".repeat(1 << 20);
        assert_eq!(read(endless.as_bytes(), &[(0, 1)]).map(|name| name.len() as u64), Some(MAX_NAME));
    }

    #[test]
    fn a_file_that_was_cut_short_is_an_error() {
        let file = b"ELF!\0name\0";
        let mut names = names_of(file);
        let name = names.add(1, [(0, 1)].into_iter());
        assert!(matches!(names.read(name, &&file[..6]), Err(ElfError::Read { .. })));
    }

    #[test]
    fn of_thousands_of_names_only_some_are_read() {
        let file = [&b"ELF!\0a\0"[..], &b"b\0".repeat(9999)].concat();
        let mut names = names_of(&file);
        let offsets: Vec<_> = (0..10_000).map(|at| (0, 1 + 2 * at)).collect();
        let name = names.add(1, offsets.into_iter());
        assert_eq!(names.aliases.len(), MAX_ALIASES);
        assert_eq!(names.read(name, &&*file).expect("inside the file").as_deref(), Some("a"));
    }
}
