//! Debug files from debuginfod servers, fetched in the background and cached on disk.
//!
//! Nothing waits for a server: a caller requests a debug file, goes on without it, and takes the
//! finished ones later ([`Debuginfod::take_fetched`]). The protocol is `GET
//! URL/buildid/HEX/debuginfo` (elfutils, debuginfod(8)).

mod fetch;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use moka::sync::Cache;
use url::Url;

use crate::cache_directory::CacheDirectory;
use crate::native::debug_files::{ENDING, fetched_name};
use crate::own_process::thread_priority;
use crate::types::BuildId;
pub use fetch::FetchError;
use fetch::Fetcher;

/// Maximum number of files that are fetched at the same time.
const WORKERS: usize = 2;
/// Maximum number of build ids that wait for a worker.
const MAX_WAITING: usize = 1024;
/// Maximum number of build ids whose retry time is kept.
const MAX_REMEMBERED: u64 = 16_384;

/// Servers and their limits.
#[derive(Clone, Debug)]
pub struct DebuginfodOptions {
    /// Servers, tried one after the other until one has the file.
    pub urls: Vec<Url>,
    /// The folder in which files are kept: `BUILDID.debug`.
    pub directory: PathBuf,
    /// Disk space for them, in bytes; the least recently fetched are evicted first. One file may
    /// take half of it.
    pub limit_bytes: u64,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Time limit between two parts of a server's answer.
    pub stall_timeout: Duration,
    /// Time until a build id that no server has is requested again; after other errors, and for an
    /// evicted file, it is a tenth of it.
    pub retry_after: Duration,
}

impl DebuginfodOptions {
    /// Returns the defaults.
    pub fn new(urls: Vec<Url>, directory: PathBuf) -> Self {
        Self {
            urls,
            directory,
            limit_bytes: 2 << 30,
            timeout: Duration::from_secs(300),
            stall_timeout: Duration::from_secs(30),
            retry_after: Duration::from_secs(6 * 3600),
        }
    }
}

/// Error of starting to fetch debug files.
#[derive(Debug, thiserror::Error)]
pub enum DebuginfodError {
    #[error("creating the folder {} for debug files: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("starting a thread that fetches debug files: {0}")]
    Thread(io::Error),
}

/// The state of a requested debug file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchState {
    /// The file is being fetched, or will be: [`Debuginfod::take_fetched`] returns it if it comes.
    Pending,
    /// No server has it, it came already, or too many others are pending.
    Unavailable,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebuginfodCounts {
    pub requested: u64,
    pub fetched: u64,
    pub fetched_bytes: u64,
    /// Build ids that no server has.
    pub missing: u64,
    /// Files that were refused, and servers that failed.
    pub failed: u64,
    /// Build ids that weren't requested because too many others waited.
    pub turned_away: u64,
}

/// Client of debuginfod servers, with its threads. They end with it, after their current request.
#[derive(Debug)]
pub struct Debuginfod {
    queue: SyncSender<BuildId>,
    shared: Arc<DebuginfodState>,
}

#[derive(Debug)]
struct DebuginfodState {
    directory: PathBuf,
    pending: Mutex<PendingFetches>,
    retry_times: Cache<BuildId, RetryTimes>,
    retry_after: Duration,
    counts: Mutex<DebuginfodCounts>,
}

/// Times until which a build id isn't requested again.
#[derive(Clone, Copy, Debug)]
struct RetryTimes {
    /// Time of the next request.
    until: Instant,
    /// Upper bound of [`Self::until`] for a file that came, but isn't there any more.
    until_if_gone: Instant,
}

#[derive(Debug, Default)]
struct PendingFetches {
    /// Build ids in the queue, being fetched, or arrived.
    wanted: HashSet<BuildId>,
    /// Build ids whose files have come and that [`Debuginfod::take_fetched`] hasn't returned yet.
    arrived: Vec<BuildId>,
}

impl Debuginfod {
    /// Creates the directory and starts the threads.
    ///
    /// # Errors
    /// See [`DebuginfodError`].
    pub fn start(options: DebuginfodOptions) -> Result<Self, DebuginfodError> {
        let directory = CacheDirectory::open(&options.directory, ENDING, options.limit_bytes)
            .map_err(|source| DebuginfodError::Directory { path: options.directory.clone(), source })?;
        let (queue, wanted) = mpsc::sync_channel(MAX_WAITING);
        let shared = Arc::new(DebuginfodState {
            directory: options.directory.clone(),
            pending: Mutex::default(),
            retry_times: Cache::builder().max_capacity(MAX_REMEMBERED).build(),
            retry_after: options.retry_after,
            counts: Mutex::default(),
        });
        let wanted = Arc::new(Mutex::new(wanted));
        let fetcher = Arc::new(Fetcher::new(options, directory));
        for _ in 0..WORKERS {
            let (wanted, fetcher, shared) = (Arc::clone(&wanted), Arc::clone(&fetcher), Arc::clone(&shared));
            thread::Builder::new()
                .name("debuginfod".to_owned())
                .spawn(move || {
                    thread_priority::lower_to_idle_io();
                    shared.work(&wanted, &fetcher);
                })
                .map_err(DebuginfodError::Thread)?;
        }
        Ok(Self { queue, shared })
    }

    /// Returns the folder in which files are kept.
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }

    /// Requests the debug file of a build id. Never blocks on a server.
    pub fn request(&self, id: BuildId) -> FetchState {
        let shared = &self.shared;
        let mut pending = shared.lock();
        if pending.wanted.contains(&id) {
            return FetchState::Pending;
        }
        if shared.retry_times.get(&id).is_some_and(|times| shared.must_wait(id, times)) {
            return FetchState::Unavailable;
        }
        if self.queue.try_send(id).is_err() {
            shared.counts().turned_away += 1;
            return FetchState::Unavailable;
        }
        shared.counts().requested += 1;
        pending.wanted.insert(id);
        FetchState::Pending
    }

    /// Returns the build ids whose files have come since the last call. Until this call they are
    /// pending.
    pub fn take_fetched(&self) -> Vec<BuildId> {
        let mut pending = self.shared.lock();
        let arrived = std::mem::take(&mut pending.arrived);
        pending.wanted.retain(|id| !arrived.contains(id));
        arrived
    }

    /// Returns true if no request is pending.
    pub fn is_idle(&self) -> bool {
        let pending = self.shared.lock();
        pending.wanted.len() == pending.arrived.len()
    }

    pub fn counts(&self) -> DebuginfodCounts {
        *self.shared.counts()
    }
}

impl DebuginfodState {
    fn counts(&self) -> MutexGuard<'_, DebuginfodCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, PendingFetches> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn must_wait(&self, id: BuildId, times: RetryTimes) -> bool {
        let now = Instant::now();
        let is_gone = || !self.directory.join(fetched_name(id)).exists();
        now < times.until && (now < times.until_if_gone || !is_gone())
    }

    fn work(&self, wanted: &Mutex<Receiver<BuildId>>, fetcher: &Fetcher) {
        loop {
            // Whoever waits holds the lock; the other thread is at work or waits for the lock.
            let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(id) = next else { return };
            let result = fetcher.fetch(id);
            let has_come = matches!(result, Ok(Some(_)));
            let until = Instant::now() + self.count_and_log(id, result);
            let until_if_gone = if has_come { Instant::now() + self.retry_after / 10 } else { until };
            self.retry_times.insert(id, RetryTimes { until, until_if_gone });
            let mut pending = self.lock();
            if has_come {
                pending.arrived.push(id);
            } else {
                pending.wanted.remove(&id);
            }
        }
    }

    /// Counts and logs a result; returns the time until the next request.
    fn count_and_log(&self, id: BuildId, result: Result<Option<u64>, FetchError>) -> Duration {
        match result {
            Ok(Some(bytes)) => {
                self.counts().fetched += 1;
                self.counts().fetched_bytes += bytes;
                tracing::info!(build_id = %id, bytes, "debug file fetched");
                self.retry_after
            }
            Ok(None) => {
                self.counts().missing += 1;
                tracing::debug!(build_id = %id, "no debuginfod server has a debug file");
                self.retry_after
            }
            Err(error) => {
                self.counts().failed += 1;
                tracing::warn!(build_id = %id, %error, "a debug file can't be fetched");
                self.retry_after / 10
            }
        }
    }
}
