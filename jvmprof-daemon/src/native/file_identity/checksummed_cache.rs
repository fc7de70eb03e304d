//! A cache directory whose files are believed only as this version of this program wrote them, and
//! whole: by a keyed checksum. The key is a secret in the directory, which is this user's alone.
//! What isn't right is as if it weren't there.

use std::fs;
use std::hash::Hasher as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::cache_directory::CacheDirectory;
use crate::native::file_identity::{FileStat, HashKey};
use crate::native::open_file::open_regular;

/// Name of the file with the key.
const KEY_FILE: &str = "key";
/// Bytes of a checksum, at the file's end.
const CHECKSUM_BYTES: usize = 8;

/// A failure to use a directory.
#[derive(Debug, thiserror::Error)]
pub enum ChecksummedCacheError {
    #[error("opening the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("reading or writing {}: {source}", path.display())]
    Key { path: PathBuf, source: io::Error },
    #[error("identifying this program by /proc/self/exe: {0}")]
    Program(io::Error),
    #[error("reading the boot's identity from {}: {source}", path.display())]
    Boot { path: PathBuf, source: io::Error },
    #[error("files have been hashed by another key than the folder's {}", path.display())]
    OtherKey { path: PathBuf },
}

/// A directory of files with one ending. Others' files in it are left alone, but for the key, which
/// all of a directory share.
#[derive(Debug)]
pub(crate) struct ChecksummedCache {
    directory: CacheDirectory,
    ending: &'static str,
    key: HashKey,
    /// A hash of the identity of this program: another version may write other bytes.
    program: u64,
}

impl ChecksummedCache {
    /// Opens the directory, and makes it if it isn't there. To be called before any file is
    /// identified: from now on their contents are hashed by the directory's key. `limit_bytes` is
    /// the limit of all files of this ending together.
    ///
    /// # Errors
    /// See [`ChecksummedCacheError`].
    pub(crate) fn open(
        path: &Path,
        ending: &'static str,
        limit_bytes: u64,
    ) -> Result<Self, ChecksummedCacheError> {
        let directory = CacheDirectory::open(path, ending, limit_bytes)
            .map_err(|source| ChecksummedCacheError::Folder { path: path.to_owned(), source })?;
        let key_file = path.join(KEY_FILE);
        let key = read_or_write_key(&key_file, &directory)
            .map_err(|source| ChecksummedCacheError::Key { path: key_file.clone(), source })?;
        if key.install() != key {
            return Err(ChecksummedCacheError::OtherKey { path: key_file });
        }
        let program = program_hash(key).map_err(ChecksummedCacheError::Program)?;
        Ok(Self { directory, ending, key, program })
    }

    /// A directory with a key of its own, which no files are hashed by.
    #[cfg(test)]
    pub(crate) fn with_key(path: &Path, ending: &'static str, key: HashKey, program: u64) -> Self {
        let directory = CacheDirectory::open(path, ending, 64 << 20).expect("a folder");
        Self { directory, ending, key, program }
    }

    /// Returns the directory's secret key.
    pub(crate) fn key(&self) -> HashKey {
        self.key
    }

    /// Reads what was written under a name, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.directory.path().join(self.file_name(name));
        let mut bytes = Vec::new();
        let file = open_regular(&path).ok()?;
        file.take(self.directory.limit_of_one() + 1).read_to_end(&mut bytes).ok()?;
        let is_right = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .is_some_and(|(bytes, checksum)| u64::from_le_bytes(*checksum) == self.checksum(name, bytes));
        if !is_right {
            tracing::warn!(path = %path.display(), "a cached file isn't as it was written");
            return None;
        }
        bytes.truncate(bytes.len() - CHECKSUM_BYTES);
        Some(bytes)
    }

    /// Stores bytes under a name, unless they are too many. A failure harms nothing.
    pub(crate) fn store(&self, name: &str, bytes: &[u8]) {
        let checksum = self.checksum(name, bytes);
        if (bytes.len() + CHECKSUM_BYTES) as u64 > self.directory.limit_of_one() {
            return;
        }
        let stored = self.directory.begin().and_then(|mut part| {
            part.write_all(bytes)?;
            part.write_all(&checksum.to_le_bytes())?;
            self.directory.persist(part, &self.file_name(name))
        });
        if let Err(error) = stored {
            tracing::debug!(name, ending = self.ending, %error, "a file isn't stored in its cache");
        }
    }

    fn file_name(&self, name: &str) -> String {
        format!("{name}-{:016x}{}", self.program, self.ending)
    }

    fn checksum(&self, name: &str, bytes: &[u8]) -> u64 {
        let mut hasher = self.key.hasher();
        hasher.write_u64(self.program);
        hasher.write_usize(name.len());
        hasher.write(name.as_bytes());
        hasher.write(bytes);
        hasher.finish()
    }
}

/// Reads the directory's key, or draws one for a directory that has none.
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
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDING: &str = ".bytes";

    #[test]
    fn bytes_are_kept_under_their_name_for_the_same_program_and_key() {
        let scratch = tempfile::tempdir().expect("a directory");
        let secret = HashKey::random();
        let open = |key, program| ChecksummedCache::with_key(scratch.path(), ENDING, key, program);
        open(secret, 7).store("a", b"some bytes");
        assert_eq!(open(secret, 7).get("a").as_deref(), Some(&b"some bytes"[..]));
        assert!(open(secret, 7).get("b").is_none(), "another name");
        assert!(open(secret, 8).get("a").is_none(), "another program");
        assert!(open(HashKey::random(), 7).get("a").is_none(), "another key");
        let [from, to] = ["a", "b"].map(|name| scratch.path().join(open(secret, 7).file_name(name)));
        fs::rename(from, to).expect("renamed");
        assert!(open(secret, 7).get("b").is_none(), "what was kept under another name");
    }

    #[test]
    fn a_damaged_file_is_as_if_it_were_not_there() {
        let scratch = tempfile::tempdir().expect("a directory");
        let cache = ChecksummedCache::with_key(scratch.path(), ENDING, HashKey::random(), 7);
        cache.store("a", &[5; 300]);
        let path = scratch.path().join(cache.file_name("a"));
        let whole = fs::read(&path).expect("kept");
        for at in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, damaged).expect("written");
            assert!(cache.get("a").is_none(), "byte {at}");
            fs::write(&path, &whole[..at]).expect("written");
            assert!(cache.get("a").is_none(), "{at} bytes");
        }
        fs::write(&path, whole).expect("written");
        assert!(cache.get("a").is_some());
    }

    #[test]
    fn a_directory_has_one_key() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = CacheDirectory::open(scratch.path(), ENDING, 1 << 20).expect("a folder");
        let path = scratch.path().join(KEY_FILE);
        let key = read_or_write_key(&path, &directory).expect("written");
        assert!(read_or_write_key(&path, &directory).expect("read") == key);
        fs::write(&path, "short").expect("written");
        assert!(read_or_write_key(&path, &directory).is_err());
    }
}
