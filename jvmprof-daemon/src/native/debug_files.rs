//! Separate debug files of stripped files, found as gdb finds them.
//!
//! - by build id: `/usr/lib/debug/.build-id/xx/yyyy.debug`, which `-dbg`, `-dbgsym` and
//!   `-debuginfo` packages install;
//! - by `.gnu_debuglink`, a name and the CRC-32 of the file's contents: beside the stripped file,
//!   in `.debug` beside it, and at the same place below `/usr/lib/debug`;
//! - in the cache of files from debuginfod servers.
//!
//! The process's own root comes first, then the host's. A file is accepted only with the right
//! build id or CRC.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::native::byte_source::{ByteSource, RegularFile};
use crate::native::elf::{ElfError, ElfFile};
use crate::native::file_identity::{FileKey, FileStat};
use crate::native::open_file::open_in_root_following;
use crate::types::BuildId;

/// Folder of debug files below each root.
const DEBUG_DIRECTORY: &str = "usr/lib/debug";
/// Largest debug file whose CRC is computed, in bytes: some tenths of a second.
const MAX_CRC_BYTES: u64 = 512 << 20;
/// Largest `.gnu_debuglink` and `.gnu_debugaltlink`, in bytes: a path and a checksum or build id.
const MAX_LINK: u64 = 8 << 10;

/// Ending of the names of fetched debug files.
pub(crate) const ENDING: &str = ".debug";

/// Reason for discarding the contents of a debug file.
pub(crate) const CHANGED: &str = "written anew while it was in use";

/// Returns the name of a build id's file in the folder of fetched debug files.
pub(crate) fn fetched_name(id: BuildId) -> String {
    format!("{id}{ENDING}")
}

/// The places that are searched for debug files; none by default.
#[derive(Clone, Debug, Default)]
pub struct DebugFileLocator {
    /// The root of the process that maps the file (`/proc/PID/root`), whatever namespace it is in.
    pub process_root: Option<PathBuf>,
    /// True if this host's root is searched, too.
    pub host: bool,
    /// The cache of files from debuginfod: files called `BUILDID.debug`.
    pub downloads: Option<PathBuf>,
}

/// A debug file whose build id or CRC matches.
#[derive(Debug)]
pub struct DebugFile {
    pub file: File,
    /// Metadata before the file was read.
    pub stat: FileStat,
    /// Path on this host, for messages.
    pub path: PathBuf,
    /// Path in the file's own root, against which its links are resolved.
    pub place: PathBuf,
    /// True if it belongs to the host, not to a container: keeping it open keeps nothing of a
    /// container alive.
    pub is_of_host: bool,
}

impl DebugFile {
    /// Checks that the file is still the same.
    ///
    /// # Errors
    /// [`ElfError`] if it is another file by now, or was rewritten: what was read may have another
    /// build id then.
    pub fn check_unchanged(&self) -> Result<(), ElfError> {
        match FileStat::of(&self.file).map_err(|source| self.read_error(source))? == self.stat {
            true => Ok(()),
            false => Err(ElfError::malformed(self.path.display().to_string(), CHANGED)),
        }
    }

    /// Parses the file.
    ///
    /// # Errors
    /// Those of [`ElfFile::parse`].
    pub fn parse(&self) -> Result<ElfFile<RegularFile<'_>>, ElfError> {
        ElfFile::parse(RegularFile::new(&self.file).map_err(|source| self.read_error(source))?)
    }

    /// Returns the error of a system call on the file.
    pub(crate) fn read_error(&self, source: io::Error) -> ElfError {
        ElfError::Read { what: self.path.display().to_string(), offset: 0, len: 0, source }
    }
}

/// The contents of `.gnu_debuglink`: the name of a debug file and the CRC-32 (that of zlib) of its
/// contents.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DebugLink {
    name: String,
    crc: u32,
}

impl DebugFileLocator {
    /// Returns the places in the process's root alone, if that is there and isn't the host's.
    pub(crate) fn of_container(&self) -> Option<Self> {
        let root = self.process_root.clone().filter(|root| is_another(root))?;
        Some(Self { process_root: Some(root), ..Self::default() })
    }

    /// Returns the places that may name a file with this key: the process's own root only if it has
    /// a debug file for it. The key of all others is shared with processes of other roots.
    pub(crate) fn for_key(&self, key: &FileKey) -> Self {
        let is_own = key.debug.is_some() || self.process_root.as_deref().is_some_and(is_hosts);
        Self { process_root: self.process_root.clone().filter(|_| is_own), ..self.clone() }
    }

    /// Returns the debug file of `file`, which was mapped from `path` as its process sees it.
    pub fn find<S: ByteSource>(&self, file: &ElfFile<S>, path: &Path) -> Option<DebugFile> {
        let by_id = file.build_id().and_then(|id| self.by_build_id(id));
        by_id.or_else(|| self.by_link(file, path))
    }

    /// Returns the debug file with this build id.
    pub fn by_build_id(&self, id: BuildId) -> Option<DebugFile> {
        let hex = id.to_string();
        let (first, rest) = hex.split_at_checked(2)?;
        let relative = format!("{DEBUG_DIRECTORY}/.build-id/{first}/{rest}.debug");
        let fits = |debug: &ElfFile<RegularFile<'_>>| debug.build_id() == Some(id);
        self.below_roots(Path::new(&relative), fits).or_else(|| {
            let root = self.downloads.as_deref()?;
            open_checked(root, Path::new(&fetched_name(id)), true, fits)
        })
    }

    fn by_link<S: ByteSource>(&self, file: &ElfFile<S>, path: &Path) -> Option<DebugFile> {
        let link = debug_link(file).inspect_err(|error| {
            tracing::debug!(path = %path.display(), %error, "a link to a debug file can't be read");
        });
        let link = link.ok()??;
        let directory = path.parent()?;
        let relative = directory.strip_prefix("/").ok()?;
        let fits = |debug: &ElfFile<RegularFile<'_>>| {
            // A build id on both sides has the last word; the checksum costs reading all of it.
            let ids = file.build_id().zip(debug.build_id());
            ids.is_none_or(|(own, other)| own == other) && crc_of(debug.source()) == Some(link.crc)
        };
        [
            relative.join(&link.name),
            relative.join(".debug").join(&link.name),
            Path::new(DEBUG_DIRECTORY).join(relative).join(&link.name),
        ]
        .iter()
        .find_map(|candidate| self.below_roots(candidate, fits))
    }

    /// Returns the file of shared DWARF (`dwz`) that a debug file refers to by path and build id.
    /// `place` is the debug file's path in its own root.
    pub fn supplementary<S: ByteSource>(&self, debug: &ElfFile<S>, place: &Path) -> Option<DebugFile> {
        let (name, id) = alternate_link(debug).ok()??;
        let fits = |other: &ElfFile<RegularFile<'_>>| other.build_id() == Some(id);
        // Mostly absolute; relative ones count from the debug file.
        let path = place.parent().unwrap_or(Path::new("/")).join(name);
        self.by_build_id(id).or_else(|| self.below_roots(path.strip_prefix("/").ok()?, fits))
    }

    fn below_roots(
        &self,
        relative: &Path,
        fits: impl Fn(&ElfFile<RegularFile<'_>>) -> bool,
    ) -> Option<DebugFile> {
        let process = self.process_root.as_deref();
        let found = process.and_then(|root| open_checked(root, relative, is_hosts(root), &fits));
        found.or_else(|| self.host.then(|| open_checked(Path::new("/"), relative, true, &fits))?)
    }
}

/// Returns true if a process has the host's root directory for its own.
fn is_hosts(root: &Path) -> bool {
    identity(root).is_some_and(|root| Some(root) == identity(Path::new("/")))
}

/// Returns true if it has another one. A process that is gone has none.
fn is_another(root: &Path) -> bool {
    identity(root).is_some_and(|root| Some(root) != identity(Path::new("/")))
}

/// Returns device and inode of a root.
fn identity(root: &Path) -> Option<(u64, u64)> {
    let root = root.metadata().ok()?;
    Some((root.dev(), root.ino()))
}

fn open_checked(
    root: &Path,
    relative: &Path,
    is_of_host: bool,
    fits: impl Fn(&ElfFile<RegularFile<'_>>) -> bool,
) -> Option<DebugFile> {
    let path = root.join(relative);
    let file = match open_in_root_following(root, relative) {
        Ok(file) => file,
        Err(error) => {
            if !error.is_not_found() {
                tracing::debug!(%error, "a debug file can't be opened");
            }
            return None;
        }
    };
    let stat = FileStat::of(&file).ok()?;
    let parsed = RegularFile::new(&file).ok().map(ElfFile::parse)?;
    match parsed {
        Ok(parsed) if fits(&parsed) => {}
        Ok(_) => {
            tracing::debug!(path = %path.display(), "a debug file belongs to another build");
            return None;
        }
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "a debug file can't be used");
            return None;
        }
    }
    Some(DebugFile { file, stat, path, place: Path::new("/").join(relative), is_of_host })
}

/// Parses `.gnu_debuglink`: the name, a zero byte, padding to 4 bytes, the CRC (gdb manual,
/// "Separate Debug Files").
fn debug_link<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<DebugLink>, ElfError> {
    let Some(section) = file.section(".gnu_debuglink") else { return Ok(None) };
    let bytes = file.read(section, MAX_LINK)?;
    Ok(parse_debug_link(&bytes))
}

fn parse_debug_link(bytes: &[u8]) -> Option<DebugLink> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    let crc_at = (end + 1).next_multiple_of(4);
    let crc = u32::from_le_bytes(bytes.get(crc_at..crc_at + 4)?.try_into().ok()?);
    // A name, not a way out of the directories that are searched.
    let is_name = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    is_name.then(|| DebugLink { name: name.to_owned(), crc })
}

/// Parses `.gnu_debugaltlink`: the path, a zero byte, the build id (DWARF 5 has the same as
/// `.debug_sup`, which no tool writes yet).
fn alternate_link<S: ByteSource>(file: &ElfFile<S>) -> Result<Option<(PathBuf, BuildId)>, ElfError> {
    let Some(section) = file.section(".gnu_debugaltlink") else { return Ok(None) };
    let bytes = file.read(section, MAX_LINK)?;
    let parse = || {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&bytes[..end]).ok().filter(|name| !name.is_empty())?;
        Some((PathBuf::from(name), BuildId::new(bytes.get(end + 1..)?)?))
    };
    Ok(parse())
}

/// Computes a file's CRC-32; `None` if it can't be read or is too large.
fn crc_of(source: &impl ByteSource) -> Option<u32> {
    const PIECE: u64 = 1 << 20;
    let size = source.size();
    if size > MAX_CRC_BYTES {
        return None;
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; PIECE as usize];
    for offset in (0..size).step_by(PIECE as usize) {
        let piece = buffer.get_mut(..PIECE.min(size - offset) as usize)?;
        source.read_exact_at(offset, piece).ok()?;
        hasher.update(piece);
    }
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_link_is_a_name_and_nothing_else() {
        let link = |name: &[u8]| {
            let mut bytes = name.to_vec();
            bytes.push(0);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend_from_slice(&7_u32.to_le_bytes());
            parse_debug_link(&bytes)
        };
        assert_eq!(link(b"libfoo.so.debug"), Some(DebugLink { name: "libfoo.so.debug".to_owned(), crc: 7 }));
        for name in [&b""[..], b".", b"..", b"../../etc/shadow", b"/etc/shadow", b"a/b", b"\xff"] {
            assert_eq!(link(name), None, "{name:?}");
        }
        assert_eq!(parse_debug_link(b"no end"), None);
        assert_eq!(parse_debug_link(b"cut\0\x01\x02"), None);
    }
}
