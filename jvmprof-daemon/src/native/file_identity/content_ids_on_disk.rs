//! Hashes of files' contents that are kept on disk: a daemon that is restarted needn't read every
//! large library and program of the host again, which takes as much CPU as all else of its start.
//!
//! A hash is believed for the same file of the same device, size, modification and change time, in
//! the same boot of the machine. The change time is the kernel's: no process can set it. So it is
//! kept only where the kernel itself has it, on block devices: who mounts a FUSE file system states
//! any times there, and containers' overlays are numbered anew with each mount. Whole seconds are
//! believed on the host's root alone: it stays mounted for the whole boot, so that its number means
//! no other file system, and whatever changed since has a time of this kernel's.

use std::fs;
use std::hash::Hasher as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::checksummed_cache::{ChecksummedCache, ChecksummedCacheError};
use super::{ContentId, FileStat};

/// Ending of the files' names.
const ENDING: &str = ".content";
/// Most bytes of all files together, a hundred each.
const LIMIT_BYTES: u64 = 256 << 10;
/// The machine's boot, a UUID that the kernel draws.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The root of the host, also where the daemon has another one; and the daemon's own, where a
/// security module forbids that.
const HOST_ROOTS: [&str; 2] = ["/proc/1/root", "/"];
/// Age of a change from which on another one has another time. Pages that are mapped and dirty
/// change without another time until they are written back, after half a minute by default
/// (`vm.dirty_expire_centisecs`).
const LEAST_AGE: Duration = Duration::from_secs(120);
/// Major number of loop devices, whose images state any times.
const LOOP_DEVICES: u32 = 7;

/// A folder of hashes of files' contents, with which other caches may share it.
#[derive(Debug)]
pub struct ContentIdsOnDisk {
    cache: ChecksummedCache,
    boot: String,
    /// The device of the host's root, if it can be seen.
    root_device: Option<u64>,
}

impl ContentIdsOnDisk {
    /// Opens the folder, and makes it if it isn't there. To be called before any file is
    /// identified: from now on they are by the folder's key.
    ///
    /// # Errors
    /// See [`ChecksummedCacheError`].
    pub fn open(path: &Path) -> Result<Self, ChecksummedCacheError> {
        let cache = ChecksummedCache::open(path, ENDING, LIMIT_BYTES)?;
        let boot = fs::read_to_string(BOOT_ID)
            .map_err(|source| ChecksummedCacheError::Boot { path: BOOT_ID.into(), source })?;
        let root_device = HOST_ROOTS.iter().find_map(|path| Some(fs::metadata(path).ok()?.dev()));
        Ok(Self { cache, boot, root_device })
    }

    /// Returns the hash of a file that an earlier run has made.
    pub(in crate::native) fn get(&self, stat: FileStat, with_lines: bool) -> Option<ContentId> {
        if !self.has_kernel_times(stat) {
            return None;
        }
        let identity = self.encode(stat, with_lines);
        let bytes = self.cache.get(&self.name(&identity))?;
        let (stored, hash) = bytes.split_last_chunk()?;
        (stored == identity).then(|| ContentId::Hash(u64::from_le_bytes(*hash)))
    }

    /// Stores the hash of a file that was the same before and after it was read. A failure harms
    /// nothing.
    pub(in crate::native) fn store(&self, stat: FileStat, with_lines: bool, content: ContentId) {
        let ContentId::Hash(hash) = content else { return };
        if !self.has_kernel_times(stat) || !is_old(stat, SystemTime::now()) {
            return;
        }
        let identity = self.encode(stat, with_lines);
        self.cache.store(&self.name(&identity), &[&identity[..], &hash.to_le_bytes()].concat());
    }

    /// Returns true if a file's times are this kernel's: what is no block device has the major
    /// number 0, and whole seconds are those of images, or of a file system that keeps no change
    /// time.
    fn has_kernel_times(&self, stat: FileStat) -> bool {
        let device = stat.identity.device;
        let has_nanoseconds = stat.changed_ns % 1_000_000_000 != 0;
        !matches!(libc::major(device), 0 | LOOP_DEVICES)
            && (has_nanoseconds || self.root_device == Some(device))
    }

    /// Returns all that a hash is believed by.
    fn encode(&self, stat: FileStat, with_lines: bool) -> Vec<u8> {
        let FileStat { identity, changed_ns } = stat;
        let mut bytes = vec![u8::from(with_lines)];
        for number in [identity.device, identity.inode, identity.size] {
            bytes.extend(number.to_le_bytes());
        }
        for time in [identity.modified_ns, changed_ns] {
            bytes.extend(time.to_le_bytes());
        }
        bytes.extend(self.boot.as_bytes());
        bytes
    }

    /// Returns the name of a file's entry.
    fn name(&self, identity: &[u8]) -> String {
        let mut hasher = self.cache.key().hasher();
        hasher.write(identity);
        format!("{:016x}", hasher.finish())
    }
}

/// Returns true if a change from now on has another time than the last one.
fn is_old(stat: FileStat, now: SystemTime) -> bool {
    let now_ns = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let latest = i128::try_from(now_ns.saturating_sub(LEAST_AGE.as_nanos())).unwrap_or(i128::MAX);
    stat.changed_ns <= latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::file_identity::{FileIdentity, HashKey};

    const STAT: FileStat = FileStat {
        identity: FileIdentity {
            device: libc::makedev(8, 1),
            inode: 7,
            modified_ns: 1_000_000_000,
            size: 4096,
        },
        changed_ns: 2_000_000_007,
    };

    const ROOT: u64 = libc::makedev(254, 0);

    fn open(path: &Path, key: HashKey, boot: &str) -> ContentIdsOnDisk {
        let cache = ChecksummedCache::with_key(path, ENDING, key, 7);
        ContentIdsOnDisk { cache, boot: boot.to_owned(), root_device: Some(ROOT) }
    }

    #[test]
    fn a_hash_is_believed_for_the_same_file_in_the_same_boot() {
        let scratch = tempfile::tempdir().expect("a directory");
        let key = HashKey::random();
        let on_disk = open(scratch.path(), key, "boot");
        on_disk.store(STAT, false, ContentId::Hash(42));
        let again = open(scratch.path(), key, "boot");
        assert_eq!(again.get(STAT, false), Some(ContentId::Hash(42)));
        assert_eq!(again.get(STAT, true), None, "lines are hashed, too");
        assert_eq!(open(scratch.path(), key, "later").get(STAT, false), None, "another boot");
        let identity = STAT.identity;
        let others = [
            FileStat { changed_ns: STAT.changed_ns + 1, ..STAT },
            FileStat { identity: FileIdentity { modified_ns: 3, ..identity }, ..STAT },
            FileStat { identity: FileIdentity { inode: 8, ..identity }, ..STAT },
            FileStat { identity: FileIdentity { size: 4097, ..identity }, ..STAT },
            FileStat { identity: FileIdentity { device: libc::makedev(8, 2), ..identity }, ..STAT },
        ];
        for other in others {
            assert_eq!(again.get(other, false), None, "{other:?}");
        }
    }

    #[test]
    fn times_that_others_state_and_changes_of_just_now_are_not_believed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let on_disk = open(scratch.path(), HashKey::random(), "boot");
        let on = |major| FileIdentity { device: libc::makedev(major, 50), ..STAT.identity };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let not_kept = [
            FileStat { identity: on(0), ..STAT },
            FileStat { identity: on(LOOP_DEVICES), ..STAT },
            FileStat { changed_ns: 2_000_000_000, ..STAT },
            FileStat { changed_ns: now.as_nanos().cast_signed() | 1, ..STAT },
        ];
        for stat in not_kept {
            on_disk.store(stat, false, ContentId::Hash(42));
            assert_eq!(on_disk.get(stat, false), None, "{stat:?}");
        }
        let of_root =
            FileStat { identity: FileIdentity { device: ROOT, ..STAT.identity }, changed_ns: 2_000_000_000 };
        on_disk.store(of_root, false, ContentId::Hash(42));
        assert_eq!(on_disk.get(of_root, false), Some(ContentId::Hash(42)), "it stays mounted");
        on_disk.store(STAT, false, ContentId::File(STAT.identity));
        assert_eq!(on_disk.get(STAT, false), None, "a file that isn't hashed");
    }
}
