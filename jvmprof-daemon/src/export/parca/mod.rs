//! Pushing to Parca and to backends that speak as it does (`ProfileStoreService.WriteRaw`).
//!
//! The server doesn't recognize what it got twice. So a request is only sent again where it can't have been stored; every
//! other failure is reported as possibly lost, for the caller to count.

mod endpoint;
mod outcome;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use crate::profile::model::Batch;
use crate::proto::profilestore::profile_store_service_client::ProfileStoreServiceClient;

pub use endpoint::{ConfigError, ParcaOptions, Token};
pub use outcome::{Outcome, Report, Sent, Totals};
pub use request::{Request, requests};

use outcome::Failure;

/// A connection to one backend, made when it is first needed and again when it broke. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ParcaClient {
    channel: Channel,
    options: Arc<ParcaOptions>,
    /// The fixed ones; the token is added for each request, because its file may change.
    headers: MetadataMap,
}

impl ParcaClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn new(options: ParcaOptions) -> Result<Self, ConfigError> {
        let channel = endpoint::endpoint(&options)?.connect_lazy();
        let headers = endpoint::headers(&options)?;
        endpoint::token(&options)?;
        Ok(Self { channel, options: Arc::new(options), headers })
    }

    /// Where to.
    pub fn address(&self) -> &str {
        &self.options.address
    }

    /// Pushes a batch, one series for each label set, in as many requests as its size needs.
    ///
    /// After a request that found nobody to take it the others aren't tried: they are reported as unreachable too.
    pub async fn push(&self, batch: Arc<Batch>) -> Report {
        let samples = batch.samples();
        let max_bytes = self.options.max_request_bytes;
        let made = tokio::task::spawn_blocking(move || requests(&batch, max_bytes)).await;
        let requests = match made {
            Ok(Ok(requests)) => requests,
            Ok(Err(error)) => return Report::of_failure(samples, format!("encoding a batch: {error}")),
            Err(error) => return Report::of_failure(samples, format!("encoding a batch: {error}")),
        };
        let mut report = Report::default();
        let mut unreachable: Option<Outcome> = None;
        for request in requests {
            let sent = match &unreachable {
                Some(outcome) => Sent::of(&request, outcome.clone(), 0),
                None => self.send(&request).await,
            };
            if matches!(sent.outcome, Outcome::Unreachable { .. }) {
                unreachable = Some(sent.outcome.clone());
            }
            report.requests.push(sent);
        }
        report
    }

    /// Sends one request, again if the server can't have stored it, as often as the options say.
    pub async fn send(&self, request: &Request) -> Sent {
        let mut attempts = 0;
        let result = (|| {
            attempts += 1;
            self.attempt(request)
        })
        .retry(self.backoff())
        .when(Failure::may_be_sent_again)
        .notify(|failure, delay| {
            let address = &self.options.address;
            tracing::warn!(address, error = %failure, ?delay, "push failed before it was stored, will be sent again");
        })
        .await;
        let outcome = match result {
            Ok(()) => Outcome::Stored,
            Err(failure) => failure.into_outcome(),
        };
        let sent = Sent::of(request, outcome, attempts);
        sent.log(&self.options.address);
        sent
    }

    fn backoff(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(self.options.first_delay)
            .with_max_delay(self.options.first_delay.saturating_mul(16))
            .with_max_times(self.options.attempts.saturating_sub(1))
    }

    async fn attempt(&self, request: &Request) -> Result<(), Failure> {
        let mut message = tonic::Request::new(request.message.clone());
        *message.metadata_mut() = self.headers.clone();
        if let Some(token) = endpoint::token(&self.options).map_err(|error| Failure::not_sent(&error))? {
            message.metadata_mut().insert("authorization", token);
        }
        // The server is told as well, and may save itself the work.
        message.set_timeout(self.options.request_timeout);
        let mut client = ProfileStoreServiceClient::new(self.channel.clone());
        let call = client.write_raw(message);
        match tokio::time::timeout(self.options.request_timeout + GRACE, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(Failure::from_status(&status)),
            Err(_) => Err(Failure::timed_out(self.options.request_timeout)),
        }
    }
}

/// The server's answer to a deadline says more than ours: it gets this much time to arrive.
const GRACE: Duration = Duration::from_millis(500);
