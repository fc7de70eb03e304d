//! Pushing to Pyroscope (`push.v1.PusherService/Push`), as Connect does it: a POST of protobuf.
//!
//! Like Parca it doesn't recognize what it got twice. Requests and outcomes are those of
//! [`parca`](super::parca), so that queue, spool and accounting are the same.

mod answer;
mod config;
mod requests;
#[cfg(test)]
pub(in crate::export) mod scripted_server;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use prost::Message as _;
use tonic::Code;

use super::parca::push_outcome::was_never_processed;
use super::parca::{PushOutcome, PushRequest};
use crate::proto::profilestore;
use crate::proto::pyroscope::{LabelPair, PushRequest as PushMessage, RawProfileSeries, RawSample};

pub use config::{Credentials, PyroscopeConfigError, PyroscopeOptions};
pub use requests::requests;

use config::HttpClient;

/// The procedure, behind the address, which ends in a slash.
const PROCEDURE: &str = "push.v1.PusherService/Push";
/// Header of the tenant.
const TENANT_HEADER: &str = "x-scope-orgid";
/// The part of an answer's body that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A connection to one Pyroscope, made when it is first needed and again when it broke. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct PyroscopeClient {
    http: Arc<HttpClient>,
    options: Arc<PyroscopeOptions>,
    url: Arc<str>,
    tenant: Option<HeaderValue>,
}

impl PyroscopeClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`PyroscopeConfigError`].
    pub fn new(options: PyroscopeOptions) -> Result<Self, PyroscopeConfigError> {
        let http = HttpClient::new(&options)?;
        let tenant = config::tenant(&options)?;
        config::authorization(&options)?;
        let url = format!("{}{PROCEDURE}", options.backend()?).into();
        Ok(Self { http: Arc::new(http), options: Arc::new(options), url, tenant })
    }

    /// Returns the address of the backend.
    pub fn address(&self) -> &str {
        &self.options.address
    }

    /// Returns the age of profiles from which on the server refuses them.
    pub fn max_age(&self) -> Duration {
        self.options.max_age
    }

    /// Sends one request, once, and returns its outcome.
    pub async fn send(&self, request: &PushRequest) -> PushOutcome {
        let outcome = self.attempt(&message_of(request)).await;
        let (address, samples, labels) = (&self.options.address, request.samples, request.only_labels());
        match &outcome {
            PushOutcome::Stored => {
                tracing::debug!(address, samples, bytes = request.bytes(), "a profile was pushed");
            }
            PushOutcome::Refused { code, message, .. } => {
                tracing::error!(address, samples, ?code, message, labels, "server refused a profile");
            }
            PushOutcome::PossiblyLost { code, message } => {
                tracing::error!(address, samples, ?code, message, "push broke off, a profile may be lost");
            }
            PushOutcome::NotStored { message } => {
                tracing::debug!(address, samples, message, "profiles can't be pushed now");
            }
        }
        outcome
    }

    /// Sends a request without series, which Pyroscope refuses: that it answers is what counts.
    pub async fn probe(&self) -> PushOutcome {
        self.attempt(&PushMessage::default()).await
    }

    async fn attempt(&self, message: &PushMessage) -> PushOutcome {
        let request = match self.http_request(message) {
            Ok(request) => request,
            // The file may be there the next time.
            Err(message) => return PushOutcome::NotStored { message },
        };
        let exchange = async {
            let response = self.http.request(request).await?;
            let (status, body) = (response.status(), response.into_body());
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            // What was said is said, also if the reason doesn't arrive.
            Ok((status, body.map(http_body_util::Collected::to_bytes).unwrap_or_default()))
        };
        let timeout = self.options.request_timeout;
        let exchanged: Result<_, hyper_util::client::legacy::Error> =
            match tokio::time::timeout(timeout, exchange).await {
                Ok(exchanged) => exchanged,
                Err(_) => {
                    let message = format!("no answer after {timeout:?}");
                    return PushOutcome::PossiblyLost { code: Code::DeadlineExceeded, message };
                }
            };
        match exchanged {
            Ok((status, body)) => answer::outcome(status, &body),
            Err(error) if error.is_connect() || was_never_processed(&error) => {
                PushOutcome::NotStored { message: causes(&error) }
            }
            Err(error) => PushOutcome::PossiblyLost { code: Code::Unavailable, message: causes(&error) },
        }
    }

    fn http_request(&self, message: &PushMessage) -> Result<Request<Full<Bytes>>, String> {
        let authorization = config::authorization(&self.options).map_err(|error| error.to_string())?;
        let mut request = Request::post(&*self.url)
            .header(CONTENT_TYPE, "application/proto")
            .header(USER_AGENT, concat!("jvmprof/", env!("CARGO_PKG_VERSION")))
            .header("connect-protocol-version", "1")
            .header("connect-timeout-ms", self.options.request_timeout.as_millis().to_string());
        if let Some(tenant) = &self.tenant {
            request = request.header(TENANT_HEADER, tenant.clone());
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(message.encode_to_vec().into())).map_err(|error| error.to_string())
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

/// An error with its causes.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
