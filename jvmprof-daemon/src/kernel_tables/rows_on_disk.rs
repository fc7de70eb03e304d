//! Packed unwind rows of files, kept on disk: after a restart of this program a large library's
//! rows are there in a millisecond, not in fifty.
//!
//! They are believed only for the same contents of the file (by a keyed hash), the same program
//! that packed them, and whole (by a keyed checksum). The key is a secret in the folder, which is
//! this user's alone. What isn't right is as if it weren't there.

use std::fs;
use std::hash::Hasher as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use jvmprof_common::tables::{PackedRule, RowPage};

use super::packed_rows::{FileRows, MAX_FILE_RULES};
use crate::cache_directory::CacheDirectory;
use crate::native::file_identity::{ContentId, FileKey, FileStat, HashKey};
use crate::native::open_file::open_regular;

/// Ending of the files' names.
const ENDING: &str = ".rows";
/// Name of the file with the key of hashes.
const KEY_FILE: &str = "key";
/// The first bytes of a file; its last digit is that of the format.
const MAGIC: u64 = u64::from_le_bytes(*b"jvmprow1");
/// Words of 64 bits before the parts: magic, hash of the contents, hash of the program, first page;
/// then three lengths of 32 bits, and padding.
const HEADER_BYTES: usize = 48;
/// Bytes of a checksum, at the file's end.
const CHECKSUM_BYTES: usize = 8;

/// A failure to use a folder.
#[derive(Debug, thiserror::Error)]
pub enum RowsOnDiskError {
    #[error("opening the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("reading or writing {}: {source}", path.display())]
    Key { path: PathBuf, source: io::Error },
    #[error("identifying this program by /proc/self/exe: {0}")]
    Program(io::Error),
    #[error("files have been hashed by another key than the folder's {}", path.display())]
    OtherKey { path: PathBuf },
}

/// A folder of files' rows.
#[derive(Debug)]
pub struct RowsOnDisk {
    directory: CacheDirectory,
    key: HashKey,
    /// A hash of the identity of this program: another version may pack other rows.
    program: u64,
}

impl RowsOnDisk {
    /// Opens the folder, and makes it if it isn't there. To be called before any file is
    /// identified: from now on they are by the folder's key. `limit_bytes` is the limit of all
    /// files together.
    ///
    /// # Errors
    /// See [`RowsOnDiskError`].
    pub fn open(path: &Path, limit_bytes: u64) -> Result<Self, RowsOnDiskError> {
        let directory = CacheDirectory::open(path, ENDING, limit_bytes)
            .map_err(|source| RowsOnDiskError::Folder { path: path.to_owned(), source })?;
        let key_file = path.join(KEY_FILE);
        let key = read_or_write_key(&key_file, &directory)
            .map_err(|source| RowsOnDiskError::Key { path: key_file.clone(), source })?;
        if key.put_in_force() != key {
            return Err(RowsOnDiskError::OtherKey { path: key_file });
        }
        let program = program_hash(key).map_err(RowsOnDiskError::Program)?;
        Ok(Self { directory, key, program })
    }

    /// Returns the rows of a file, if they are there.
    pub fn get(&self, key: &FileKey) -> Option<FileRows> {
        let (name, content) = self.name(key)?;
        let path = self.directory.path().join(name);
        let mut bytes = Vec::new();
        let file = open_regular(&path).ok()?;
        file.take(self.directory.limit_of_one() + 1).read_to_end(&mut bytes).ok()?;
        let rows = self.decode(&bytes, content);
        if rows.is_none() {
            tracing::warn!(path = %path.display(), "unwind rows on disk aren't as they were written");
        }
        rows
    }

    /// Keeps the rows of a file, unless some were left out. That they can't be kept harms nothing.
    pub fn keep(&self, key: &FileKey, rows: &FileRows) {
        if rows.refused() != 0 || rows.has_too_many_rules() {
            return;
        }
        let Some((name, content)) = self.name(key) else { return };
        let bytes = self.encode(rows, content);
        if bytes.len() as u64 > self.directory.limit_of_one() {
            return;
        }
        let kept = self.directory.begin().and_then(|mut part| {
            part.write_all(&bytes)?;
            self.directory.keep(part, &name)
        });
        if let Err(error) = kept {
            tracing::debug!(name, %error, "unwind rows aren't kept on disk");
        }
    }

    /// Returns the name of a file's rows, and the hash of its contents. A file without one isn't
    /// kept.
    fn name(&self, key: &FileKey) -> Option<(String, u64)> {
        let ContentId::Hash(content) = key.content else { return None };
        Some((format!("{content:016x}-{:016x}{ENDING}", self.program), content))
    }

    fn encode(&self, rows: &FileRows, content: u64) -> Vec<u8> {
        let (packed, rules) = (&rows.rows, rows.rules());
        let mut bytes = Vec::with_capacity(HEADER_BYTES + rows.size_bytes() + CHECKSUM_BYTES);
        for word in [MAGIC, content, self.program, packed.first_page] {
            bytes.extend(word.to_le_bytes());
        }
        for length in [rules.len(), packed.pages.len(), packed.rows.len(), 0] {
            bytes.extend((length as u32).to_le_bytes());
        }
        bytes.extend(rules.iter().flat_map(|rule| rule.to_words()).flat_map(u64::to_le_bytes));
        bytes.extend(packed.pages.iter().chain(&packed.rows).flat_map(|word| word.to_le_bytes()));
        let checksum = self.checksum(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// Returns the rows; `None` if anything isn't as [`Self::encode`] makes it.
    fn decode(&self, bytes: &[u8], content: u64) -> Option<FileRows> {
        let (bytes, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if u64::from_le_bytes(*checksum) != self.checksum(bytes) {
            return None;
        }
        let (header, parts) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let words: Vec<u64> = header.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let lengths: Vec<usize> =
            header[32..].as_chunks().0.iter().map(|length| u32::from_le_bytes(*length) as usize).collect();
        let ([magic, hash, program, first_page], [rules, pages, rows, _]) =
            (*words.first_chunk()?, *lengths.first_chunk()?);
        if (magic, hash, program) != (MAGIC, content, self.program) || rules > MAX_FILE_RULES {
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

    fn checksum(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.key.hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}

/// Reads the folder's key, or draws one for a folder that has none.
fn read_or_write_key(path: &Path, directory: &CacheDirectory) -> io::Result<HashKey> {
    let is_there = fs::exists(path)?;
    if !is_there {
        let mut part = directory.begin()?;
        part.write_all(&HashKey::random().to_bytes())?;
        // Another process may have been first: then its key holds.
        if let Err(error) = part.persist_noclobber(path)
            && error.error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error.error);
        }
    }
    let bytes = <[u8; 16]>::try_from(fs::read(path)?);
    bytes.map(HashKey::from_bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Hashes what distinguishes one version of this program from another.
fn program_hash(key: HashKey) -> io::Result<u64> {
    let file = FileStat::of(&fs::File::open("/proc/self/exe")?)?.identity;
    let mut hasher = key.hasher();
    hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
    for number in [file.device, file.inode, file.size, file.modified_ns as u64] {
        hasher.write_u64(number);
    }
    // The layout of what is stored.
    hasher.write_usize(size_of::<RowPage>());
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::native::byte_source::RegularFile;
    use crate::native::elf::ElfFile;
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

    /// The folder's parts, without the key of other tests of this process.
    fn opened(path: &Path, key: HashKey, program: u64) -> RowsOnDisk {
        let directory = CacheDirectory::open(path, ENDING, 64 << 20).expect("a folder");
        RowsOnDisk { directory, key, program }
    }

    #[test]
    fn what_was_kept_is_the_same_and_is_for_the_same_contents_and_program_only() {
        let scratch = tempfile::tempdir().expect("a directory");
        let secret = HashKey::random();
        let on_disk = opened(scratch.path(), secret, 7);
        let libc = packed(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
        assert!(libc.len() > 10_000);
        on_disk.keep(&key(1), &libc);
        let again = opened(scratch.path(), secret, 7).get(&key(1)).expect("it was kept");
        assert_eq!((again.rows.first_page, again.rules()), (libc.rows.first_page, libc.rules()));
        assert_eq!((&again.rows.pages, &again.rows.rows), (&libc.rows.pages, &libc.rows.rows));
        assert!(on_disk.get(&key(2)).is_none(), "other contents");
        assert!(opened(scratch.path(), secret, 8).get(&key(1)).is_none(), "another program");
        assert!(opened(scratch.path(), HashKey::random(), 7).get(&key(1)).is_none(), "another key");
        let of_file = FileKey {
            content: ContentId::File(FileStat::of(&File::open("/").unwrap()).unwrap().identity),
            ..key(1)
        };
        on_disk.keep(&of_file, &libc);
        assert!(on_disk.get(&of_file).is_none(), "a file whose contents weren't hashed");
    }

    #[test]
    fn a_damaged_file_is_as_if_it_were_not_there() {
        let scratch = tempfile::tempdir().expect("a directory");
        let on_disk = opened(scratch.path(), HashKey::random(), 7);
        let libc = packed(Path::new("/lib/x86_64-linux-gnu/libm.so.6"));
        let whole = on_disk.encode(&libc, 1);
        assert!(on_disk.decode(&whole, 1).is_some());
        for at in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(on_disk.decode(&damaged, 1).is_none(), "byte {at}");
            assert!(on_disk.decode(&whole[..at], 1).is_none(), "{at} bytes");
        }
        // A right checksum of wrong lengths, indices and rules.
        let sealed = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.len() - CHECKSUM_BYTES);
            let checksum = on_disk.checksum(&bytes);
            bytes.extend(checksum.to_le_bytes());
            bytes
        };
        assert!(on_disk.decode(&sealed(whole.clone()), 1).is_some());
        for at in [32, 36, 40] {
            for value in [0_u32, 1, u32::MAX] {
                let mut lying = whole.clone();
                lying[at..at + 4].copy_from_slice(&value.to_le_bytes());
                assert!(on_disk.decode(&sealed(lying), 1).is_none(), "{value} at {at}");
            }
        }
        let mut lying = whole.clone();
        let last_row = whole.len() - CHECKSUM_BYTES - 4;
        lying[last_row..last_row + 2].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(on_disk.decode(&sealed(lying), 1).is_none(), "a rule that there isn't");
    }

    #[test]
    fn a_folder_has_one_key() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = CacheDirectory::open(scratch.path(), ENDING, 1 << 20).expect("a folder");
        let path = scratch.path().join(KEY_FILE);
        let key = read_or_write_key(&path, &directory).expect("written");
        assert!(read_or_write_key(&path, &directory).expect("read") == key);
        fs::write(&path, "short").expect("written");
        assert!(read_or_write_key(&path, &directory).is_err());
    }
}
