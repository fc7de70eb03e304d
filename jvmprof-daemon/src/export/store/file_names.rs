//! Names of the store's folders and files, which have all that the index needs.

use std::path::{Path, PathBuf};

use super::index::ProfileEntry;
use super::types::{ProfileRef, UnixNanos};
use crate::profile::model::LabelSet;

pub(super) const LOCK: &str = "lock";
pub(super) const LABELS: &str = "labels.json";
/// Files that are being written; whoever finds one without a writer may remove it.
pub(super) const TEMPORARY: &str = ".tmp";
const PROFILE: &str = ".pb.gz";

pub(super) fn series_root(dir: &Path) -> PathBuf {
    dir.join("series")
}

pub(super) fn series_dir(dir: &Path, fingerprint: &str) -> PathBuf {
    series_root(dir).join(fingerprint)
}

pub(super) fn profile_path(dir: &Path, profile: &ProfileRef) -> PathBuf {
    let name = profile_name(&ProfileEntry {
        start: profile.start,
        number: profile.number,
        duration_ns: u64::try_from(profile.duration.as_nanos()).unwrap_or(u64::MAX),
        samples: profile.samples,
        bytes: profile.bytes,
    });
    series_dir(dir, &profile.fingerprint).join(name)
}

/// Returns `<start>-<duration>-<samples>-<number>.pb.gz`, times in nanoseconds.
pub(super) fn profile_name(entry: &ProfileEntry) -> String {
    format!("{}-{}-{}-{}{PROFILE}", entry.start.0, entry.duration_ns, entry.samples, entry.number)
}

/// Parses a file's name into the entry of its profile; `None` if it isn't the name of one.
pub(super) fn parse_profile_name(name: &str, bytes: u64) -> Option<ProfileEntry> {
    // From the right, because a start before 1970 has a minus of its own.
    let mut parts = name.strip_suffix(PROFILE)?.rsplitn(4, '-');
    let number = parts.next()?.parse().ok()?;
    let samples = parts.next()?.parse().ok()?;
    let duration_ns = parts.next()?.parse().ok()?;
    let start = UnixNanos(parts.next()?.parse().ok()?);
    let entry = ProfileEntry { start, number, duration_ns, samples, bytes };
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

/// Returns true if a folder's name can be one of ours: a fingerprint, perhaps with a number behind
/// it.
pub(super) fn is_fingerprint(name: &str) -> bool {
    let (hash, suffix) = name.split_once('-').unwrap_or((name, "2"));
    hash.len() == 16
        && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && !suffix.is_empty()
        && suffix.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_profiles_say_what_the_index_needs() {
        for start in [0, 1_732_195_500_000_000_000, -5] {
            let entry = ProfileEntry {
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
