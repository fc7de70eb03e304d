//! Pushing to OpenTelemetry's receivers (OTLP, `profiles.v1development`), by gRPC or by HTTP.
//!
//! Requests are kept as pprof until they are sent: queue, spool and accounting are those of the
//! other backends.

mod answer;
mod attributes;
mod message;
pub mod received;
#[cfg(test)]
pub(in crate::export) mod scripted_receiver;
mod series_grouping;
mod span;
#[cfg(test)]
mod tests;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_client::ProfilesServiceClient;
use prost::Message as _;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use url::Url;

use super::http_client::{Credentials, HttpClient, HttpConfigError, HttpOptions, header};
use super::push::tls_mismatch::PlaintextProtocol;
use super::push::{BackendConfigError, BackendOptions, PushOutcome, PushRequest, Token, grpc};
use super::split_to_limits::{self, ProfileLimits, SeriesRequest};
use crate::export::store::NAME_LABEL;
use crate::profile::model::Batch;
use crate::profile::pprof::PushEncoder;
use answer::{Answer, Contents, Meaning};
use series_grouping::SeriesGrouping;

pub use message::MalformedRequest;
pub use received::InvalidMessage;

/// The path of profiles, behind the address, which ends in a slash.
const HTTP_PATH: &str = "v1development/profiles";
/// Limits of a profile; its bytes are those of a request, too. Receivers take messages of 4 MiB by
/// gRPC, and OTLP's are somewhat larger than pprof. One that finds a request too large gets its
/// halves.
const LIMITS: ProfileLimits = ProfileLimits { bytes: 2 << 20, samples: 16_000 };

/// The protocol by which requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// `opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export`.
    Grpc,
    /// A POST of protobuf to `/v1development/profiles`.
    Http,
}

/// Options of the connection to a receiver.
#[derive(Clone)]
pub struct OtlpOptions {
    pub http: HttpOptions,
    pub protocol: OtlpProtocol,
    /// Names and values that go with every request.
    pub headers: Vec<(String, String)>,
    /// Compress requests (gzip).
    pub compress: bool,
}

impl fmt::Debug for OtlpOptions {
    /// Values of headers are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("OtlpOptions")
            .field("http", &self.http)
            .field("protocol", &self.protocol)
            .field("headers", &headers)
            .field("compress", &self.compress)
            .finish()
    }
}

/// Options that can't work.
#[derive(Debug, thiserror::Error)]
pub enum OtlpConfigError {
    #[error(transparent)]
    Http(#[from] HttpConfigError),
    #[error(transparent)]
    Grpc(#[from] BackendConfigError),
    #[error("basic authentication isn't sent by gRPC: a file with a token is")]
    BasicByGrpc,
}

/// A connection to one receiver, made when it is first needed and again when it broke. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct OtlpClient {
    options: Arc<OtlpOptions>,
    transport: Transport,
    grouping: Arc<SeriesGrouping>,
    /// It has warned of something that it has stored.
    has_warned: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
enum Transport {
    Grpc { channel: Channel, options: Arc<BackendOptions>, headers: MetadataMap, plain_url: Option<Url> },
    Http { client: Arc<HttpClient>, url: Arc<str>, headers: HeaderMap },
}

/// Encodes a batch. A series that is large has several profiles.
///
/// # Errors
/// None that writing to memory could have.
pub fn requests(batch: &Batch) -> io::Result<Vec<PushRequest>> {
    let of_series = split_to_limits::requests(batch, PushEncoder::new(batch), LIMITS, |series| {
        let name = (NAME_LABEL.to_owned(), batch.event.descriptor().series.to_owned());
        let others = series.labels.iter();
        let others = others.filter(|(name, value)| *name != NAME_LABEL && !value.is_empty());
        std::iter::once(name).chain(others.map(|(name, value)| (name.clone(), value.clone()))).collect()
    })?;
    let (mut requests, mut bytes): (Vec<PushRequest>, usize) = (Vec::new(), 0);
    for SeriesRequest { request, profile_bytes } in of_series {
        bytes += profile_bytes;
        match requests.last_mut() {
            Some(last) if bytes <= LIMITS.bytes => last.append(request),
            _ => {
                requests.push(request);
                bytes = profile_bytes;
            }
        }
    }
    Ok(requests)
}

impl OtlpClient {
    /// Checks the options; doesn't connect yet. Must be called inside of a tokio runtime.
    ///
    /// # Errors
    /// See [`OtlpConfigError`].
    pub fn new(options: OtlpOptions) -> Result<Self, OtlpConfigError> {
        let transport = match options.protocol {
            OtlpProtocol::Grpc => Transport::grpc(&options)?,
            OtlpProtocol::Http => Transport::http(&options)?,
        };
        let grouping = Arc::new(SeriesGrouping::new(options.http.request_timeout));
        Ok(Self { options: Arc::new(options), transport, grouping, has_warned: Arc::default() })
    }

    /// Returns the address of the receiver.
    pub fn address(&self) -> &str {
        &self.options.http.address
    }

    /// Takes out of a request the series that aren't to be in one message with the others, by what
    /// the receiver has answered so far, and returns them as requests. At least one series stays.
    pub fn take_others(&self, request: &mut PushRequest) -> Vec<PushRequest> {
        self.grouping.take_others(request)
    }

    /// Sends one request, once, and returns its outcome.
    pub async fn send(&self, request: &PushRequest) -> PushOutcome {
        let outcome = match message::of_request(request) {
            Ok(message) => {
                let (contents, began) = (Contents::of(&message), Instant::now());
                let outcome = match self.exchange(message).await {
                    Ok(answer) => self.outcome(&answer, contents),
                    Err(outcome) => outcome,
                };
                self.grouping.note(request, &outcome, began.elapsed());
                outcome
            }
            Err(error) => {
                let message = error.to_string();
                PushOutcome::Refused { code: Code::Internal, message, divisible: true }
            }
        };
        outcome.log(self.address(), request);
        outcome
    }

    /// Sends a request without profiles: whether it is answered shows whether there is a receiver.
    pub async fn probe(&self) -> PushOutcome {
        let outcome = match self.exchange(ExportProfilesServiceRequest::default()).await {
            Ok(answer) => answer.of_probe(),
            Err(outcome) => outcome,
        };
        match &self.transport {
            Transport::Grpc { plain_url, .. } => {
                outcome.unless_server_speaks_tls(plain_url.as_ref(), PlaintextProtocol::Http2).await
            }
            Transport::Http { client, .. } => client.of_probe(outcome).await,
        }
    }

    /// Returns the outcome that an answer means for a message that holds this, and notes what it
    /// says of the receiver.
    fn outcome(&self, answer: &Answer, contents: Contents) -> PushOutcome {
        let (meaning, address) = (answer.meaning(), self.address());
        if let Some(code) = meaning.code_of_unknown_series(contents)
            && let Some(consequence) = self.grouping.note_partly_stored(code)
        {
            tracing::warn!(address, "the receiver may store a part of a message: {consequence}");
        }
        if let Meaning::StoredWithWarning(warning) = &meaning {
            if self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::debug!(address, warning, "the receiver has stored profiles and warns");
            } else {
                tracing::warn!(address, warning, "the receiver has stored profiles and warns");
            }
        }
        meaning.outcome(contents)
    }

    /// Sends a message, once. An exchange without an answer is an outcome by itself.
    async fn exchange(&self, message: ExportProfilesServiceRequest) -> Result<Answer, PushOutcome> {
        match &self.transport {
            Transport::Grpc { channel, options, headers, .. } => {
                self.exchange_by_grpc(channel, options, headers, message).await
            }
            Transport::Http { client, url, headers } => {
                let body = self.body(&message).map_err(|error| PushOutcome::not_stored(error.to_string()))?;
                let answer = client.post(url, "application/x-protobuf", headers, body.into()).await?;
                Ok(Answer::Http(answer))
            }
        }
    }

    async fn exchange_by_grpc(
        &self,
        channel: &Channel,
        options: &BackendOptions,
        headers: &MetadataMap,
        message: ExportProfilesServiceRequest,
    ) -> Result<Answer, PushOutcome> {
        let timeout = self.options.http.request_timeout;
        // The token's file may be there the next time.
        let message = grpc::request(message, headers, options)
            .map_err(|error| PushOutcome::not_stored(error.to_string()))?;
        let mut client =
            ProfilesServiceClient::new(channel.clone()).accept_compressed(CompressionEncoding::Gzip);
        if self.options.compress {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let answer = tokio::time::timeout(timeout + GRACE, client.export(message)).await.map_err(|_| {
            PushOutcome::possibly_lost(Code::DeadlineExceeded, format!("no answer after {timeout:?}"))
        })?;
        Ok(Answer::Grpc(answer.map(tonic::Response::into_inner)))
    }

    fn body(&self, message: &ExportProfilesServiceRequest) -> io::Result<Vec<u8>> {
        let bytes = message.encode_to_vec();
        if !self.options.compress {
            return Ok(bytes);
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&bytes)?;
        gzip.finish()
    }
}

impl Transport {
    fn grpc(options: &OtlpOptions) -> Result<Self, OtlpConfigError> {
        let http = &options.http;
        let token = match &http.credentials {
            None => None,
            Some(Credentials::Bearer(path)) => Some(Token::File(path.clone())),
            Some(Credentials::Basic(_)) => return Err(OtlpConfigError::BasicByGrpc),
        };
        let grpc = BackendOptions {
            token,
            headers: options.headers.clone(),
            ca_file: http.ca_file.clone(),
            client_identity: http.client_identity.clone(),
            connect_timeout: http.connect_timeout,
            request_timeout: http.request_timeout,
            ..BackendOptions::new(&http.address)
        };
        let (channel, headers) = grpc::connection(&grpc)?;
        let plain_url = grpc.plain_url()?;
        Ok(Self::Grpc { channel, options: Arc::new(grpc), headers, plain_url })
    }

    fn http(options: &OtlpOptions) -> Result<Self, OtlpConfigError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &options.headers {
            let (name, value) = header("header", name, value)?;
            headers.append(name, value);
        }
        if options.compress {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let url = format!("{}{HTTP_PATH}", options.http.backend()?).into();
        Ok(Self::Http { client: Arc::new(HttpClient::new(options.http.clone())?), url, headers })
    }
}

/// Time for the answer of a server that keeps to the deadline.
const GRACE: Duration = Duration::from_millis(500);
