//! The data behind the page, as JSON.
//!
//! `from`, `to`: milliseconds since 1970. `match`: `label=value` or `label!=value`, any number;
//! values of one label are alternatives. Errors are `{"error": "..."}`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, spawn_blocking};

use super::debuginfo::Debuginfo;
use super::profile_reader::{Flame, ReadError, ReadLimits, Reading};
use super::sample_timeline::Timeline;
use super::selection::{Query, SelectionError, millis};
use crate::export::store::{SeriesInfo, Store};
use crate::profile::call_tree::Tree;
use crate::profile::model::LabelSet;

/// Requests that read profiles at the same time; each may hold hundreds of megabytes.
const READERS: usize = 2;

/// How long a request waits for one of them to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Values told for one label, heaviest first.
const MAX_VALUES: usize = 500;

/// Series told in one answer, heaviest first.
const MAX_SERIES: usize = 2_000;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(super) struct Api {
    store: Arc<Store>,
    limits: ReadLimits,
    readers: Arc<Semaphore>,
    debuginfo: Option<Debuginfo>,
}

/// Why a request of the page got no answer.
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
            Self::Read(ReadError::TooMuch { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
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
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Api {
    pub(super) fn new(store: Arc<Store>, limits: ReadLimits, debuginfo: Option<Debuginfo>) -> Self {
        Self { store, limits, readers: Arc::new(Semaphore::new(READERS)), debuginfo }
    }

    async fn reader(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        let permit = tokio::time::timeout(PATIENCE, self.readers.acquire()).await;
        permit.map_err(|_| ApiError::Busy)?.map_err(|_| ApiError::Busy)
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(Reading) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let _permit = self.reader().await?;
        let give_up = GiveUp(Arc::default());
        let given_up = Arc::clone(&give_up.0);
        let reading = Reading {
            store: Arc::clone(&self.store),
            limits: self.limits,
            given_up,
            debuginfo: self.debuginfo.clone(),
        };
        Ok(spawn_blocking(move || work(reading)).await??)
    }

    /// The index is in memory, but of any size: not for the threads that serve connections.
    async fn index<T: Send + 'static>(
        &self,
        query: Option<String>,
        work: impl FnOnce(&Store, Query) -> T + Send + 'static,
    ) -> Result<Json<T>, ApiError> {
        let query = Query::parse(&query.unwrap_or_default())?;
        let store = Arc::clone(&self.store);
        Ok(Json(spawn_blocking(move || work(&store, query)).await?))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Label {
    name: String,
    values: Vec<Value>,
    /// Values there are, told or not.
    count: usize,
}

#[derive(Debug, Serialize)]
struct Value {
    value: String,
    samples: u64,
}

/// Labels of the range and their values; those of a label with a condition as if it had none.
pub(super) async fn labels(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Label>>, ApiError> {
    api.index(query, |store, query| {
        let labels = query.selection.label_values(store).into_iter();
        labels.map(|(name, values)| label(name, values)).collect()
    })
    .await
}

fn label(name: String, values: BTreeMap<String, u64>) -> Label {
    let mut values: Vec<_> = values.into_iter().map(|(value, samples)| Value { value, samples }).collect();
    let count = values.len();
    values.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.value.cmp(&b.value)));
    values.truncate(MAX_VALUES);
    Label { name, values, count }
}

#[derive(Debug, Serialize)]
pub(super) struct SeriesList {
    series: Vec<Series>,
    /// Series there are, told or not.
    count: usize,
}

#[derive(Debug, Serialize)]
struct Series {
    labels: LabelSet,
    profiles: usize,
    samples: u64,
    first_ms: i64,
    last_ms: i64,
}

/// Chosen series with profiles in the range.
pub(super) async fn series(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<SeriesList>, ApiError> {
    api.index(query, |store, query| {
        let mut series = query.selection.series(store);
        let count = series.len();
        series.sort_by_key(|series| std::cmp::Reverse(series.samples));
        series.truncate(MAX_SERIES);
        SeriesList { series: series.into_iter().map(Series::from).collect(), count }
    })
    .await
}

impl From<SeriesInfo> for Series {
    fn from(series: SeriesInfo) -> Self {
        Self {
            labels: series.labels,
            profiles: series.profiles,
            samples: series.samples,
            first_ms: millis(series.first),
            last_ms: millis(series.last),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct FlameAnswer {
    tree: Tree,
    period_ns: u64,
    profiles: usize,
    unreadable: usize,
    series: usize,
}

impl From<Flame> for FlameAnswer {
    fn from(flame: Flame) -> Self {
        let Flame { tree, period_ns, profiles, unreadable, series } = flame;
        Self { tree, period_ns, profiles, unreadable, series }
    }
}

/// Samples over the range.
pub(super) async fn timeline(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<Timeline>, ApiError> {
    api.index(query, |store, query| Timeline::of(&query.selection, store)).await
}

/// The tree of all chosen profiles.
pub(super) async fn flamegraph(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Result<Json<FlameAnswer>, ApiError> {
    let query = Query::parse(&query.unwrap_or_default())?;
    let flame = api.read(move |reading| reading.flame(&query)).await?;
    Ok(Json(flame.into()))
}

/// All chosen profiles as one pprof file.
pub(super) async fn pprof(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let query = Query::parse(&query.unwrap_or_default())?;
    let start = millis(query.selection.range.start) / 1000;
    let merged = api.read(move |reading| reading.pprof(&query)).await?;
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
