//! Opening a store: the lock, and the index from the names of the files.

use std::fs::{self, DirEntry, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::sync::Mutex;

use super::index::StoreIndex;
use super::{Store, StoreCounters, StoreError, StoreOptions, StoreState, file_names, staged_files};
use crate::profile::model::LabelSet;

/// Far more than any label set; a larger file isn't one.
const MAX_LABELS_BYTES: u64 = 1 << 20;

impl Store {
    /// Opens the directory for writing, and creates it if it isn't there.
    ///
    /// # Errors
    /// Another process writes to it, or it can't be created or listed.
    pub fn open(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        staged_files::create_dir(&file_names::series_root(dir))?;
        let lock = lock(dir)?;
        let (index, counters) = scan(dir, Leftovers::Remove)?;
        let state = Mutex::new(StoreState { index, counters });
        let store = Self { dir: dir.to_owned(), options, lock: Some(lock), writer: Mutex::new(()), state };
        store.enforce_limit();
        Ok(store)
    }

    /// Opens the directory for reading, whoever writes to it. [`Store::refresh`] sees what has been
    /// written since.
    ///
    /// # Errors
    /// The directory isn't there or can't be listed.
    pub fn open_for_reading(dir: &Path) -> Result<Self, StoreError> {
        let (index, counters) = scan(dir, Leftovers::Leave)?;
        let state = Mutex::new(StoreState { index, counters });
        Ok(Self {
            dir: dir.to_owned(),
            options: StoreOptions::default(),
            lock: None,
            writer: Mutex::new(()),
            state,
        })
    }

    /// Reads the directory again, for readers. A writer knows what it wrote: nothing happens.
    ///
    /// # Errors
    /// The directory can't be listed.
    pub fn refresh(&self) -> Result<(), StoreError> {
        if self.lock.is_none() {
            let (index, counters) = scan(&self.dir, Leftovers::Leave)?;
            *self.state() = StoreState { index, counters };
        }
        Ok(())
    }
}

/// The lock goes with the process, however that ends.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(file_names::LOCK);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(StoreError::io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(StoreError::Io { call: "lock", path, source }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leftovers {
    Remove,
    /// They may be the work in progress of another process.
    Leave,
}

struct DirectoryScan {
    index: StoreIndex,
    counters: StoreCounters,
    leftovers: Leftovers,
}

fn scan(dir: &Path, leftovers: Leftovers) -> Result<(StoreIndex, StoreCounters), StoreError> {
    let root = file_names::series_root(dir);
    let mut scan =
        DirectoryScan { index: StoreIndex::default(), counters: StoreCounters::default(), leftovers };
    for entry in fs::read_dir(&root).map_err(StoreError::io("list", &root))? {
        let entry = entry.map_err(StoreError::io("list", &root))?;
        scan.series(&entry);
    }
    let DirectoryScan { index, counters, .. } = scan;
    tracing::debug!(dir = %dir.display(), used_bytes = index.used_bytes(), ?counters, "store opened");
    Ok((index, counters))
}

impl DirectoryScan {
    fn skip(&mut self, path: &Path, reason: &dyn std::fmt::Display) {
        self.counters.skipped += 1;
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
            Err(Unreadable::Absent) => return self.unlabelled(&path),
            Err(Unreadable::Broken(reason)) => return self.skip(&path.join(file_names::LABELS), &reason),
        };
        let listing = match fs::read_dir(&path) {
            Ok(listing) => listing,
            Err(error) => return self.skip(&path, &error),
        };
        self.index.add_series(fingerprint, labels, label_bytes);
        for file in listing {
            match file {
                Ok(file) => self.file(fingerprint, &file),
                Err(error) => self.skip(&path, &error),
            }
        }
        self.index.forget_if_empty(fingerprint);
        if self.index.get(fingerprint).is_none() && self.leftovers == Leftovers::Remove {
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
        if self.leftovers == Leftovers::Leave {
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
        let Ok(listing) = fs::read_dir(path) else {
            return self.skip(path, &"not a folder that can be listed");
        };
        for file in listing.flatten() {
            let file = file.path();
            if file.to_string_lossy().ends_with(file_names::TEMPORARY) {
                self.leftover(&file);
            }
        }
        if self.leftovers == Leftovers::Remove && fs::remove_dir(path).is_err() {
            self.skip(path, &"profiles without labels.json");
        }
    }
}

enum Unreadable {
    Absent,
    Broken(String),
}

fn read_labels(path: &Path) -> Result<(LabelSet, u64), Unreadable> {
    let broken = |error: &dyn std::fmt::Display| Unreadable::Broken(error.to_string());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Unreadable::Absent),
        Err(error) => return Err(broken(&error)),
    };
    let mut text = Vec::new();
    file.take(MAX_LABELS_BYTES).read_to_end(&mut text).map_err(|error| broken(&error))?;
    let labels = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
    Ok((labels, text.len() as u64))
}
