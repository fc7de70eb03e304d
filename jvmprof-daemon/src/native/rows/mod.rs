//! Unwind rows of a file, from its `.eh_frame` (else `.debug_frame`).

use jvmprof_common::rows::Row;

use crate::native::elf::{ElfError, ElfFile};
use crate::native::source::ByteSource;
use crate::types::Svma;

/// The unwind rows of one file.
#[derive(Debug)]
pub struct UnwindRows {}

impl UnwindRows {
    /// Reads the call frame information of `file` and indexes its functions.
    ///
    /// # Errors
    /// [`ElfError`] where a section can't be read. A file without call frame information has no rows, which is no
    /// error.
    pub fn load<S: ByteSource>(_file: &ElfFile<S>) -> Result<Self, ElfError> {
        Ok(Self {})
    }

    /// The row for code at `pc`; `None` where the file has none, or where it is malformed.
    ///
    /// For a return address ask at address - 1.
    pub fn row(&self, _pc: Svma) -> Option<Row> {
        None
    }

    /// Whether the frame at `pc` is the root of its thread's stack: its return address is undefined.
    pub fn is_root(&self, pc: Svma) -> bool {
        self.row(pc).is_some_and(|row| row.is_root())
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        0
    }
}
