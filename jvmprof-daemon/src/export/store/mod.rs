//! A directory of pprof files by series, with an index in memory.
//!
//! ```text
//! DIR/lock                                                  held by the one process that writes
//! DIR/series/<fingerprint>/labels.json                      the label set, `__name__` included
//! DIR/series/<fingerprint>/<start>-<duration>-<samples>-<number>.pb.gz
//! DIR/sums/                                                 sums of profiles, see `sums.rs`
//! ```
//! The names of the files say all that the index needs, so that opening reads no profile. Every
//! file is written under a temporary name, synced and renamed: it is either whole or absent. What a
//! crash leaves behind is removed by the next writer; what isn't ours is reported and left alone.
//!
//! The methods do blocking I/O: call them from `spawn_blocking`.

mod access;
mod append;
mod directory_scan;
mod error;
mod file_names;
mod index;
mod label_limits;
mod parallel_sync;
mod queries;
mod staged_files;
mod sums;
#[cfg(test)]
mod tests;
mod types;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::export::directory_lock::DirectoryLock;
use crate::profile::model::LabelSet;

pub use append::NewProfile;
pub use error::StoreError;
pub use label_limits::MAX_LABEL_SET_BYTES;
pub use sums::{HOUR, MissingSum, SUM_MAKER, SUM_PERIODS, SumWrite, digest_of};
pub use types::{Matcher, ProfileRef, SeriesInfo, SumPeriod, TimeRange, UnixNanos};

/// The label that holds the profile's name.
pub const NAME_LABEL: &str = "__name__";

/// Options of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Oldest profiles are removed when the files take more than this. Counted in blocks of 4 KiB,
    /// as file systems allocate.
    pub limit_bytes: u64,
    /// New series are refused when the labels of all would take more than this, in memory. Those
    /// that are there are taken on.
    pub max_label_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { limit_bytes: 4 << 30, max_label_bytes: label_limits::MAX_LABEL_BYTES }
    }
}

/// Counts since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    pub stored_profiles: u64,
    /// Bytes of the profiles as they were handed in.
    pub stored_bytes: u64,
    /// Profiles that were removed because of the limit, or because they alone exceed it.
    pub removed_profiles: u64,
    pub removed_bytes: u64,
    /// Half-written files of an earlier crash, removed when the store became the writer.
    pub leftovers_removed: u64,
    /// Files and folders that aren't ours, can't be read or are beyond
    /// [`StoreOptions::max_label_bytes`], left alone.
    pub skipped: u64,
}

/// An open store. Shared as `Arc<Store>`.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    options: StoreOptions,
    access: access::DirectoryAccess,
    /// Held while files are written or removed; taken before `state`, which is never held during
    /// I/O. The file is the directory's lock, which only its one writer has.
    writer: Mutex<Option<DirectoryLock>>,
    /// `None`: the directory is read again only by [`Store::refresh`].
    following: Option<access::DirectoryFollower>,
    state: Mutex<StoreState>,
}

#[derive(Debug, Default)]
struct StoreState {
    index: index::StoreIndex,
    counters: StoreCounters,
}

impl Store {
    /// The directory this store lives in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn counters(&self) -> StoreCounters {
        self.state().counters
    }

    /// Bytes that the store's files take now, in whole blocks.
    pub fn used_bytes(&self) -> u64 {
        self.state().index.used_bytes()
    }

    /// A thread that panicked while it held the index can't have left it half changed in a way that
    /// matters: entries are added and removed whole. So the index stays usable.
    fn state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `labels` with the profile's name as `__name__`.
pub fn with_name(labels: &LabelSet, name: &str) -> LabelSet {
    let mut labels = labels.clone();
    labels.insert(NAME_LABEL.to_owned(), name.to_owned());
    labels
}
