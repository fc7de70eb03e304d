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
mod upload_policy;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backon::Retryable as _;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use crate::export::push::{BackendConfigError, BackendOptions, endpoint};
use crate::native::debug_files_to_upload::queue::UploadCandidate;
use bandwidth_limit::BandwidthLimit;
use upload_attempt::UploadAttempt;
use upload_error::{RetryTime, UploadFailure};
use upload_policy::NextStep;

pub use upload_error::UploadError;
pub use upload_policy::UploadOptions;

/// Files that wait for the server to want them later, beside those that are being uploaded.
const MAX_JOBS: usize = 64;

/// Counts of files since the start.
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

/// The result of uploading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UploadResult {
    /// With so many bytes.
    Uploaded(u64),
    NotWanted(String),
    WithoutSymbols,
}

/// See the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Uploader {
    inner: Arc<UploaderState>,
}

/// The server that debug files go to.
#[derive(Debug)]
struct UploadServer {
    channel: Channel,
    options: BackendOptions,
    headers: MetadataMap,
}

impl UploadServer {
    fn new(options: BackendOptions) -> Result<Self, BackendConfigError> {
        Ok(Self { channel: endpoint::channel(&options)?, headers: endpoint::headers(&options)?, options })
    }
}

#[derive(Debug)]
struct UploaderState {
    /// The one that is asked from the next try on.
    server: Mutex<Arc<UploadServer>>,
    options: UploadOptions,
    slots: Semaphore,
    bandwidth: BandwidthLimit,
    counts: Mutex<UploadCounts>,
}

impl Uploader {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`BackendConfigError`].
    pub fn new(server: BackendOptions, options: UploadOptions) -> Result<Self, BackendConfigError> {
        let server = Mutex::new(Arc::new(UploadServer::new(server)?));
        let slots = Semaphore::new(options.parallel.max(1));
        let bandwidth = BandwidthLimit::new(options.bytes_per_second);
        let counts = Mutex::default();
        Ok(Self { inner: Arc::new(UploaderState { server, options, slots, bandwidth, counts }) })
    }

    /// Uploads to this server from now on, also what has been put off. What is being sent goes
    /// where it went.
    ///
    /// # Errors
    /// See [`BackendConfigError`]; all stays as it was.
    pub fn change_server(&self, server: BackendOptions) -> Result<(), BackendConfigError> {
        let server = Arc::new(UploadServer::new(server)?);
        *self.inner.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
        Ok(())
    }

    /// Uploads what is offered until nobody offers any more. Dropping the future ends uploads that
    /// are under way.
    pub async fn run(self, mut offers: mpsc::Receiver<UploadCandidate>) {
        let mut jobs = JoinSet::new();
        loop {
            tokio::select! {
                offer = offers.recv(), if jobs.len() < MAX_JOBS => match offer {
                    Some(offer) => _ = jobs.spawn(Arc::clone(&self.inner).upload(offer)),
                    None => break,
                },
                Some(_) = jobs.join_next() => {}
            }
        }
        while jobs.join_next().await.is_some() {}
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> UploadCounts {
        *self.inner.counts()
    }
}

impl UploaderState {
    fn counts(&self) -> MutexGuard<'_, UploadCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> Arc<UploadServer> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uploads one file, however long it takes.
    async fn upload(self: Arc<Self>, offer: UploadCandidate) {
        let (id, path) = (offer.build_id, Arc::clone(&offer.path));
        self.counts().offered += 1;
        if self.options.is_excluded(&path) {
            self.counts().excluded += 1;
            tracing::debug!(build_id = %id, path = &*path, "excluded from uploading");
            return;
        }
        let offer = Arc::new(offer);
        for round in 1.. {
            let failure = match self.try_with_backoff(&offer).await {
                Ok(UploadResult::Uploaded(bytes)) => {
                    self.counts().uploaded += 1;
                    self.counts().uploaded_bytes += bytes;
                    tracing::info!(build_id = %id, path = &*path, bytes, "debug file uploaded");
                    return;
                }
                Ok(UploadResult::NotWanted(reason)) => {
                    self.counts().not_wanted += 1;
                    tracing::debug!(build_id = %id, path = &*path, reason, "the server doesn't want a debug file");
                    return;
                }
                Ok(UploadResult::WithoutSymbols) => {
                    self.counts().without_symbols += 1;
                    tracing::debug!(build_id = %id, path = &*path, "nothing that a server could use");
                    return;
                }
                Err(failure) => failure,
            };
            let server = self.server();
            let address = &server.options.address;
            match self.options.after_round(round, &failure) {
                NextStep::Refused => {
                    self.counts().refused += 1;
                    tracing::warn!(address, build_id = %id, path = &*path, error = %failure, "debug file refused");
                    return;
                }
                NextStep::GiveUp => {
                    self.counts().failed += 1;
                    tracing::warn!(address, build_id = %id, path = &*path, error = %failure, "debug file given up");
                    return;
                }
                NextStep::OfferAgain => {
                    self.counts().put_off += 1;
                    tracing::debug!(address, build_id = %id, path = &*path, error = %failure, "debug file put off");
                }
            }
            tokio::time::sleep(self.options.retry_after).await;
        }
    }

    /// Tries until the server has answered, or for as often as the options say.
    async fn try_with_backoff(
        self: &Arc<Self>,
        offer: &Arc<UploadCandidate>,
    ) -> Result<UploadResult, UploadFailure> {
        let Ok(_slot) = self.slots.acquire().await else { return Err(UploadError::Ending.into()) };
        (|| UploadAttempt { inner: self, server: self.server(), offer }.run())
            .retry(self.options.backoff())
            .when(|failure: &UploadFailure| failure.next == RetryTime::Soon)
            .await
    }
}
