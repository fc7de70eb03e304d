//! Keys of files' data in caches.

pub(crate) mod checksummed_cache;
mod content_ids_on_disk;

use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use object::elf;
use object::pod::{bytes_of, bytes_of_slice};
use siphasher::sip::SipHasher13;

pub use self::content_ids_on_disk::ContentIdsOnDisk;
use crate::native::byte_source::ByteSource;
use crate::native::elf::{ElfError, ElfFile, Section, read_raw};
use crate::types::BuildId;

/// Most bytes of a file that are hashed: some tens of milliseconds. A larger file's data is shared
/// only by processes that map the very same file. JDK 17's libjvm has 20 MB, node 20 has 80 MB.
const MAX_BYTES: u64 = 96 << 20;
/// Bytes that are hashed at once: few enough to stay in a CPU's cache between read and hash.
const PIECE: u64 = 64 << 10;
/// Names of sections that data is read from, beside symbols, strings, notes and code.
const SECTIONS: [&str; 7] = [
    ".eh_frame",
    ".debug_frame",
    ".gopclntab",
    ".data.rel.ro.gopclntab",
    ".gnu_debuglink",
    ".gnu_debugaltlink",
    ".gnu_debugdata",
];

/// Identity of a file by `fstat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    /// Modification time in nanoseconds since the epoch.
    pub modified_ns: i128,
    /// Size in bytes.
    pub size: u64,
}

/// Identity and version of a file by `fstat`: it differs from that of the file's own earlier
/// contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStat {
    pub identity: FileIdentity,
    /// Change time in nanoseconds since the epoch. No process can set it; but links and permissions
    /// change it, too.
    pub changed_ns: i128,
}

impl FileStat {
    /// Reads the identity of a file.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let time =
            |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        let identity = FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_ns: time(metadata.mtime(), metadata.mtime_nsec()),
            size: metadata.len(),
        };
        Ok(Self { identity, changed_ns: time(metadata.ctime(), metadata.ctime_nsec()) })
    }
}

/// The key of the data of a file in caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub build_id: Option<BuildId>,
    pub content: ContentId,
    /// The debug file that the root of a container has for it, in keys of names and lines. Its
    /// names aren't shared with other containers.
    pub debug: Option<FileIdentity>,
}

impl FileKey {
    /// Returns true if it is the same file, with or without a debug file of a container.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.build_id, self.content) == (other.build_id, other.content)
    }
}

/// The identity of a file's contents. A build id is none: the file states it itself, and anybody
/// may write one in a container that claims to be the host's libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentId {
    /// A hash of all that names and rows depend on, and lines if they are enabled, by the
    /// [`HashKey`] in force.
    Hash(u64),
    /// The file's own identity, where it has no section headers, or too many bytes.
    File(FileIdentity),
}

/// The secret key of hashes of contents: who doesn't know it can't make a file with the hash of
/// another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

static KEY: OnceLock<HashKey> = OnceLock::new();

impl HashKey {
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Draws a key.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Installs this key as the one that hashes are made by, unless some were made by another one
    /// already. Returns the key that is installed.
    pub fn install(self) -> Self {
        *KEY.get_or_init(|| self)
    }

    /// Returns a hasher by this key.
    pub fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

impl ContentId {
    pub(super) fn of<S: ByteSource>(file: &ElfFile<S>, stat: FileStat, with_lines: bool) -> Self {
        hash(file, with_lines).ok().flatten().map_or(Self::File(stat.identity), Self::Hash)
    }
}

/// Hashes a file; `None` if it has no section headers, or too many bytes.
fn hash<S: ByteSource>(file: &ElfFile<S>, with_lines: bool) -> Result<Option<u64>, ElfError> {
    let headers = read_raw(file.source())?;
    let kept: Vec<&Section> =
        file.sections().iter().filter(|it| is_hashed(it) || with_lines && is_dwarf(it)).collect();
    let bytes = kept.iter().fold(0, |sum: u64, section| sum.saturating_add(section.size));
    if headers.sections.is_empty() || bytes > MAX_BYTES {
        return Ok(None);
    }
    let mut hasher = KEY.get_or_init(HashKey::random).hasher();
    for part in
        [bytes_of(&headers.file), bytes_of_slice(&headers.programs), bytes_of_slice(&headers.sections)]
    {
        part.hash(&mut hasher);
    }
    let mut buffer = vec![0; PIECE as usize];
    for section in kept {
        for at in (0..section.size).step_by(PIECE as usize) {
            let start = section.offset.0.saturating_add(at);
            let piece = &mut buffer[..PIECE.min(section.size - at) as usize];
            file.source().read_exact_at(start, piece).map_err(|source| ElfError::Read {
                what: section.name.clone(),
                offset: start,
                len: piece.len() as u64,
                source,
            })?;
            hasher.write(piece);
        }
    }
    Ok(Some(hasher.finish()))
}

/// Returns true if rows or names depend on it.
fn is_hashed(section: &Section) -> bool {
    let is_kind = [elf::SHT_SYMTAB, elf::SHT_DYNSYM, elf::SHT_STRTAB, elf::SHT_NOTE]
        .iter()
        .any(|kind| kind.0 == section.kind);
    !section.no_bits && (section.executable || is_kind || SECTIONS.contains(&section.name.as_str()))
}

/// Returns true if lines depend on it.
fn is_dwarf(section: &Section) -> bool {
    let is_named = |prefix| section.name.starts_with(prefix);
    !section.no_bits && (is_named(".debug_") || is_named(".zdebug_"))
}
