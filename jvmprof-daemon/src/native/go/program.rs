//! Go programs: their table of functions, and where their code is.

use super::pclntab::{GoFunction, GoTable, MAX_TABLE, SECTIONS};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section};
use crate::types::{FileOffset, Svma};

/// Largest section of code that is read, in bytes.
const MAX_CODE: u64 = 256 << 20;

/// A Go program's table and code, in memory.
pub(crate) struct GoProgram {
    table: Vec<u8>,
    /// Where the table is in the file.
    pub(crate) place: FileOffset,
    code: Vec<u8>,
    code_start: u64,
}

impl GoProgram {
    /// `None` if the file has no such table.
    ///
    /// # Errors
    /// [`ElfError`] where it, or the code, can't be read or is too large.
    pub(crate) fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<Self>, ElfError> {
        let Some(section) = table_of(file) else { return Ok(None) };
        let Some(text) = file.section(".text").filter(|text| text.executable) else { return Ok(None) };
        let place = file.place(section)?;
        let (table, code) = (file.read(section, MAX_TABLE)?, file.read(text, MAX_CODE)?);
        Ok(Some(Self { table, place, code, code_start: text.address.0 }))
    }

    /// The table, and what its addresses have to have added to be the file's own; `None` if it
    /// isn't understood or doesn't fit the code: names that are wrong are worse than none.
    pub(crate) fn table(&self) -> Option<(GoTable<'_>, u64)> {
        let table = GoTable::parse(&self.table)?;
        let exit = table.named(EXIT).next()?.start;
        // A wrapper has the same name.
        let bodies: Vec<u64> = table.named(EXIT_BODY).take(2).map(|function| function.start).collect();
        let fits = |base: u64| self.is_exit(base.wrapping_add(exit), base, &bodies);
        if !table.is_relative() {
            return fits(0).then_some((table, 0));
        }
        let base =
            [table.stated_text(), Some(self.code_start)].into_iter().flatten().find(|base| fits(*base));
        let base = base.or_else(|| {
            // Behind C's start code, in a program that another linker made.
            let places = (0..self.code.len() as u64).step_by(ALIGNMENT).map(|at| self.code_start + at);
            places.map(|at| at.wrapping_sub(exit)).find(|base| fits(*base))
        });
        base.map(|base| (table, base))
    }

    /// The code from an address of the file on.
    pub(crate) fn code_at(&self, address: Svma) -> &[u8] {
        let at = address.0.checked_sub(self.code_start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.code.get(at..)).unwrap_or_default()
    }

    /// The code of a function of the table, up to the next one; `None` if not all of it is there.
    pub(crate) fn code_of(&self, function: &GoFunction<'_>, base: u64) -> Option<&[u8]> {
        let length = usize::try_from(function.limit - function.start).ok()?;
        self.code_at(Svma(base.wrapping_add(function.start))).get(..length)
    }

    /// Whether the code at `address` is that of `runtime.goexit`: a `nop`, a call of
    /// `runtime.goexit1`, and a `nop` (go src/runtime/asm_amd64.s).
    fn is_exit(&self, address: u64, base: u64, bodies: &[u64]) -> bool {
        let [0x90, 0xe8, offset @ .., 0x90] =
            self.code_at(Svma(address)).first_chunk::<7>().unwrap_or(&[0; 7])
        else {
            return false;
        };
        let target = address.wrapping_add(6).wrapping_add_signed(i32::from_le_bytes(*offset).into());
        bodies.contains(&target.wrapping_sub(base))
    }
}

const EXIT: &str = "runtime.goexit";
const EXIT_BODY: &str = "runtime.goexit1";
/// Of Go's functions, at least.
const ALIGNMENT: usize = 16;

fn table_of<S: ByteSource>(file: &ElfFile<S>) -> Option<&Section> {
    SECTIONS.iter().find_map(|name| file.section(name))
}
