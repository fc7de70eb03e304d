//! The data behind the page, as JSON.
//!
//! `from`, `to`: milliseconds since 1970. `match`: `label=value` or `label!=value`, any number;
//! values of one label are alternatives. `type`: `memory:alloc_space`, a series and its sample
//! type; CPU time without it. `under`: the hash of a node's path, any number; only stacks through
//! one of these nodes are in the answer. `under_group`: the groups that these nodes are in.
//! `edit`: `only:NAME`, `hide:NAME`, `activity:NAME`, `thread:NAME` as in the page's address, and
//! `through`: the name of a function or group, which all stacks have; up to 32 in all, names of up
//! to 4,096 bytes. Tree and table are of what is left then.
//! `times=1`: samples count by their own times, of at most a quarter of an hour, and a flame graph
//! says when they were taken; where that isn't known, by the begin of their profile, or not at all
//! with `times=known`. `part=MS-MS`, since `from`: with `times`, samples of a part of the range
//! alone; `from` and `to` stay, so that groups are those of the whole.
//! `base_from`, `base_to`, `base_match`: what a flame graph is compared with. Errors are `{"error":
//! "..."}`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, spawn_blocking};

use super::profile_reader::{
    FlameGraph, PauseTimeline, ProfileReader, ReadError, ReadLimits, ThreadTimeline,
};
use super::sample_timeline::SampleTimeline;
use super::selection::{Query, SelectionError, millis};
use crate::export::store::Store;

/// Requests that read profiles at the same time; each may hold hundreds of megabytes.
const READERS: usize = 2;

/// Requests that search the index at the same time.
const INDEX_SEARCHES: usize = 4;

/// The time that a request waits for one of them to end.
const WAIT: Duration = Duration::from_secs(20);

/// Values returned for one label, heaviest first.
const MAX_VALUES: usize = 500;

/// State that the handlers share.
#[derive(Clone, Debug)]
pub(super) struct Api {
    store: Arc<Store>,
    limits: ReadLimits,
    readers: Arc<Semaphore>,
    index_searches: Arc<Semaphore>,
}

/// The reason why a request of the page got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the collector is busy with other requests: try again in a moment")]
    Busy,
    #[error("the request failed inside the collector: {0}")]
    Failed(#[from] JoinError),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Selection(_) => StatusCode::BAD_REQUEST,
            Self::Read(ReadError::TooMuch { .. } | ReadError::TooManyTimes { .. }) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            Self::Read(ReadError::OtherTypes { .. }) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Read(ReadError::TooSlow { .. }) => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Read(_) | Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(error = %self, "request of the page failed");
        }
        let body = BTreeMap::from([("error", self.to_string())]);
        (status, Json(body)).into_response()
    }
}

/// Sets its flag when the request's future is dropped: the client has gone, and the reading need
/// not go on.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Api {
    pub(super) fn new(store: Arc<Store>, limits: ReadLimits) -> Self {
        let (readers, index_searches) = (Semaphore::new(READERS), Semaphore::new(INDEX_SEARCHES));
        Self { store, limits, readers: Arc::new(readers), index_searches: Arc::new(index_searches) }
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(ProfileReader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let cancel_on_drop = CancelOnDrop(Arc::default());
        let is_cancelled = Arc::clone(&cancel_on_drop.0);
        let reader = ProfileReader { store: Arc::clone(&self.store), limits: self.limits, is_cancelled };
        Ok(blocking(&self.readers, move || work(reader)).await??)
    }

    /// Answers from the index, which is in memory, but of any size: not for the threads that serve
    /// connections.
    async fn index<T: Send + 'static>(
        &self,
        query: Option<String>,
        work: impl FnOnce(&Store, Query) -> T + Send + 'static,
    ) -> Result<Json<T>, ApiError> {
        let mut query = Query::parse(&query.unwrap_or_default())?;
        let store = Arc::clone(&self.store);
        let work = move || {
            query.select_default_type(&store);
            work(&store, query)
        };
        Ok(Json(blocking(&self.index_searches, work).await?))
    }
}

/// Does the work on a thread that may block, when one of these places is free. The place is free
/// again when the work has ended, which goes on for a while if the request is dropped.
async fn blocking<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let place = tokio::time::timeout(WAIT, Arc::clone(places).acquire_owned()).await;
    let place: OwnedSemaphorePermit = place.map_err(|_| ApiError::Busy)?.map_err(|_| ApiError::Busy)?;
    let work = move || {
        let _place = place;
        work()
    };
    Ok(spawn_blocking(work).await?)
}

#[derive(Debug, Serialize)]
pub(super) struct LabelValues {
    name: String,
    values: Vec<LabelValue>,
    /// Values there are, returned or not.
    count: usize,
}

#[derive(Debug, Serialize)]
struct LabelValue {
    value: String,
    samples: u64,
}

/// Labels of the range and their values; those of a label with a condition as if it had none.
pub(super) async fn labels(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<LabelValues>>, ApiError> {
    api.index(query, |store, query| {
        let labels = query.selection.label_values(store).into_iter();
        labels.map(|(name, values)| label(name, values)).collect()
    })
    .await
}

fn label(name: String, values: BTreeMap<String, u64>) -> LabelValues {
    let mut values: Vec<_> =
        values.into_iter().map(|(value, samples)| LabelValue { value, samples }).collect();
    let count = values.len();
    values.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.value.cmp(&b.value)));
    values.truncate(MAX_VALUES);
    LabelValues { name, values, count }
}

/// Samples over the range.
pub(super) async fn timeline(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<SampleTimeline>, ApiError> {
    api.index(query, |store, query| SampleTimeline::of(&query, store)).await
}

/// The pauses of the chosen JVMs.
pub(super) async fn pauses(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<PauseTimeline>, ApiError> {
    let query = Query::parse(&query.unwrap_or_default())?;
    let store = Arc::clone(&api.store);
    // Mostly there are none: such an answer waits for nobody who reads profiles.
    let look = move || PauseTimeline::is_known(&query, &store).then_some(query);
    Ok(Json(match blocking(&api.index_searches, look).await? {
        Some(query) => api.read(move |reader| reader.pauses(&query)).await?,
        None => PauseTimeline::default(),
    }))
}

/// Samples over the range by kinds of threads, from the profiles themselves.
pub(super) async fn thread_timeline(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<ThreadTimeline>, ApiError> {
    let mut query = Query::parse(&query.unwrap_or_default())?;
    let work = move |reader: ProfileReader| {
        query.select_default_type(&reader.store);
        reader.thread_timeline(&query)
    };
    Ok(Json(api.read(work).await?))
}

/// The tree of all chosen profiles.
pub(super) async fn flamegraph(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<FlameGraph>, ApiError> {
    let mut query = Query::parse(&query.unwrap_or_default())?;
    let work = move |reader: ProfileReader| {
        query.select_default_type(&reader.store);
        reader.flame_graph(&query)
    };
    Ok(Json(api.read(work).await?))
}

/// All chosen profiles as one pprof file.
pub(super) async fn pprof(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let mut query = Query::parse(&query.unwrap_or_default())?;
    let start = millis(query.selection.range.start) / 1000;
    let work = move |reader: ProfileReader| {
        query.select_default_type(&reader.store);
        reader.pprof(&query)
    };
    let merged = api.read(work).await?;
    if merged.unreadable > 0 {
        tracing::warn!(profiles = merged.unreadable, "a downloaded profile lacks what couldn't be read");
    }
    let name = format!("attachment; filename=\"jvmprof-{start}.pb.gz\"");
    let mut response = merged.bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::export::store::StoreOptions;

    /// Work that says when it has begun, and ends when the sender of the other channel is dropped.
    fn work() -> (impl FnOnce() + Send + 'static, oneshot::Receiver<()>, mpsc::Sender<()>) {
        let ((begin, has_begun), (end, may_end)) = (oneshot::channel(), mpsc::channel());
        let work = move || {
            begin.send(()).unwrap();
            let _ = may_end.recv();
        };
        (work, has_begun, end)
    }

    async fn is_free_only_when_the_work_has_ended(
        places: &Arc<Semaphore>,
        count: usize,
        request: impl Future<Output = ()> + Send + 'static,
        has_begun: oneshot::Receiver<()>,
        end: mpsc::Sender<()>,
    ) {
        let request = tokio::spawn(request);
        has_begun.await.unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(places.available_permits(), count - 1, "the work goes on");
        drop(end);
        let all = places.acquire_many(u32::try_from(count).unwrap());
        drop(tokio::time::timeout(Duration::from_secs(60), all).await.expect("it has ended").unwrap());
    }

    #[tokio::test]
    async fn a_place_is_taken_as_long_as_the_work_goes_on_whoever_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path(), StoreOptions::default()).unwrap());
        let api = Api::new(store, ReadLimits::default());

        let (reading, has_begun, end) = work();
        let of = api.clone();
        let request = async move {
            let read = move |_: ProfileReader| {
                reading();
                Ok(())
            };
            of.read(read).await.unwrap();
        };
        is_free_only_when_the_work_has_ended(&api.readers, READERS, request, has_begun, end).await;

        let (searching, has_begun, end) = work();
        let of = api.clone();
        let request = async move {
            let query = Some("from=1&to=2".to_owned());
            let axum::Json(()) = of.index(query, move |_: &Store, _: Query| searching()).await.unwrap();
        };
        let places = &api.index_searches;
        is_free_only_when_the_work_has_ended(places, INDEX_SEARCHES, request, has_begun, end).await;
    }
}
