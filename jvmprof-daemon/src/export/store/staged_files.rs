//! Durable writing: files that appear under their names as a whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::StoreError;
use super::file_names::{LABELS, TEMPORARY};

/// Profiles reveal what a host runs: not for everyone on it.
const DIR_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

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
pub(super) struct StagedFile {
    temporary: PathBuf,
    target: PathBuf,
    /// Until it is synced.
    file: Option<File>,
    published: bool,
}

impl StagedFile {
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

    /// Removes the file, whatever state it is in.
    pub(super) fn discard(self) {
        if self.published {
            remove(&self.target);
        }
    }
}

impl Drop for StagedFile {
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
pub(super) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "file stays behind in the store"),
    }
}
