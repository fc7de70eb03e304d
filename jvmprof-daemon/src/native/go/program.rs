//! Go programs: their table of functions, and the code that it describes.

use smallvec::SmallVec;

use super::pclntab::{GoFunction, MAX_TABLE, Pclntab, SECTIONS};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile};
use crate::native::paged_reader::PagedReader;
use crate::types::{FileOffset, Svma};

/// Largest section of code in which functions are looked up, in bytes.
const MAX_CODE: u64 = 512 << 20;

/// A Go program whose table matches its code: wrong names are worse than none.
pub(crate) struct GoProgram<'f, S> {
    pub(crate) table: Pclntab<'f, S>,
    /// The table's place in the file.
    pub(crate) table_offset: FileOffset,
    /// The number that is added to the table's addresses to get the file's own.
    pub(crate) base: u64,
    code: PagedReader<&'f S>,
    code_start: u64,
}

impl<'f, S: ByteSource> GoProgram<'f, S> {
    /// Opens the table of `file`; `None` if it has none, or one that can't be parsed or doesn't
    /// match the code.
    ///
    /// # Errors
    /// [`ElfError`] where it, or the code, can't be read or is too large.
    pub(crate) fn open(file: &'f ElfFile<S>) -> Result<Option<Self>, ElfError> {
        let Some(section) = SECTIONS.iter().find_map(|name| file.section(name)) else { return Ok(None) };
        let Some(text) = file.section(".text").filter(|text| text.executable) else { return Ok(None) };
        let (table_offset, table_range) = (file.place(section)?, file.range(section, MAX_TABLE)?);
        let code = PagedReader::new(file.source(), "code of a Go program", file.range(text, MAX_CODE)?, 4);
        let Some(table) = Pclntab::parse(file.source(), table_range) else { return Ok(None) };
        let program = Self { table, table_offset, base: 0, code, code_start: text.address.0 };
        let base = program.find_base();
        program.check()?;
        Ok(base.map(|base| Self { base, ..program }))
    }

    /// Returns the file's own address for an address of the table.
    pub(crate) fn address(&self, in_table: u64) -> Svma {
        Svma(self.base.wrapping_add(in_table))
    }

    /// Returns the code at an address of the file: `length` bytes, or as many as there are.
    pub(crate) fn code_at(&self, address: Svma, length: usize) -> SmallVec<[u8; 32]> {
        let mut code = SmallVec::from_elem(0, length);
        let at = address.0.checked_sub(self.code_start);
        let count = at.map_or(0, |at| self.code.read_up_to(at, &mut code));
        code.truncate(count);
        code
    }

    /// Returns true if all the code of a function, up to the next one, is in the file.
    pub(crate) fn has_code(&self, function: &GoFunction) -> bool {
        let start = self.address(function.start).0.checked_sub(self.code_start);
        let end = start.and_then(|start| start.checked_add(function.limit - function.start));
        end.is_some_and(|end| end <= self.code.len())
    }

    /// Returns whether all reads succeeded.
    ///
    /// # Errors
    /// The first read that failed: results until then are incomplete.
    pub(crate) fn check(&self) -> Result<(), ElfError> {
        self.table.check().and_then(|()| self.code.check())
    }

    fn find_base(&self) -> Option<u64> {
        // A wrapper has the same name.
        let [exits, bodies] = self.table.named([EXIT, EXIT_BODY]);
        let exit = exits.first()?.start;
        let fits = |base: u64| self.is_exit(base.wrapping_add(exit), base, &bodies);
        if !self.table.is_relative() {
            return fits(0).then_some(0);
        }
        let stated = [self.table.stated_text(), Some(self.code_start)];
        stated.into_iter().flatten().find(|base| fits(*base)).or_else(|| {
            // Behind C's start code, in a program that another linker made.
            let places = (0..self.code.len()).step_by(ALIGNMENT).map(|at| self.code_start.wrapping_add(at));
            places.map(|at| at.wrapping_sub(exit)).find(|base| fits(*base))
        })
    }

    /// Returns true if the code at `address` is that of `runtime.goexit`: a `nop`, a call of
    /// `runtime.goexit1`, and a `nop` (go src/runtime/asm_amd64.s).
    fn is_exit(&self, address: u64, base: u64, bodies: &[GoFunction]) -> bool {
        let code = self.code_at(Svma(address), 7);
        let [0x90, 0xe8, offset @ .., 0x90] = code.first_chunk::<7>().unwrap_or(&[0; 7]) else {
            return false;
        };
        let target = address.wrapping_add(6).wrapping_add_signed(i32::from_le_bytes(*offset).into());
        bodies.iter().any(|body| body.start == target.wrapping_sub(base))
    }
}

const EXIT: &str = "runtime.goexit";
const EXIT_BODY: &str = "runtime.goexit1";
/// The least alignment of Go's functions, in bytes.
const ALIGNMENT: usize = 16;
