//! A receiver of OTLP that follows a script, for the tests of its clients: by gRPC and by HTTP.

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use tonic_types::pb::Status as RpcStatus;
use tonic_types::{ErrorDetails, StatusExt as _};

use super::OtlpProtocol;
use super::attributes::{of_resource, text_attribute};

/// A status (of HTTP, or the number of a gRPC code) and a text. [`PARTIAL`] as the text of a
/// success rejects one profile, [`ALL_REJECTED`] all of them, and another one is a warning;
/// [`HOUR`] as that of a failure asks for that time.
type Step = (u16, String);

pub(in crate::export) const PARTIAL: &str = "rejected";
pub(in crate::export) const ALL_REJECTED: &str = "all rejected";
pub(in crate::export) const HOUR: &str = "come back in an hour";
pub(in crate::export) const HOUR_SECONDS: u64 = 3600;
/// gRPC's INVALID_ARGUMENT, which is HTTP's 400.
const REFUSED: u16 = 3;
/// gRPC's UNKNOWN, which is HTTP's 400 too, of a receiver that has stored a part of the message.
const PARTLY_REFUSED: u16 = 2;
/// gRPC's OK, which is HTTP's 200.
const SUCCESS: u16 = 0;

/// The treatment of a message with a series that is refused.
#[derive(Clone, Copy, Default)]
enum Refusal {
    /// It is refused as a whole.
    #[default]
    OfAll,
    /// The series before that one are stored, which isn't said.
    AfterOthers,
    /// All others are stored, and the answer is a partial success.
    OfOne,
}

/// A receiver that gives these answers, one after the other, and then takes everything.
#[derive(Clone, Default)]
pub(in crate::export) struct ScriptedReceiver {
    steps: Arc<Mutex<VecDeque<Step>>>,
    /// The answer to messages without profiles, if it is none of a success.
    to_empty: Option<Step>,
    /// The pid of a series that is always refused.
    refused_pid: Option<&'static str>,
    refusal: Refusal,
    /// Failures by HTTP have a `google.rpc.Status` in their bodies, as OTLP wants it, else a text.
    has_status_bodies: bool,
    /// The time that each series takes.
    time_for_series: Duration,
    /// Requests so far, also those without profiles.
    pub(in crate::export) requests: Arc<AtomicUsize>,
    /// What was taken, with the headers of HTTP.
    pub(in crate::export) taken: Arc<Mutex<Vec<(HeaderMap, ExportProfilesServiceRequest)>>>,
}

impl ScriptedReceiver {
    pub(in crate::export) fn new(steps: &[(u16, &str)]) -> Self {
        let steps = steps.iter().map(|(status, text)| (*status, (*text).to_owned())).collect();
        Self { steps: Arc::new(Mutex::new(steps)), ..Self::default() }
    }

    /// The same receiver, which answers messages without profiles like this.
    pub(in crate::export) fn failing_if_empty(self, status: u16, text: &str) -> Self {
        Self { to_empty: Some((status, text.to_owned())), ..self }
    }

    /// A receiver that refuses messages with a series of this pid, and takes all others.
    pub(in crate::export) fn refusing(pid: &'static str) -> Self {
        Self { refused_pid: Some(pid), ..Self::default() }
    }

    /// The same, which stores the series before that one and doesn't say so, as Pyroscope does.
    pub(in crate::export) fn refusing_after_others(pid: &'static str) -> Self {
        Self { refusal: Refusal::AfterOthers, ..Self::refusing(pid) }
    }

    /// The same, which stores all others and says how many profiles it has rejected.
    pub(in crate::export) fn rejecting(pid: &'static str) -> Self {
        Self { refusal: Refusal::OfOne, ..Self::refusing(pid) }
    }

    /// The same receiver, whose failures by HTTP are protobuf.
    pub(in crate::export) fn with_status_bodies(self, has_status_bodies: bool) -> Self {
        Self { has_status_bodies, ..self }
    }

    /// The same receiver, which takes so long for each series, one after the other.
    pub(in crate::export) fn taking(self, time_for_series: Duration) -> Self {
        Self { time_for_series, ..self }
    }

    /// The sum of the first values of all profiles of the first type.
    pub(in crate::export) fn samples(&self) -> u64 {
        let taken = self.taken.lock().expect("no test panicked");
        let resources = taken.iter().flat_map(|(_, message)| &message.resource_profiles);
        let scopes = resources.flat_map(|resource| &resource.scope_profiles);
        let first = scopes.filter_map(|scope| scope.profiles.first());
        first.flat_map(|profile| &profile.samples).map(|sample| sample.values[0] as u64).sum()
    }

    /// Serves by this protocol, and returns where.
    pub(in crate::export) async fn serve(&self, protocol: OtlpProtocol) -> SocketAddr {
        let (listener, address) = listener().await;
        match protocol {
            OtlpProtocol::Http => {
                let router = self.routes();
                tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
            }
            OtlpProtocol::Grpc => {
                let (service, incoming) = (self.service(), TcpListenerStream::new(listener));
                tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
            }
        }
        address
    }

    /// Returns the routes of the receiver by HTTP.
    pub(in crate::export) fn routes(&self) -> Router {
        Router::new().route("/v1development/profiles", post(export)).with_state(self.clone())
    }

    pub(in crate::export) fn service(&self) -> ProfilesServiceServer<Self> {
        ProfilesServiceServer::new(self.clone()).accept_compressed(CompressionEncoding::Gzip)
    }

    /// Returns the answer to a message: by its script, if there are profiles in it.
    async fn step(&self, headers: HeaderMap, mut message: ExportProfilesServiceRequest) -> Option<Step> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if message.resource_profiles.is_empty() {
            return self.to_empty.clone();
        }
        let step = self.steps.lock().expect("no test panicked").pop_front();
        if step.is_some() {
            return step;
        }
        let series = u32::try_from(message.resource_profiles.len()).expect("few series");
        tokio::time::sleep(self.time_for_series * series).await;
        let refusal = self.refused_at(&message).map(|series| match self.refusal {
            Refusal::OfAll => {
                message.resource_profiles.clear();
                (REFUSED, "bad pid")
            }
            Refusal::AfterOthers => {
                message.resource_profiles.truncate(series);
                (PARTLY_REFUSED, "push series with index 0 and id 1 failed: invalid_argument: bad pid")
            }
            Refusal::OfOne => {
                message.resource_profiles.remove(series);
                (SUCCESS, PARTIAL)
            }
        });
        if !message.resource_profiles.is_empty() {
            self.taken.lock().expect("no test panicked").push((headers, message));
        }
        refusal.map(|(status, text)| (status, text.to_owned()))
    }

    /// The place of the series that is refused, if a message has it.
    fn refused_at(&self, message: &ExportProfilesServiceRequest) -> Option<usize> {
        let pid = text_attribute(of_resource("pid"), self.refused_pid?);
        message.resource_profiles.iter().position(|of| {
            let mut attributes = of.resource.iter().flat_map(|resource| &resource.attributes);
            attributes.any(|attribute| *attribute == pid)
        })
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// A success with this text for a message of so many profiles.
fn success(text: &str, profiles: usize) -> ExportProfilesServiceResponse {
    let rejected = match text {
        PARTIAL => 1,
        ALL_REJECTED => profiles,
        _ => 0,
    };
    let partial = ExportProfilesPartialSuccess {
        rejected_profiles: i64::try_from(rejected).expect("few profiles"),
        error_message: text.to_owned(),
    };
    ExportProfilesServiceResponse { partial_success: (!text.is_empty()).then_some(partial) }
}

fn profiles(message: &ExportProfilesServiceRequest) -> usize {
    let scopes = message.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    scopes.map(|scope| scope.profiles.len()).sum()
}

#[tonic::async_trait]
impl ProfilesService for ScriptedReceiver {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let profiles = profiles(&message);
        match self.step(metadata.into_headers(), message).await {
            None => Ok(Response::new(success("", profiles))),
            Some((SUCCESS, text)) => Ok(Response::new(success(&text, profiles))),
            Some((code, text)) if text == HOUR => {
                let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(HOUR_SECONDS)));
                Err(Status::with_error_details(Code::from_i32(code.into()), text, details))
            }
            Some((code, text)) => Err(Status::new(Code::from_i32(code.into()), text)),
        }
    }
}

async fn export(State(receiver): State<ScriptedReceiver>, headers: HeaderMap, body: Bytes) -> HttpResponse {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let mut bytes = Vec::new();
    if headers.contains_key("content-encoding") {
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut bytes).expect("gzip");
    } else {
        bytes = body.to_vec();
    }
    let message = ExportProfilesServiceRequest::decode(&bytes[..]).expect("protobuf");
    let profiles = profiles(&message);
    let (status, text) = receiver.step(headers, message).await.unwrap_or((SUCCESS, String::new()));
    let status = match status {
        SUCCESS => 200,
        REFUSED | PARTLY_REFUSED => 400,
        status => status,
    };
    let (status, is_hour) = (StatusCode::from_u16(status).expect("a status"), text == HOUR);
    let body = if status.is_success() {
        success(&text, profiles).encode_to_vec()
    } else if receiver.has_status_bodies {
        RpcStatus { code: 0, message: text, details: Vec::new() }.encode_to_vec()
    } else {
        text.into_bytes()
    };
    let mut response = (status, [("content-type", "application/x-protobuf")], body).into_response();
    if is_hour {
        response.headers_mut().insert("retry-after", HOUR_SECONDS.into());
    }
    response
}
