//! A folder of files that can be had anew, within a limit of bytes: the oldest are evicted.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tempfile::NamedTempFile;

/// Prefix of files that are being written; those of a crashed process are removed at the next
/// start.
const PART: &str = ".part-";

/// A folder of files with one ending. Others' files in it are left alone.
#[derive(Debug)]
pub(crate) struct CacheDirectory {
    path: PathBuf,
    /// The ending of its files' names.
    ending: &'static str,
    limit_bytes: u64,
    /// Lock that is held while files are evicted.
    sweeping: Mutex<()>,
}

impl CacheDirectory {
    /// Creates the folder for this user alone, unless it is there. `limit_bytes` is the limit of
    /// all files together.
    ///
    /// # Errors
    /// The error of creating or reading the folder.
    pub(crate) fn open(path: &Path, ending: &'static str, limit_bytes: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        for entry in fs::read_dir(path)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PART) {
                fs::remove_file(entry.path())?;
            }
        }
        let directory = Self { path: path.to_owned(), ending, limit_bytes, sweeping: Mutex::new(()) };
        directory.sweep(0)?;
        Ok(directory)
    }

    /// Returns the limit of one file in bytes: half of the folder's.
    pub(crate) fn limit_of_one(&self) -> u64 {
        self.limit_bytes / 2
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file to write to, which is removed again unless [`Self::persist`] is called.
    ///
    /// # Errors
    /// The error of creating it.
    pub(crate) fn begin(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(PART).tempfile_in(&self.path)
    }

    /// Persists a written file under a name, which has the folder's ending; the oldest others are
    /// evicted to make space.
    ///
    /// # Errors
    /// The error of moving or removing a file.
    pub(crate) fn persist(&self, part: NamedTempFile, name: &str) -> io::Result<()> {
        self.sweep(part.as_file().metadata()?.len())?;
        part.persist(self.path.join(name)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the oldest files until there is space for `more` bytes. Files in use stay readable.
    fn sweep(&self, more: u64) -> io::Result<()> {
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let (path, metadata) = (entry.path(), entry.metadata()?);
            if metadata.is_file() && path.to_string_lossy().ends_with(self.ending) {
                files.push((metadata.modified()?, metadata.len(), path));
            }
        }
        files.sort_unstable();
        let mut held = files.iter().map(|(_, size, _)| size).sum::<u64>();
        for (_, size, path) in files {
            if held.saturating_add(more) <= self.limit_bytes {
                break;
            }
            fs::remove_file(&path)?;
            held -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_oldest_files_leave_and_half_written_ones_too() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join(".part-left"), "x").expect("written");
        fs::write(scratch.path().join("notes.txt"), "another's").expect("written");
        let directory = CacheDirectory::open(scratch.path(), ".debug", 100).expect("opened");
        for n in 0..4 {
            let mut part = directory.begin().expect("begun");
            part.write_all(&[n; 40]).expect("written");
            let name = format!("{n}.debug");
            directory.persist(part, &name).expect("persisted");
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n));
            let file = fs::File::open(scratch.path().join(name)).expect("there");
            file.set_modified(time).expect("set");
        }
        drop(directory.begin());
        let mut names: Vec<String> = fs::read_dir(scratch.path())
            .expect("listed")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["2.debug", "3.debug", "notes.txt"]);
    }
}
