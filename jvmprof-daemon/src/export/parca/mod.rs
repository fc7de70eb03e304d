//! Pushing to Parca and to backends that speak as it does (`ProfileStoreService.WriteRaw`).
//!
//! The server doesn't recognize what it got twice. So a request that failed is either known not to
//! have been stored, or may have been stored; who sends it again, and when, is decided by
//! [`delivery`](crate::export::delivery).

pub mod debuginfo_upload;
#[cfg(test)]
pub(in crate::export) mod scripted_server;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use url::Url;

use super::push::tls_mismatch::PlaintextProtocol;
use super::push::{BackendConfigError, BackendOptions, PushOutcome, PushRequest, grpc, push_request};
use crate::profile::model::Batch;
use crate::profile::pprof::PushEncoder;
use crate::proto::profilestore::WriteRawRequest;
use crate::proto::profilestore::profile_store_service_client::ProfileStoreServiceClient;

/// A connection to one backend, made when it is first needed and again when it broke. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct ParcaClient {
    channel: Channel,
    options: Arc<BackendOptions>,
    /// The fixed ones; the token is added for each request, because its file may change.
    headers: MetadataMap,
    /// Of a server that is reached without TLS and without a proxy.
    plain_url: Option<Url>,
}

impl ParcaClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`BackendConfigError`].
    pub fn new(options: BackendOptions) -> Result<Self, BackendConfigError> {
        let (channel, headers) = grpc::connection(&options)?;
        let plain_url = options.plain_url()?;
        Ok(Self { channel, options: Arc::new(options), headers, plain_url })
    }

    /// Returns the address of the backend.
    pub fn address(&self) -> &str {
        &self.options.address
    }

    /// Encodes a batch as this backend gets it.
    ///
    /// # Errors
    /// None that writing to memory could have.
    pub fn requests(&self, batch: &Batch) -> io::Result<Vec<PushRequest>> {
        let encoder = PushEncoder::new(batch).with_times(self.options.sample_times);
        push_request::requests_of(batch, encoder, self.options.max_request_bytes)
    }

    /// Sends one request, once, and returns its outcome.
    pub async fn send(&self, request: &PushRequest) -> PushOutcome {
        let outcome = self.attempt(request.message.clone()).await;
        outcome.log(&self.options.address, request);
        outcome
    }

    /// Sends a request without series: whether it is answered shows whether there is a server, and
    /// nothing is at stake.
    pub async fn probe(&self) -> PushOutcome {
        let outcome = self.attempt(WriteRawRequest::default()).await;
        outcome.unless_server_speaks_tls(self.plain_url.as_ref(), PlaintextProtocol::Http2).await
    }

    async fn attempt(&self, message: WriteRawRequest) -> PushOutcome {
        let message = match grpc::request(message, &self.headers, &self.options) {
            Ok(message) => message,
            // The token's file may be there the next time.
            Err(error) => return PushOutcome::not_stored(error.to_string()),
        };
        // grpc-go answers as it was asked: what can't be read would look like a refusal of what it
        // has stored.
        let mut client =
            ProfileStoreServiceClient::new(self.channel.clone()).accept_compressed(CompressionEncoding::Gzip);
        if self.options.compress {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let call = client.write_raw(message);
        match tokio::time::timeout(self.options.request_timeout + GRACE, call).await {
            Ok(Ok(_)) => PushOutcome::Stored,
            Ok(Err(status)) => PushOutcome::of(&status),
            Err(_) => PushOutcome::possibly_lost(
                Code::DeadlineExceeded,
                format!("no answer after {:?}", self.options.request_timeout),
            ),
        }
    }
}

/// The server's answer to a deadline says more than ours: it gets this much time to arrive.
const GRACE: Duration = Duration::from_millis(500);
