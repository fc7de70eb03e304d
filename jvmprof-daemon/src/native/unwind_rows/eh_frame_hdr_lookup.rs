//! Rows that are looked up by `.eh_frame_hdr`, the sorted table by which programs find their own,
//! while there is no index yet.
//!
//! To index the functions of a large library takes a tenth of a second, in which stacks that lead
//! through it would wait. One function is found at once. What is more than frame information, or in
//! its place, isn't told here: nothing, rather than something else than [`UnwindRows`] will say.

use std::fmt;

use gimli::{EhFrame, EhFrameOffset, UnwindSection};
use jvmprof_common::rows::Row;

use super::cfi::fde_index::{MAX_CIE, MAX_ENTRY};
use super::cfi::stripped_section_headers::USUAL;
use super::corrections::{dl_runtime_resolve, libgcc_eh_return};
use super::{UnwindRows, bases_of};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile};
use crate::types::Svma;

/// What is read of a file for this at most, in bytes: an SSD's hundredth of a second.
const MAX_BYTES: u64 = 16 << 20;

/// The frame information of one file, unread.
pub struct EhFrameHdrRows {
    /// Without an index.
    rows: UnwindRows,
    /// `.eh_frame_hdr` (Linux Standard Base 5.0, core, 10.6.2), as linkers write it, and where it
    /// is.
    table: Box<[u8]>,
    table_at: u64,
}

impl fmt::Debug for EhFrameHdrRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EhFrameHdrRows").field("bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}

impl EhFrameHdrRows {
    /// `None` of a file that has no such table, is too large, or has another one of its own, as
    /// Go's programs do.
    ///
    /// # Errors
    /// A section can't be read.
    pub fn load<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<Self>, ElfError> {
        let (Some(frames), Some(table)) = (file.section(".eh_frame"), file.section(".eh_frame_hdr")) else {
            return Ok(None);
        };
        if file.header().is_go || frames.size.saturating_add(table.size) > MAX_BYTES {
            return Ok(None);
        }
        let (bases, table_at) = (bases_of(file, frames), table.address.0);
        let section = file.read(frames, MAX_BYTES)?.into();
        let table: Box<[u8]> = file.read(table, MAX_BYTES)?.into();
        let rows = UnwindRows { bases, section, ..UnwindRows::default() };
        Ok(table.starts_with(&USUAL).then_some(Self { rows, table, table_at }))
    }

    /// The row for code at `pc`, where frame information alone decides it.
    pub fn row(&self, pc: Svma) -> Option<Row> {
        let bases = &self.rows.bases;
        let entry = self.entry(pc)?;
        let section = self.rows.eh_frame();
        let fde = section.fde_from_offset(bases, entry, EhFrame::cie_from_offset).ok()?;
        let is_usual = fde.entry_len() <= MAX_ENTRY && fde.cie().entry_len() <= MAX_CIE;
        if !is_usual || !fde.contains(pc.0) || self.may_be_patched(entry, fde.entry_len()) {
            return None;
        }
        self.rows.evaluate(&section, entry, pc)
    }

    /// The entry of the last function that begins at an address or before it, if the table is
    /// sorted; else of any.
    fn entry(&self, pc: Svma) -> Option<EhFrameOffset> {
        // Version and encodings, where `.eh_frame` is, how many pairs; then a function and its
        // entry each, counted from the table.
        let words = self.table.as_chunks::<4>().0;
        let count = u32::from_le_bytes(*words.get(2)?) as usize;
        let pairs = words.get(3..)?.as_chunks::<2>().0;
        let pairs = pairs.get(..count.min(pairs.len()))?;
        let at = |word: [u8; 4]| self.table_at.checked_add_signed(i32::from_le_bytes(word).into());
        let behind = pairs.partition_point(|[start, _]| at(*start).is_some_and(|start| start <= pc.0));
        let [_, entry] = pairs.get(behind.checked_sub(1)?)?;
        let offset = at(*entry)?.checked_sub(self.rows.bases.eh_frame.section?)?;
        Some(EhFrameOffset(usize::try_from(offset).ok()?))
    }

    /// Whether other rows may take the place of this entry's.
    fn may_be_patched(&self, EhFrameOffset(entry): EhFrameOffset, length: usize) -> bool {
        let bytes = self.rows.section.get(entry..entry.saturating_add(length + 4)).unwrap_or_default();
        let has = |pattern: &[u8]| bytes.windows(pattern.len()).any(|window| window == pattern);
        has(&dl_runtime_resolve::BY_RBX) || has(&libgcc_eh_return::BY_RCX)
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.rows.section.len() + self.table.len()
    }
}
