//! Uploading debug files to Parca and to backends that speak as it does (`DebuginfoService`), for
//! frames whose names were left to the server.
//!
//! In the background and bounded in everything: files at a time, bytes a second, files that wait.
//! The server is asked first, so that a file travels once for a fleet.

mod bandwidth_limit;
mod signed_url;

#[cfg(test)]
mod tests;
mod upload_attempt;
mod upload_error;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use globset::GlobSet;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::endpoint::{self, ConfigError, ParcaOptions};
use crate::native::upload::queue::Offer;
use bandwidth_limit::Throttle;
use upload_attempt::Attempt;
use upload_error::{Failure, Next};

pub use upload_error::UploadError;

/// Files that wait for the server to want them later, beside those that are being uploaded.
const MAX_JOBS: usize = 64;

/// What may be uploaded, and what that may cost.
#[derive(Clone, Debug)]
pub struct UploadOptions {
    /// Files whose path (as their process sees it) matches one of these are never uploaded.
    pub exclude: GlobSet,
    /// Files at a time.
    pub parallel: usize,
    /// Of all uploads together.
    pub bytes_per_second: u64,
    /// Largest file that is sent, in bytes. Parca takes 1,000,000,000.
    pub max_bytes: u64,
    /// Files that export symbols and have no others are uploaded too: where all names are left to
    /// the server.
    pub exported_symbols: bool,
    /// How often a step that failed without being refused is tried at most.
    pub attempts: usize,
    /// Before the second one; doubles each time, with jitter.
    pub first_delay: Duration,
    /// How long a single step may take, but the upload itself.
    pub request_timeout: Duration,
    /// How long an upload may take; Parca gives up after 15 minutes.
    pub upload_timeout: Duration,
    /// When a file is offered again that the server didn't want at the time.
    pub retry_after: Duration,
    /// How often it is.
    pub rounds: u32,
}

/// What the kernel appends to the path of a file that was removed or replaced since it was mapped.
const REMOVED: &str = " (deleted)";

impl UploadOptions {
    /// `path`: as the kernel shows it. A file may also be called so.
    fn is_excluded(&self, path: &str) -> bool {
        let before_removal = path.strip_suffix(REMOVED);
        [Some(path), before_removal].into_iter().flatten().any(|path| self.exclude.is_match(Path::new(path)))
    }
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            exclude: GlobSet::empty(),
            parallel: 4,
            bytes_per_second: 16 << 20,
            max_bytes: 1_000_000_000,
            exported_symbols: false,
            attempts: 4,
            first_delay: Duration::from_secs(1),
            request_timeout: Duration::from_secs(30),
            upload_timeout: Duration::from_secs(15 * 60),
            retry_after: Duration::from_secs(5 * 60),
            rounds: 12,
        }
    }
}

/// What happened since the start, in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadCounts {
    pub offered: u64,
    pub uploaded: u64,
    pub uploaded_bytes: u64,
    /// The server has it, or gets it from elsewhere.
    pub not_wanted: u64,
    /// The configuration excludes them.
    pub excluded: u64,
    /// Without symbols that a server could use.
    pub without_symbols: u64,
    /// The server refused them for good.
    pub refused: u64,
    /// Given up: the file can't be used, or the server never answered as it should.
    pub failed: u64,
    /// Put off, and tried again later.
    pub put_off: u64,
}

#[derive(Debug, Default)]
struct Counting {
    offered: AtomicU64,
    uploaded: AtomicU64,
    uploaded_bytes: AtomicU64,
    not_wanted: AtomicU64,
    excluded: AtomicU64,
    without_symbols: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    put_off: AtomicU64,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    /// With so many bytes.
    Uploaded(u64),
    NotWanted(String),
    WithoutSymbols,
}

/// See the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Uploader {
    inner: Arc<Inner>,
}

/// Where debug files go.
#[derive(Debug)]
struct Server {
    channel: Channel,
    options: ParcaOptions,
    headers: MetadataMap,
}

impl Server {
    fn new(options: ParcaOptions) -> Result<Self, ConfigError> {
        Ok(Self { channel: endpoint::channel(&options)?, headers: endpoint::headers(&options)?, options })
    }
}

#[derive(Debug)]
struct Inner {
    /// The one that is asked from the next try on.
    server: Mutex<Arc<Server>>,
    options: UploadOptions,
    slots: Semaphore,
    throttle: Throttle,
    counts: Counting,
}

impl Uploader {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(server: ParcaOptions, options: UploadOptions) -> Result<Self, ConfigError> {
        let server = Mutex::new(Arc::new(Server::new(server)?));
        let slots = Semaphore::new(options.parallel.max(1));
        let throttle = Throttle::new(options.bytes_per_second);
        let counts = Counting::default();
        Ok(Self { inner: Arc::new(Inner { server, options, slots, throttle, counts }) })
    }

    /// Uploads to this server from now on, also what has been put off. What is being sent goes
    /// where it went.
    ///
    /// # Errors
    /// See [`ConfigError`]; all stays as it was.
    pub fn change_server(&self, server: ParcaOptions) -> Result<(), ConfigError> {
        let server = Arc::new(Server::new(server)?);
        *self.inner.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
        Ok(())
    }

    /// Uploads what is offered until nobody offers any more. Dropping the future ends uploads that
    /// are under way.
    pub async fn run(self, mut offers: mpsc::Receiver<Offer>) {
        let mut jobs = JoinSet::new();
        loop {
            tokio::select! {
                offer = offers.recv(), if jobs.len() < MAX_JOBS => match offer {
                    Some(offer) => _ = jobs.spawn(Arc::clone(&self.inner).job(offer)),
                    None => break,
                },
                Some(_) = jobs.join_next() => {}
            }
        }
        while jobs.join_next().await.is_some() {}
    }

    pub fn counts(&self) -> UploadCounts {
        let Counting {
            offered,
            uploaded,
            uploaded_bytes,
            not_wanted,
            excluded,
            without_symbols,
            refused,
            failed,
            put_off,
        } = &self.inner.counts;
        UploadCounts {
            offered: offered.load(Ordering::Relaxed),
            uploaded: uploaded.load(Ordering::Relaxed),
            uploaded_bytes: uploaded_bytes.load(Ordering::Relaxed),
            not_wanted: not_wanted.load(Ordering::Relaxed),
            excluded: excluded.load(Ordering::Relaxed),
            without_symbols: without_symbols.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
            put_off: put_off.load(Ordering::Relaxed),
        }
    }
}

impl Inner {
    fn server(&self) -> Arc<Server> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One file's way, however long it takes.
    async fn job(self: Arc<Self>, offer: Offer) {
        let add = |counter: &AtomicU64, amount| counter.fetch_add(amount, Ordering::Relaxed);
        let (id, path) = (offer.build_id, Arc::clone(&offer.path));
        add(&self.counts.offered, 1);
        if self.options.is_excluded(&path) {
            add(&self.counts.excluded, 1);
            tracing::debug!(build_id = %id, path = &*path, "excluded from uploading");
            return;
        }
        let offer = Arc::new(offer);
        for round in 1.. {
            let failure = match self.round(&offer).await {
                Ok(Done::Uploaded(bytes)) => {
                    add(&self.counts.uploaded, 1);
                    add(&self.counts.uploaded_bytes, bytes);
                    tracing::info!(build_id = %id, path = &*path, bytes, "debug file uploaded");
                    return;
                }
                Ok(Done::NotWanted(reason)) => {
                    add(&self.counts.not_wanted, 1);
                    tracing::debug!(build_id = %id, path = &*path, reason, "the server doesn't want a debug file");
                    return;
                }
                Ok(Done::WithoutSymbols) => {
                    add(&self.counts.without_symbols, 1);
                    tracing::debug!(build_id = %id, path = &*path, "nothing that a server could use");
                    return;
                }
                Err(failure) => failure,
            };
            let server = self.server();
            let address = &server.options.address;
            if failure.is_refusal() {
                add(&self.counts.refused, 1);
                tracing::warn!(address, build_id = %id, path = &*path, error = %failure, "debug file refused");
                return;
            }
            if failure.next == Next::Never || round >= self.options.rounds {
                add(&self.counts.failed, 1);
                tracing::warn!(address, build_id = %id, path = &*path, error = %failure, "debug file given up");
                return;
            }
            add(&self.counts.put_off, 1);
            tracing::debug!(address, build_id = %id, path = &*path, error = %failure, "debug file put off");
            tokio::time::sleep(self.options.retry_after).await;
        }
    }

    /// Tries until the server has answered, or for as often as the options say.
    async fn round(self: &Arc<Self>, offer: &Arc<Offer>) -> Result<Done, Failure> {
        let Ok(_slot) = self.slots.acquire().await else {
            return Err(UploadError::Ending.into());
        };
        let backoff = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(self.options.first_delay)
            .with_max_delay(self.options.first_delay.saturating_mul(16))
            .with_max_times(self.options.attempts.saturating_sub(1));
        (|| Attempt { inner: self, server: self.server(), offer }.run())
            .retry(backoff)
            .when(|failure: &Failure| failure.next == Next::Soon)
            .await
    }
}
