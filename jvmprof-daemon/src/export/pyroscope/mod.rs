//! Pushing to Pyroscope (`push.v1.PusherService/Push`), as Connect does it: a POST of protobuf.
//!
//! Like Parca it doesn't recognize what it got twice. Requests and outcomes are those of
//! [`parca`](super::parca), so that queue, spool and accounting are the same.

mod answer;
mod requests;
#[cfg(test)]
pub(in crate::export) mod scripted_server;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;

use super::http_client::{HttpClient, HttpConfigError, HttpOptions, header};
use super::push::{PushOutcome, PushRequest};
use crate::proto::profilestore;
use crate::proto::pyroscope::{LabelPair, PushRequest as PushMessage, RawProfileSeries, RawSample};

pub use requests::requests;

/// The procedure, behind the address, which ends in a slash.
const PROCEDURE: &str = "push.v1.PusherService/Push";
/// Header of the tenant.
pub const TENANT_HEADER: &str = "x-scope-orgid";

/// Options of the connection to a Pyroscope.
#[derive(Clone, Debug)]
pub struct PyroscopeOptions {
    pub http: HttpOptions,
    /// The tenant that profiles belong to (`X-Scope-OrgID`).
    pub tenant: Option<String>,
    /// Age of profiles from which on the server refuses them.
    pub max_age: Duration,
    /// Requests that may be under way at once.
    pub concurrency: usize,
}

impl PyroscopeOptions {
    /// The defaults for a connection.
    pub fn new(http: HttpOptions) -> Self {
        Self { http, tenant: None, max_age: Duration::from_secs(3600), concurrency: 16 }
    }
}

/// A connection to one Pyroscope. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PyroscopeClient {
    http: Arc<HttpClient>,
    url: Arc<str>,
    headers: HeaderMap,
    max_age: Duration,
    concurrency: usize,
}

impl PyroscopeClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`HttpConfigError`].
    pub fn new(options: PyroscopeOptions) -> Result<Self, HttpConfigError> {
        let PyroscopeOptions { http, tenant, max_age, concurrency } = options;
        let timeout = http.request_timeout.as_millis().to_string();
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("connect-protocol-version"), HeaderValue::from_static("1"));
        let tenant = tenant.as_deref().map(|tenant| ("tenant", TENANT_HEADER, tenant));
        for (what, name, value) in [("timeout", "connect-timeout-ms", &*timeout)].into_iter().chain(tenant) {
            let (name, value) = header(what, name, value)?;
            headers.insert(name, value);
        }
        let url = format!("{}{PROCEDURE}", http.backend()?).into();
        Ok(Self { http: Arc::new(HttpClient::new(http)?), url, headers, max_age, concurrency })
    }

    /// Returns the address of the backend.
    pub fn address(&self) -> &str {
        &self.http.options().address
    }

    /// Returns the age of profiles from which on the server refuses them.
    pub fn max_age(&self) -> Duration {
        self.max_age
    }

    /// Returns how many requests may be under way at once.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Sends one request, once, and returns its outcome.
    pub async fn send(&self, request: &PushRequest) -> PushOutcome {
        let outcome = self.attempt(&message_of(request)).await;
        outcome.log(self.address(), request);
        outcome
    }

    /// Sends a request without series, which Pyroscope refuses: that it answers is what counts.
    pub async fn probe(&self) -> PushOutcome {
        self.http.of_probe(self.attempt(&PushMessage::default()).await).await
    }

    async fn attempt(&self, message: &PushMessage) -> PushOutcome {
        let body = message.encode_to_vec().into();
        match self.http.post(&self.url, "application/proto", &self.headers, body).await {
            Ok(answer) => answer::of_http(&answer),
            Err(outcome) => outcome,
        }
    }
}

/// The request in Pyroscope's words.
fn message_of(request: &PushRequest) -> PushMessage {
    let label =
        |label: &profilestore::Label| LabelPair { name: label.name.clone(), value: label.value.clone() };
    let sample = |sample: &profilestore::RawSample| RawSample { raw_profile: sample.raw_profile.clone() };
    let series = request.all_series().iter().map(|series| RawProfileSeries {
        labels: series.labels.iter().flat_map(|set| &set.labels).map(label).collect(),
        samples: series.samples.iter().map(sample).collect(),
    });
    PushMessage { series: series.collect() }
}
