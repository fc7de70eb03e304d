//! Opening a store: who writes to the directory, who only reads it, and who follows what another
//! process writes.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::directory_scan::{ForeignFiles, LeftoverFiles, scan};
use super::{Store, StoreError, StoreOptions, StoreState, file_names, staged_files};
use crate::export::directory_lock::DirectoryLock;

/// The shortest time after which a directory that is followed is read again.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// A large directory takes long to read: at most one part in so many of the time goes there.
const FOLLOW_SHARE: u32 = 10;
/// Whoever only asks whether there is a writer holds the lock for a moment.
const LOCK_TIME: Duration = Duration::from_millis(300);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The access that a store has to its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryAccess {
    /// Nobody else writes.
    Write,
    /// Nothing is written.
    Read,
    /// The first profile that is added makes it the writer, if no other process is.
    WriteWhenNeeded,
}

/// The last read of a directory that another process writes to.
#[derive(Debug)]
pub(super) struct DirectoryFollower(Mutex<LastRead>);

#[derive(Debug)]
struct LastRead {
    ended: Instant,
    took: Duration,
}

impl LastRead {
    fn is_stale(&self) -> bool {
        self.ended.elapsed() >= FOLLOW_INTERVAL.max(self.took * FOLLOW_SHARE)
    }
}

impl Store {
    /// Opens the directory for writing, and creates it if it isn't there.
    ///
    /// # Errors
    /// Another process writes to it, or it can't be created or listed.
    pub fn open(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        staged_files::create_dir(&file_names::series_root(dir))?;
        let lock = lock(dir)?;
        let state = scan(dir, options.max_label_bytes, LeftoverFiles::Remove, ForeignFiles::Report)?;
        let store = Self::new(dir, options, DirectoryAccess::Write, state);
        *store.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
        store.remove_over_limit();
        Ok(store)
    }

    /// Opens the directory for reading, whoever writes to it. [`Store::refresh`] sees what has been
    /// written since.
    ///
    /// # Errors
    /// The directory isn't there, isn't a store's, or can't be listed.
    pub fn open_for_reading(dir: &Path) -> Result<Self, StoreError> {
        let options = StoreOptions::default();
        let state = scan(dir, options.max_label_bytes, LeftoverFiles::Leave, ForeignFiles::Report);
        let state = state.map_err(|error| match error {
            StoreError::Io { source, .. } if source.kind() == ErrorKind::NotFound && dir.is_dir() => {
                StoreError::NoStore { dir: dir.to_owned() }
            }
            other => other,
        })?;
        Ok(Self::new(dir, options, DirectoryAccess::Read, state))
    }

    /// Opens a directory that another process may write to, now or later, and creates it if it
    /// isn't there. What others write is seen as by [`Store::following`]. The first profile that is
    /// added makes this store the writer, if there is no other.
    ///
    /// # Errors
    /// The directory can't be created, written to or listed.
    pub fn open_shared(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        staged_files::create_dir(&file_names::series_root(dir))?;
        match try_lock(dir) {
            // A daemon that starts later finds the directory unlocked.
            Ok(lock) => drop(lock),
            Err(StoreError::Locked { .. }) => {
                let dir = dir.display();
                tracing::info!(%dir, "another process writes there: its profiles are shown, no others are taken");
            }
            Err(error) => return Err(error),
        }
        let state = scan(dir, options.max_label_bytes, LeftoverFiles::Leave, ForeignFiles::Report)?;
        Ok(Self::new(dir, options, DirectoryAccess::WriteWhenNeeded, state).following())
    }

    fn new(dir: &Path, options: StoreOptions, access: DirectoryAccess, state: StoreState) -> Self {
        let (writer, state) = (Mutex::new(None), Mutex::new(state));
        Self { dir: dir.to_owned(), options, access, writer, following: None, state }
    }

    /// Makes the store's queries see what other processes have written a moment ago.
    #[must_use]
    pub fn following(self) -> Self {
        let last_read = LastRead { ended: Instant::now(), took: Duration::ZERO };
        Self { following: Some(DirectoryFollower(Mutex::new(last_read))), ..self }
    }

    /// Reads the directory again, for readers. A writer knows what it wrote: nothing happens.
    ///
    /// # Errors
    /// The directory can't be listed.
    pub fn refresh(&self) -> Result<(), StoreError> {
        self.read_again(&self.writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_again(&self, writer: &Option<DirectoryLock>) -> Result<(), StoreError> {
        if writer.is_none() {
            let read = self.scan_again(LeftoverFiles::Leave)?;
            self.state().index = read.index;
        }
        Ok(())
    }

    /// Reads the directory anew. Foreign files were reported when it was read for the first time.
    fn scan_again(&self, leftovers: LeftoverFiles) -> Result<StoreState, StoreError> {
        scan(&self.dir, self.options.max_label_bytes, leftovers, ForeignFiles::Ignore)
    }

    /// Reads a directory that is followed again, unless that was done a moment ago or is being
    /// done.
    pub(super) fn refresh_if_stale(&self) {
        let Some(DirectoryFollower(last_read)) = &self.following else { return };
        let Ok(mut last_read) = last_read.try_lock() else { return };
        // Who is about to write doesn't keep readers waiting.
        let Ok(writer) = self.writer.try_lock() else { return };
        if !last_read.is_stale() {
            return;
        }
        let began = Instant::now();
        if let Err(error) = self.read_again(&writer) {
            tracing::warn!(dir = %self.dir.display(), %error, "what others have stored can't be seen");
        }
        *last_read = LastRead { ended: Instant::now(), took: began.elapsed() };
    }

    /// Makes the store the directory's writer, if it isn't and may.
    ///
    /// # Errors
    /// Another process is, or the store is for reading only.
    pub(super) fn become_writer(&self, writer: &mut Option<DirectoryLock>) -> Result<(), StoreError> {
        if writer.is_some() {
            return Ok(());
        }
        let dir = || self.dir.clone();
        if self.access != DirectoryAccess::WriteWhenNeeded {
            return Err(StoreError::ReadOnly { dir: dir() });
        }
        let lock = lock(&self.dir).map_err(|error| match error {
            StoreError::Locked { .. } => StoreError::WrittenByOther { dir: dir() },
            other => other,
        })?;
        let read = self.scan_again(LeftoverFiles::Remove)?;
        let mut state = self.state();
        state.index = read.index;
        state.counters.leftovers_removed += read.counters.leftovers_removed;
        // Foreign files of which some were found at opening.
        state.counters.skipped = state.counters.skipped.max(read.counters.skipped);
        drop(state);
        *writer = Some(lock);
        self.remove_over_limit();
        tracing::info!(dir = %self.dir.display(), "profiles are stored here from now on");
        Ok(())
    }
}

/// Takes the lock.
fn lock(dir: &Path) -> Result<DirectoryLock, StoreError> {
    let deadline = Instant::now() + LOCK_TIME;
    loop {
        match try_lock(dir) {
            Err(StoreError::Locked { .. }) if Instant::now() < deadline => thread::sleep(LOCK_PAUSE),
            result => return result,
        }
    }
}

fn try_lock(dir: &Path) -> Result<DirectoryLock, StoreError> {
    let path = dir.join(file_names::LOCK);
    let lock = DirectoryLock::try_take(&path).map_err(StoreError::io("lock", &path))?;
    lock.ok_or_else(|| StoreError::Locked { dir: dir.to_owned() })
}
