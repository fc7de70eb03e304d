//! Packed unwind rows of files, kept on disk: after a restart of this program a large library's
//! rows are there in a millisecond, not in fifty.
//!
//! They are believed only for the same contents of the file (by a keyed hash), and as they were
//! written ([`ChecksummedCache`]).

use std::path::Path;

use jvmprof_common::unwind_tables::{PackedRule, RowPage};

use super::packed_rows::{FileRows, MAX_FILE_RULES};
use crate::native::file_identity::checksummed_cache::{ChecksummedCache, ChecksummedCacheError};
use crate::native::file_identity::{ContentId, FileKey};

/// Ending of the files' names.
const ENDING: &str = ".rows";
/// The first bytes of a file; the last digit changes with the format, and with what code is given
/// which rows.
const MAGIC: u64 = u64::from_le_bytes(*b"jvmprow3");
/// Words of 64 bits before the parts: magic, size of a page of the kernel's tables, first page;
/// then three lengths of 32 bits, and padding.
const HEADER_BYTES: usize = 40;

/// A folder of files' rows.
#[derive(Debug)]
pub struct RowsOnDisk(ChecksummedCache);

impl RowsOnDisk {
    /// Opens the folder, and makes it if it isn't there. To be called before any file is
    /// identified: from now on they are by the folder's key. `limit_bytes` is the limit of all
    /// files together.
    ///
    /// # Errors
    /// See [`ChecksummedCacheError`].
    pub fn open(path: &Path, limit_bytes: u64) -> Result<Self, ChecksummedCacheError> {
        ChecksummedCache::open(path, ENDING, limit_bytes).map(Self)
    }

    /// Returns the rows of a file, if they are there.
    pub fn get(&self, key: &FileKey) -> Option<FileRows> {
        let bytes = self.0.get(&name(key)?)?;
        let rows = decode(&bytes);
        if rows.is_none() {
            // Those of an earlier version are replaced.
            tracing::debug!(?key, "unwind rows on disk aren't of this format");
        }
        rows
    }

    /// Stores the rows of a file, unless some were left out. A failure harms nothing.
    pub fn store(&self, key: &FileKey, rows: &FileRows) {
        if rows.refused() != 0 || rows.has_too_many_rules() {
            return;
        }
        if let Some(name) = name(key) {
            self.0.store(&name, &encode(rows));
        }
    }
}

/// Returns the name of a file's rows, a hash of its contents. A file without one isn't kept.
fn name(key: &FileKey) -> Option<String> {
    let ContentId::Hash(content) = key.content else { return None };
    Some(format!("{content:016x}"))
}

fn encode(rows: &FileRows) -> Vec<u8> {
    let (packed, rules) = (&rows.rows, rows.rules());
    let mut bytes = Vec::with_capacity(HEADER_BYTES + rows.size_bytes());
    for word in [MAGIC, size_of::<RowPage>() as u64, packed.first_page] {
        bytes.extend(word.to_le_bytes());
    }
    for length in [rules.len(), packed.pages.len(), packed.rows.len(), 0] {
        bytes.extend((length as u32).to_le_bytes());
    }
    bytes.extend(rules.iter().flat_map(|rule| rule.to_words()).flat_map(u64::to_le_bytes));
    bytes.extend(packed.pages.iter().chain(&packed.rows).flat_map(|word| word.to_le_bytes()));
    bytes
}

/// Returns the rows; `None` if anything isn't as [`encode`] makes it.
fn decode(bytes: &[u8]) -> Option<FileRows> {
    let (header, parts) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let words: Vec<u64> = header.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let lengths: Vec<usize> =
        header[24..].as_chunks().0.iter().map(|length| u32::from_le_bytes(*length) as usize).collect();
    let ([magic, page_bytes, first_page], [rules, pages, rows, _]) =
        (*words.first_chunk()?, *lengths.first_chunk()?);
    if (magic, page_bytes) != (MAGIC, size_of::<RowPage>() as u64) || rules > MAX_FILE_RULES {
        return None;
    }
    let (rule_bytes, rest) = parts.split_at_checked(rules * size_of::<PackedRule>())?;
    let (page_bytes, row_bytes) = rest.split_at_checked(pages * size_of::<u32>())?;
    let rule = |words: &[u8; 16]| {
        let (first, second) = words.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        PackedRule::from_words([word(first), word(second)])
    };
    let numbers = |bytes: &[u8]| -> Vec<u32> {
        bytes.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect()
    };
    let (page_list, row_list) = (numbers(page_bytes), numbers(row_bytes));
    let is_whole = row_bytes.len() == rows * size_of::<u32>()
        && page_list.is_sorted()
        && page_list.last().is_none_or(|last| (*last as usize) < row_list.len())
        && row_list.iter().all(|row| (row & 0xffff) as usize <= rules);
    let rule_list = rule_bytes.as_chunks().0.iter().map(rule).collect();
    is_whole.then(|| FileRows::from_parts(first_page, page_list, row_list, rule_list))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::native::byte_source::RegularFile;
    use crate::native::elf::ElfFile;
    use crate::native::file_identity::{FileStat, HashKey};
    use crate::native::unwind_rows::UnwindRows;

    fn packed(path: &Path) -> FileRows {
        let file = File::open(path).expect("the file is readable");
        let elf = ElfFile::parse(RegularFile::new(&file).expect("a regular file")).expect("an ELF file");
        let rows = UnwindRows::load(&elf).expect("unwind rows");
        FileRows::new(|handle| rows.for_each(handle))
    }

    fn key(content: u64) -> FileKey {
        FileKey { build_id: None, content: ContentId::Hash(content), debug: None }
    }

    #[test]
    fn what_was_kept_is_the_same_and_is_for_the_same_contents_only() {
        let scratch = tempfile::tempdir().expect("a directory");
        let secret = HashKey::random();
        let open = || RowsOnDisk(ChecksummedCache::with_key(scratch.path(), ENDING, secret, 7));
        let on_disk = open();
        let libc = packed(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
        assert!(libc.len() > 10_000);
        on_disk.store(&key(1), &libc);
        let again = open().get(&key(1)).expect("it was kept");
        assert_eq!((again.rows.first_page, again.rules()), (libc.rows.first_page, libc.rules()));
        assert_eq!((&again.rows.pages, &again.rows.rows), (&libc.rows.pages, &libc.rows.rows));
        assert!(on_disk.get(&key(2)).is_none(), "other contents");
        let of_file = FileKey {
            content: ContentId::File(FileStat::of(&File::open("/").unwrap()).unwrap().identity),
            ..key(1)
        };
        on_disk.store(&of_file, &libc);
        assert!(on_disk.get(&of_file).is_none(), "a file whose contents weren't hashed");
    }

    #[test]
    fn what_is_of_another_format_has_no_rows() {
        let libc = packed(Path::new("/lib/x86_64-linux-gnu/libm.so.6"));
        let whole = encode(&libc);
        assert!(decode(&whole).is_some());
        for at in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
            assert!(decode(&whole[..at]).is_none(), "{at} bytes");
        }
        for at in [0, 8, 24, 28, 32] {
            for value in [0_u32, 1, u32::MAX] {
                let mut lying = whole.clone();
                lying[at..at + 4].copy_from_slice(&value.to_le_bytes());
                assert!(decode(&lying).is_none(), "{value} at {at}");
            }
        }
        let mut lying = whole.clone();
        let last_row = whole.len() - 4;
        lying[last_row..last_row + 2].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(decode(&lying).is_none(), "a rule that there isn't");
    }
}
