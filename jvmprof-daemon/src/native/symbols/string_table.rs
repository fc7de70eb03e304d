//! String tables of files, and reading names in them one by one.

use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section, read_bytes};
use crate::types::FileOffset;

/// Bits of an offset in a string table.
pub(super) const OFFSET_BITS: u32 = 29;
/// Largest string table that offsets can address, in bytes. It isn't read as a whole.
const MAX_STRING_BYTES: u64 = 1 << OFFSET_BITS;
/// Bytes of a name that are read at first: most are shorter.
const FIRST_READ: u64 = 256;

/// A string table in the file, whose bounds have been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringTable {
    pub(super) offset: FileOffset,
    pub(super) size: u64,
}

impl Default for StringTable {
    /// Returns an empty table.
    fn default() -> Self {
        Self { offset: FileOffset(0), size: 0 }
    }
}

impl StringTable {
    /// Finds the string table of `symbols`.
    pub(crate) fn of<S: ByteSource>(file: &ElfFile<S>, symbols: &Section) -> Result<Self, ElfError> {
        let strings = file.sections().get(symbols.link as usize);
        let strings = strings.filter(|s| s.kind == object::elf::SHT_STRTAB.0);
        let strings = strings.ok_or_else(|| ElfError::malformed(&symbols.name, "has no string table"))?;
        if strings.size > MAX_STRING_BYTES {
            let (what, size, limit) = (strings.name.clone(), strings.size, MAX_STRING_BYTES);
            return Err(ElfError::TooLarge { what, size, limit });
        }
        Ok(Self { offset: file.place(strings)?, size: strings.size })
    }

    /// Makes a table of a part of the file that isn't a string table by its type.
    pub(crate) fn at(offset: FileOffset, size: u64) -> Option<Self> {
        (size <= MAX_STRING_BYTES).then_some(Self { offset, size })
    }

    /// Returns true if there can be a name at `offset`. The first one is the empty one (gABI,
    /// chapter 4).
    pub(crate) fn has(self, offset: u32) -> bool {
        offset != 0 && u64::from(offset) < self.size
    }

    /// Returns true if the name at `offset` is useful: not empty, and no label of compilers or of
    /// the annobin plugin of Fedora, which marks the ends of functions with them.
    pub(crate) fn has_useful_name(self, source: &impl ByteSource, offset: u32) -> Result<bool, ElfError> {
        let start = self.read(source, offset, ANNOBIN.len() as u64)?;
        Ok(is_useful(&start))
    }

    /// Reads the name at `offset`: up to a zero byte, the table's end, or `most` bytes.
    pub(super) fn read(self, source: &impl ByteSource, offset: u32, most: u64) -> Result<Vec<u8>, ElfError> {
        let offset = u64::from(offset);
        let most = most.min(self.size.saturating_sub(offset));
        let (mut name, mut want) = (Vec::new(), FIRST_READ);
        while (name.len() as u64) < most {
            let have = name.len() as u64;
            let start = self.offset.0 + offset + have;
            let bytes = read_bytes(source, "the name of a function", start, want.min(most) - have, most)?;
            if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                name.extend_from_slice(&bytes[..end]);
                break;
            }
            name.extend_from_slice(&bytes);
            want *= 4;
        }
        Ok(name)
    }
}

const ANNOBIN: &[u8] = b".annobin";

pub(super) fn is_useful(name: &[u8]) -> bool {
    !(name.is_empty() || name.starts_with(b".L") || name.starts_with(ANNOBIN))
}
