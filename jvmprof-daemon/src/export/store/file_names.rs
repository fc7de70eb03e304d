//! Names and durable writing of the store's files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::index::Entry;
use super::queries::{ProfileRef, UnixNanos};
use crate::profile::model::LabelSet;

pub(super) const LOCK: &str = "lock";
pub(super) const LABELS: &str = "labels.json";
/// Files that are being written; whoever finds one without a writer may remove it.
pub(super) const TEMPORARY: &str = ".tmp";
const PROFILE: &str = ".pb.gz";

/// Profiles tell what a host runs: not for everyone on it.
const DIR_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

pub(super) fn series_root(dir: &Path) -> PathBuf {
    dir.join("series")
}

pub(super) fn series_dir(dir: &Path, fingerprint: &str) -> PathBuf {
    series_root(dir).join(fingerprint)
}

pub(super) fn profile_path(dir: &Path, profile: &ProfileRef) -> PathBuf {
    let name = profile_name(&Entry {
        start: profile.start,
        number: profile.number,
        duration_ns: u64::try_from(profile.duration.as_nanos()).unwrap_or(u64::MAX),
        samples: profile.samples,
        bytes: profile.bytes,
    });
    series_dir(dir, &profile.fingerprint).join(name)
}

/// `<start>-<duration>-<samples>-<number>.pb.gz`, times in nanoseconds.
pub(super) fn profile_name(entry: &Entry) -> String {
    format!("{}-{}-{}-{}{PROFILE}", entry.start.0, entry.duration_ns, entry.samples, entry.number)
}

/// What a file's name says of its profile; `None` if it isn't the name of one.
pub(super) fn parse_profile_name(name: &str, bytes: u64) -> Option<Entry> {
    // From the right, because a start before 1970 has a minus of its own.
    let mut parts = name.strip_suffix(PROFILE)?.rsplitn(4, '-');
    let number = parts.next()?.parse().ok()?;
    let samples = parts.next()?.parse().ok()?;
    let duration_ns = parts.next()?.parse().ok()?;
    let start = UnixNanos(parts.next()?.parse().ok()?);
    let entry = Entry { start, number, duration_ns, samples, bytes };
    // `+1` and `01` parse as numbers too, but then the file couldn't be found again by its entry.
    (profile_name(&entry) == name).then_some(entry)
}

/// Name of the folder for a label set: stable across versions of the program (FNV-1a, 64 bits).
///
/// Whoever sends profiles may craft collisions, so equal fingerprints don't mean equal label sets.
pub(super) fn fingerprint(labels: &LabelSet) -> String {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // 0xff never occurs in UTF-8, so that ("ab", "c") and ("a", "bc") differ.
    let bytes =
        labels.iter().flat_map(|(name, value)| name.bytes().chain([0xff]).chain(value.bytes()).chain([0xff]));
    let hash = bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

/// Whether a folder's name can be one of ours: a fingerprint, perhaps with a number behind it.
pub(super) fn is_fingerprint(name: &str) -> bool {
    let (hash, suffix) = name.split_once('-').unwrap_or((name, "2"));
    hash.len() == 16
        && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && !suffix.is_empty()
        && suffix.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn create_dir(path: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
        .map_err(StoreError::io("create folder", path))
}

/// Makes renames and removals inside of a folder survive a power cut.
pub(super) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    let dir = File::open(path).map_err(StoreError::io("open folder", path))?;
    dir.sync_all().map_err(StoreError::io("sync folder", path))
}

/// A file that isn't under its name yet: written, synced, published, in this order. Removed when
/// dropped without being published.
#[derive(Debug)]
pub(super) struct Staged {
    temporary: PathBuf,
    target: PathBuf,
    /// Until it is synced.
    file: Option<File>,
    published: bool,
}

impl Staged {
    /// Writes `bytes` under a temporary name in `dir`.
    pub(super) fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        let temporary = dir.join(format!("{name}{TEMPORARY}"));
        let mut staged = Self { target: dir.join(name), temporary, file: None, published: false };
        let path = &staged.temporary;
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(path)
            .map_err(StoreError::io("create", path))?;
        file.write_all(bytes).map_err(StoreError::io("write", path))?;
        staged.file = Some(file);
        Ok(staged)
    }

    /// Waits until the file's bytes are on disk.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        match self.file.take() {
            Some(file) => file.sync_all().map_err(StoreError::io("sync", &self.temporary)),
            None => Ok(()),
        }
    }

    /// Gives the file its name. The folder still has to be synced.
    pub(super) fn publish(&mut self) -> Result<(), StoreError> {
        fs::rename(&self.temporary, &self.target).map_err(StoreError::io("rename to", &self.target))?;
        self.published = true;
        Ok(())
    }

    /// Takes the file back, whatever state it is in.
    pub(super) fn withdraw(self) {
        if self.published {
            remove(&self.target);
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            remove(&self.temporary);
        }
    }
}

/// Removes the folder of a series that has no profiles; if something foreign is in it, it stays
/// with its labels.
pub(super) fn remove_series_dir(dir: &Path) {
    let Ok(mut files) = fs::read_dir(dir) else { return };
    if files.all(|file| file.is_ok_and(|file| file.file_name() == LABELS)) {
        remove(&dir.join(LABELS));
        if let Err(error) = fs::remove_dir(dir) {
            tracing::warn!(path = %dir.display(), %error, "folder stays behind in the store");
        }
    }
}

/// Removes a file of ours as far as possible: what stays is found by the next opening.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "file stays behind in the store"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_profiles_say_what_the_index_needs() {
        for start in [0, 1_732_195_500_000_000_000, -5] {
            let entry = Entry {
                start: UnixNanos(start),
                number: 7,
                duration_ns: 10_000_000_000,
                samples: 990,
                bytes: 5,
            };
            assert_eq!(parse_profile_name(&profile_name(&entry), 5), Some(entry));
        }
    }

    #[test]
    fn names_that_are_not_exactly_ours_are_foreign() {
        for name in [
            "",
            ".pb.gz",
            "1-2-3.pb.gz",
            "1-2-3-4.pb",
            "01-2-3-4.pb.gz",
            "1-+2-3-4.pb.gz",
            "1-2-3-4.pb.gz.tmp",
        ] {
            assert_eq!(parse_profile_name(name, 5), None, "{name:?}");
        }
    }

    #[test]
    fn fingerprints_tell_neighbouring_texts_apart_and_never_change() {
        let set = |name: &str, value: &str| LabelSet::from([(name.to_owned(), value.to_owned())]);
        assert_ne!(fingerprint(&set("ab", "c")), fingerprint(&set("a", "bc")));
        assert_eq!(fingerprint(&LabelSet::new()), "cbf29ce484222325");
        assert!(is_fingerprint("cbf29ce484222325") && is_fingerprint("cbf29ce484222325-2"));
        assert!(!is_fingerprint("..") && !is_fingerprint("cbf29ce484222325-"));
    }
}
