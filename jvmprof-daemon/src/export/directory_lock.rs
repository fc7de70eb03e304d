//! The lock of a directory that one process at a time may write to.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

/// The lock while it is held. It goes with the process, however that ends.
#[derive(Debug)]
pub(in crate::export) struct DirectoryLock(File);

impl DirectoryLock {
    /// Takes the lock by this file, which is created. Returns `None` if somebody else has it.
    ///
    /// # Errors
    /// The file can't be created or locked.
    pub(in crate::export) fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A process that is being started has the file open, too, until it executes its program: to
        // close it here wouldn't be enough.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_dropped_is_free_though_its_file_is_still_open_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("lock");
        let lock = DirectoryLock::try_take(&path).expect("writable").expect("nobody has it");
        // As a process has it that was forked.
        let _inherited = lock.0.try_clone().expect("a descriptor");
        assert!(DirectoryLock::try_take(&path).expect("writable").is_none());
        drop(lock);
        assert!(DirectoryLock::try_take(&path).expect("writable").is_some());
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        assert!(DirectoryLock::try_take(&dir.path().join("missing/lock")).is_err());
    }
}
