//! `ProfileStoreService` in front of a [`Store`].

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::parca_validation::{self, RequestLimits, WriteRefusal};
use crate::export::store::{Store, StoreError};
use crate::profile::pprof::decode::DecodeLimits;
use crate::proto::profilestore::profile_store_service_server::ProfileStoreService;
use crate::proto::profilestore::{
    WriteArrowRequest, WriteArrowResponse, WriteRawRequest, WriteRawResponse, WriteRequest, WriteResponse,
};

/// Requests that are unpacked and stored at the same time: each may take [`RequestLimits`] of
/// memory.
const MAX_UNPACKING: usize = 2;

/// Counts of requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorCounters {
    pub stored_requests: u64,
    pub stored_profiles: u64,
    pub stored_samples: u64,
    /// Requests with something that Parca refuses too.
    pub refused_requests: u64,
    /// Requests that were all right and couldn't be stored.
    pub failed_requests: u64,
}

/// The service. Stores a request as a whole or refuses it as a whole.
#[derive(Debug)]
pub struct CollectorService {
    store: Arc<Store>,
    limits: RequestLimits,
    unpacking: Arc<Semaphore>,
    counters: Arc<Mutex<CollectorCounters>>,
}

/// The reason why a request wasn't stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error(transparent)]
    Refused(#[from] WriteRefusal),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("storing profiles: {0}")]
    Interrupted(String),
}

impl From<WriteError> for Status {
    fn from(failure: WriteError) -> Self {
        match failure {
            WriteError::Refused(refusal) => refusal.into(),
            // Nothing was stored: the client may send it again when there is room.
            WriteError::Store(error) if error.is_out_of_space() => {
                Self::resource_exhausted(error.to_string())
            }
            WriteError::Store(StoreError::TooLarge { .. } | StoreError::LabelSetTooLarge { .. }) => {
                Self::invalid_argument(failure.to_string())
            }
            // Nothing is wrong with the profiles: whoever pushed them keeps them.
            WriteError::Store(StoreError::WrittenByOther { .. } | StoreError::ReadOnly { .. }) => {
                Self::permission_denied(failure.to_string())
            }
            WriteError::Store(error) => Self::unknown(error.to_string()),
            WriteError::Interrupted(_) => Self::internal(failure.to_string()),
        }
    }
}

impl CollectorService {
    pub fn new(store: Arc<Store>) -> Self {
        Self::with_limits(store, RequestLimits::default())
    }

    pub fn with_limits(store: Arc<Store>, limits: impl Into<RequestLimits>) -> Self {
        let unpacking = Arc::new(Semaphore::new(MAX_UNPACKING));
        Self { store, limits: limits.into(), unpacking, counters: Arc::default() }
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Stores the profiles that `make` unpacks within the limits, all or none of them.
    ///
    /// # Errors
    /// What is wrong with them, or with the store.
    pub(super) async fn store_series(
        &self,
        make: impl FnOnce(DecodeLimits) -> Result<WriteRawRequest, WriteRefusal> + Send + 'static,
    ) -> Result<(), WriteError> {
        let permit = Arc::clone(&self.unpacking).acquire_owned().await;
        let permit = permit.map_err(|_| WriteError::Interrupted("shutting down".to_owned()))?;
        let (store, counters, limits) = (Arc::clone(&self.store), Arc::clone(&self.counters), self.limits);
        let work = tokio::task::spawn_blocking(move || {
            // Held to the end of the work even if the client hangs up meanwhile.
            let _permit = permit;
            let request = make(limits.profile).map_err(WriteError::from);
            let result = request.and_then(|request| store_request(&store, request, limits));
            counters.lock().unwrap_or_else(PoisonError::into_inner).count(&result);
            result
        });
        work.await.map_err(|error| WriteError::Interrupted(error.to_string()))??;
        Ok(())
    }

    /// Returns the counts since the start.
    pub fn counters(&self) -> CollectorCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CollectorCounters {
    fn count(&mut self, result: &Result<StoredRequest, WriteError>) {
        match result {
            Ok(StoredRequest { profiles, samples }) => {
                self.stored_requests += 1;
                self.stored_profiles += *profiles;
                self.stored_samples = self.stored_samples.saturating_add(*samples);
                tracing::debug!(profiles, samples, "request stored");
            }
            Err(WriteError::Refused(refusal)) => {
                self.refused_requests += 1;
                tracing::warn!(%refusal, code = ?refusal.code(), "request refused");
            }
            Err(WriteError::Store(error)) => {
                self.failed_requests += 1;
                tracing::error!(%error, "request couldn't be stored");
            }
            // Never the result of storing itself.
            Err(WriteError::Interrupted(_)) => self.failed_requests += 1,
        }
    }
}

struct StoredRequest {
    profiles: u64,
    samples: u64,
}

fn store_request(
    store: &Store,
    request: WriteRawRequest,
    limits: RequestLimits,
) -> Result<StoredRequest, WriteError> {
    let profiles = parca_validation::profiles(request, limits)?;
    store.append(&profiles)?;
    let samples = profiles.iter().fold(0_u64, |sum, profile| sum.saturating_add(profile.samples));
    Ok(StoredRequest { profiles: profiles.len() as u64, samples })
}

#[tonic::async_trait]
impl ProfileStoreService for CollectorService {
    async fn write_raw(
        &self,
        request: Request<WriteRawRequest>,
    ) -> Result<Response<WriteRawResponse>, Status> {
        let request = request.into_inner();
        self.store_series(move |_| Ok(request)).await?;
        Ok(Response::new(WriteRawResponse {}))
    }

    type WriteStream = std::pin::Pin<Box<dyn Stream<Item = Result<WriteResponse, Status>> + Send>>;

    async fn write(
        &self,
        _request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        Err(Status::unimplemented("Arrow isn't taken here: use WriteRaw"))
    }

    async fn write_arrow(
        &self,
        _request: Request<WriteArrowRequest>,
    ) -> Result<Response<WriteArrowResponse>, Status> {
        Err(Status::unimplemented("Arrow isn't taken here: use WriteRaw"))
    }
}
