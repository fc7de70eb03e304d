//! Large sections, read chunk by chunk.

use super::{ElfFile, Section};
use crate::native::byte_source::ByteSource;

/// Bytes of a section that are read, at most. JDK 25's symbols and their names have 2 and 6 MB.
const MAX_SECTION_BYTES: u64 = 256 << 20;
/// Bytes of a chunk, without what it overlaps the next one.
pub(crate) const CHUNK_BYTES: u64 = 96 << 10;

/// Calls `each` with consecutive chunks of a section, and with their offsets in it. Each chunk
/// overlaps the next one by `overlap` bytes. Ends silently at the first that can't be read.
pub(crate) fn for_each_chunk<S: ByteSource>(
    file: &ElfFile<S>,
    section: &Section,
    overlap: u64,
    mut each: impl FnMut(u64, &[u8]),
) {
    let size = section.size.min(MAX_SECTION_BYTES);
    for start in (0..size).step_by(CHUNK_BYTES as usize) {
        let length = (CHUNK_BYTES + overlap).min(size - start);
        let Ok(bytes) = file.read_piece(section, start, length) else { return };
        each(start, &bytes);
    }
}
