//! Lookup of rows by `.eh_frame_hdr`, the sorted table by which programs find their own, while
//! there is no index yet.
//!
//! Indexing the functions of a large library takes a tenth of a second, in which stacks that lead
//! through it would wait. One function is found at once. Code whose rows don't come from frame
//! information alone has no row here, rather than another one than [`super::UnwindRows`] will have.

use std::fmt;

use jvmprof_common::rows::Row;

use super::cfi::frame_bytes::FrameBytes;
use super::cfi::stripped_section_headers::USUAL;
use super::cfi::{CallFrames, bases_of};
use super::corrections::{dl_runtime_resolve, libgcc_eh_return, missing_epilogues};
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile};
use crate::types::Svma;

/// Bytes of a file that are read for this at most: an SSD's hundredth of a second.
const MAX_BYTES: u64 = 16 << 20;

/// The frame information of one file, unread.
pub struct EhFrameHdrRows {
    /// The frame information, without an index.
    frames: CallFrames,
    /// Contents of `.eh_frame_hdr` (Linux Standard Base 5.0, core, 10.6.2), as linkers write it,
    /// and its address.
    table: Box<[u8]>,
    table_at: u64,
}

impl fmt::Debug for EhFrameHdrRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EhFrameHdrRows").field("bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}

impl EhFrameHdrRows {
    /// Opens a file's table; `None` for a file that has no such table, is too large, has another
    /// one of its own, as Go's programs do, or has rows that lack functions' ends.
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
        let bytes = FrameBytes::Memory(file.read(frames, MAX_BYTES)?.into());
        let table: Box<[u8]> = file.read(table, MAX_BYTES)?.into();
        let frames = CallFrames::unindexed(bases, bytes);
        let is_usable = table.starts_with(&USUAL) && !missing_epilogues::lacks_epilogues(&frames);
        Ok(is_usable.then_some(Self { frames, table, table_at }))
    }

    /// Returns the row for code at `pc`, where frame information alone decides it.
    pub fn row(&self, pc: Svma) -> Option<Row> {
        let entry = self.entry(pc)?;
        let length = self.frames.length_of_entry_for(entry, pc)?;
        (!self.may_be_overridden(entry, length)).then(|| self.frames.evaluate(entry, pc))?
    }

    /// Returns the entry of the last function that begins at an address or before it, if the table
    /// is sorted; else of any.
    fn entry(&self, pc: Svma) -> Option<usize> {
        // Version and encodings, where `.eh_frame` is, how many pairs; then a function and its
        // entry each, counted from the table.
        let words = self.table.as_chunks::<4>().0;
        let count = u32::from_le_bytes(*words.get(2)?) as usize;
        let pairs = words.get(3..)?.as_chunks::<2>().0;
        let pairs = pairs.get(..count.min(pairs.len()))?;
        let at = |word: [u8; 4]| self.table_at.checked_add_signed(i32::from_le_bytes(word).into());
        let behind = pairs.partition_point(|[start, _]| at(*start).is_some_and(|start| start <= pc.0));
        let [_, entry] = pairs.get(behind.checked_sub(1)?)?;
        let offset = at(*entry)?.checked_sub(self.frames.bases.eh_frame.section?)?;
        usize::try_from(offset).ok()
    }

    /// Returns true if other rows may take the place of this entry's.
    fn may_be_overridden(&self, entry: usize, length: usize) -> bool {
        let bytes = self.frames.bytes.get(entry, length.saturating_add(4));
        let has = |pattern: &[u8]| bytes.windows(pattern.len()).any(|window| window == pattern);
        has(&dl_runtime_resolve::BY_RBX) || has(&libgcc_eh_return::BY_RCX)
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.frames.size_bytes() + self.table.len()
    }
}
