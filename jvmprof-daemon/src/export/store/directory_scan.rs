//! The index of a store from the names of its files.

use std::fs::{self, DirEntry, File};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use super::index::StoreIndex;
use super::label_limits::label_set_bytes;
use super::{StoreCounters, StoreError, StoreState, file_names, staged_files, sums};
use crate::profile::model::LabelSet;

/// Far more than any label set; a larger file isn't one.
const MAX_LABELS_BYTES: u64 = 1 << 20;

/// The treatment of half-written files of an earlier run, and of folders without profiles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftoverFiles {
    Remove,
    /// They may be the work in progress of another process.
    Leave,
}

/// The treatment of foreign files: a directory that is followed is read again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignFiles {
    Report,
    Ignore,
}

struct DirectoryScan {
    index: StoreIndex,
    counters: StoreCounters,
    leftovers: LeftoverFiles,
    foreign_files: ForeignFiles,
    max_label_bytes: u64,
}

/// Reads the directory, and of labels no more than `max_label_bytes`.
///
/// # Errors
/// It can't be listed.
pub(super) fn scan(
    dir: &Path,
    max_label_bytes: u64,
    leftovers: LeftoverFiles,
    foreign_files: ForeignFiles,
) -> Result<StoreState, StoreError> {
    let root = file_names::series_root(dir);
    let (index, counters) = (StoreIndex::default(), StoreCounters::default());
    let mut scan = DirectoryScan { index, counters, leftovers, foreign_files, max_label_bytes };
    for entry in fs::read_dir(&root).map_err(StoreError::io("list", &root))? {
        let entry = entry.map_err(StoreError::io("list", &root))?;
        scan.series(&entry);
    }
    let DirectoryScan { mut index, counters, .. } = scan;
    sums::scan_sums(dir, &mut index, leftovers == LeftoverFiles::Remove);
    tracing::debug!(dir = %dir.display(), used_bytes = index.used_bytes(), ?counters, "store read");
    Ok(StoreState { index, counters })
}

impl DirectoryScan {
    fn skip(&mut self, path: &Path, reason: &dyn std::fmt::Display) {
        self.counters.skipped += 1;
        if self.foreign_files == ForeignFiles::Ignore {
            return;
        }
        tracing::warn!(path = %path.display(), %reason, "left alone in the store");
    }

    fn series(&mut self, entry: &DirEntry) {
        let path = entry.path();
        let name = entry.file_name();
        let Some(fingerprint) = name.to_str().filter(|name| file_names::is_fingerprint(name)) else {
            return self.skip(&path, &"not the folder of a series");
        };
        let (labels, label_bytes) = match read_labels(&path.join(file_names::LABELS)) {
            Ok(labels) => labels,
            Err(LabelsReadError::Absent) => return self.unlabelled(&path),
            Err(LabelsReadError::Broken(reason)) => {
                return self.skip(&path.join(file_names::LABELS), &reason);
            }
        };
        let of_all = self.index.label_bytes().saturating_add(label_set_bytes(&labels) as u64);
        if of_all > self.max_label_bytes {
            let limit = self.max_label_bytes;
            return self.skip(&path, &format!("the labels of all series take more than {limit} bytes"));
        }
        let listing = match fs::read_dir(&path) {
            Ok(listing) => listing,
            // Removed by the writer while we, a reader, listed the series.
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => return self.skip(&path, &error),
        };
        self.index.add_series(fingerprint, labels.into(), label_bytes);
        for file in listing {
            match file {
                Ok(file) => self.file(fingerprint, &file),
                Err(error) => self.skip(&path, &error),
            }
        }
        self.index.remove_series_if_empty(fingerprint);
        if self.index.get(fingerprint).is_none() && self.leftovers == LeftoverFiles::Remove {
            // A crash between the labels and the first profile.
            staged_files::remove_series_dir(&path);
        }
    }

    fn file(&mut self, fingerprint: &str, file: &DirEntry) {
        let (path, name) = (file.path(), file.file_name());
        let name = name.to_string_lossy();
        if name == file_names::LABELS {
            return;
        }
        if name.ends_with(file_names::TEMPORARY) {
            return self.leftover(&path);
        }
        let metadata = match file.metadata() {
            Ok(metadata) => metadata,
            // Removed by the writer while we, a reader, listed the folder.
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => return self.skip(&path, &error),
        };
        let entry =
            metadata.is_file().then(|| file_names::parse_profile_name(&name, metadata.len())).flatten();
        match entry {
            Some(entry) => self.index.add_profile(fingerprint, entry),
            None => self.skip(&path, &"not a profile of this store"),
        }
    }

    fn leftover(&mut self, path: &Path) {
        if self.leftovers == LeftoverFiles::Leave {
            return;
        }
        match fs::remove_file(path) {
            Ok(()) => {
                self.counters.leftovers_removed += 1;
                tracing::info!(path = %path.display(), "half-written file of an earlier run removed");
            }
            Err(error) => self.skip(path, &error),
        }
    }

    /// A folder without labels: a crash before they had their name, or not ours.
    fn unlabelled(&mut self, path: &Path) {
        let listing = match fs::read_dir(path) {
            Ok(listing) => listing,
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(_) => return self.skip(path, &"not a folder that can be listed"),
        };
        for file in listing.flatten() {
            let file = file.path();
            if file.to_string_lossy().ends_with(file_names::TEMPORARY) {
                self.leftover(&file);
            }
        }
        if self.leftovers == LeftoverFiles::Remove && fs::remove_dir(path).is_err() {
            self.skip(path, &"profiles without labels.json");
        }
    }
}

enum LabelsReadError {
    Absent,
    Broken(String),
}

fn read_labels(path: &Path) -> Result<(LabelSet, u64), LabelsReadError> {
    let broken = |error: &dyn std::fmt::Display| LabelsReadError::Broken(error.to_string());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(LabelsReadError::Absent),
        Err(error) => return Err(broken(&error)),
    };
    let mut text = Vec::new();
    file.take(MAX_LABELS_BYTES).read_to_end(&mut text).map_err(|error| broken(&error))?;
    let labels = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
    Ok((labels, text.len() as u64))
}
