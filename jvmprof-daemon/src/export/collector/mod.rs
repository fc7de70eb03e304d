//! The receiving side: Parca's `ProfileStoreService`, OTLP's `ProfilesService`, and Pyroscope's
//! `PusherService` and `/ingest`, with Parca's validation, into a
//! [`Store`](crate::export::store::Store).
//!
//! A request comes in through `parca_receiver`, `otlp_receiver` or `pyroscope_receiver` and is
//! checked by `parca_validation`, as a whole, before anything of it is stored. The page
//! ([`page_server`]) asks the `json_api` for a `selection` of time and labels, which
//! `profile_reader` turns into a call tree or one pprof, and `sample_timeline` into bars. [`sums`]
//! are made ahead of such questions. gRPC and whatever HTTP routes the caller merges share one
//! port: HTTP/1.1 and HTTP/2, with TLS or without, for everyone or for those with the
//! [`access_token`].

pub mod access_token;
mod http_body;
mod json_api;
mod otlp_receiver;
pub mod page_server;
#[cfg(test)]
mod page_tests;
pub mod parca_receiver;
pub mod parca_validation;
mod profile_reader;
pub mod pyroscope_receiver;
#[cfg(test)]
mod receiver_tests;
mod sample_timeline;
mod selection;
pub mod sums;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::Listener;
use nix::sys::resource::{Resource, getrlimit};
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_server::ProfilesServiceServer;
use tokio::sync::Semaphore;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService as _;
use tonic::{Code, Status};

use crate::export::listener::{self, ConnectionOverflow, ListenerLimits};
use crate::proto::profilestore::profile_store_service_server::ProfileStoreServiceServer;

use access_token::AccessToken;
use otlp_receiver::OtlpReceiver;

pub use parca_receiver::{CollectorCounters, CollectorService};
pub use profile_reader::ReadLimits;

/// Our daemons' requests have 16 MiB at most (`BackendOptions::max_request_bytes`), as far as a
/// single series isn't larger. Parca's own limit is 64 MiB (`pkg/debuginfo/client.go`,
/// `MaxMsgSize`); but what is decoded before anything is checked takes 24 times as much where it is
/// made of empty entries.
pub const MAX_MESSAGE_BYTES: usize = 24 << 20;

/// The same for OTLP and Pyroscope, whose clients split at 4 MiB.
pub const MAX_OTHER_MESSAGE_BYTES: usize = 8 << 20;

/// Requests that are received at the same time; each may hold [`MAX_MESSAGE_BYTES`]. Others wait.
const MAX_REQUESTS: usize = 8;

/// The time that others wait, before they are asked to come back: less than the 30 s after which
/// our daemons give a request up, whose profiles would be possibly lost then.
const SLOT_TIME: Duration = Duration::from_secs(10);
/// The time that a request may take, from its headers to its answer: whoever trickles bytes holds a
/// slot.
const REQUEST_TIME: Duration = Duration::from_secs(120);

/// The routes of profiles that are pushed, to be merged with those of a page: they have no fallback
/// of their own.
pub fn routes(collector: Arc<CollectorService>) -> Router {
    routes_within(collector, Slots::default())
}

fn routes_within(collector: Arc<CollectorService>, slots: Slots) -> Router {
    let parca = ProfileStoreServiceServer::from_arc(Arc::clone(&collector))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let otlp = ProfilesServiceServer::new(OtlpReceiver(Arc::clone(&collector)))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MAX_OTHER_MESSAGE_BYTES);
    let path = |service: &str| format!("/{service}/{{*method}}");
    let grpc = Router::new()
        .route_service(&path(ProfileStoreServiceServer::<CollectorService>::NAME), parca)
        .route_service(&path(ProfilesServiceServer::<OtlpReceiver>::NAME), otlp);
    Router::new()
        .route(otlp_receiver::HTTP_PATH, post(otlp_receiver::post))
        .route(pyroscope_receiver::PATH, post(pyroscope_receiver::post))
        .route(pyroscope_receiver::ingest::PATH, post(pyroscope_receiver::ingest::post))
        .layer(DefaultBodyLimit::max(MAX_OTHER_MESSAGE_BYTES))
        .with_state(collector)
        .merge(grpc.layer(middleware::from_fn(require_grpc)))
        .layer(middleware::from_fn_with_state(slots, limit_requests))
}

/// Refuses whoever doesn't have the token, but for the question whether the collector lives.
pub fn require_token(router: Router, token: Arc<AccessToken>) -> Router {
    router.layer(middleware::from_fn_with_state(token, access_token::require))
}

/// Serves until `shutdown` is ready, then finishes the requests that have begun.
pub async fn serve<L: Listener>(listener: L, router: Router, shutdown: impl Future<Output = ()> + Send) {
    let refused = Arc::new(AtomicU64::new(0));
    // Whoever holds connections open, with a token or without, keeps nobody out.
    let limits = ListenerLimits {
        connections: max_connections(),
        when_full: ConnectionOverflow::CloseLongestIdle,
        ..ListenerLimits::default()
    };
    listener::serve(listener, router, limits, Arc::clone(&refused), shutdown).await;
    match refused.load(Ordering::Relaxed) {
        0 => {}
        refused => tracing::warn!(refused, "connections were closed, since too many were open"),
    }
}

/// Returns how many connections may be open: one for each daemon of a large cluster, and half of
/// the files that this process may have open.
fn max_connections() -> usize {
    let (open_files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(open_files / 2).unwrap_or(usize::MAX).clamp(256, 4096)
}

/// Refuses calls that only look like gRPC: a page of another site can have a browser send those.
async fn require_grpc(request: Request, next: Next) -> Response {
    if is_grpc(request.headers()) {
        return next.run(request).await;
    }
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "a gRPC call has the content type application/grpc\n")
        .into_response()
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The number of requests that are received at a time, and the time that each may take.
#[derive(Clone, Debug)]
struct Slots {
    free: Arc<Semaphore>,
    /// For a slot to become free.
    wait: Duration,
    time: Duration,
}

impl Default for Slots {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(MAX_REQUESTS)), wait: SLOT_TIME, time: REQUEST_TIME }
    }
}

/// The protocol of a push: each has an answer of its own that says "later". A status of gRPC is an
/// HTTP 200, which clients by HTTP take for a success.
#[derive(Clone, Copy, Debug)]
enum PushProtocol {
    Parca,
    OtlpGrpc,
    Http,
}

impl PushProtocol {
    fn of(request: &Request) -> Self {
        let service = request.uri().path().split('/').nth(1);
        match is_grpc(request.headers()) {
            true if service == Some(ProfilesServiceServer::<OtlpReceiver>::NAME) => Self::OtlpGrpc,
            true => Self::Parca,
            false => Self::Http,
        }
    }

    /// Answers that nothing was stored, and the client shall send it again.
    fn busy(self) -> Response {
        let text = "too many requests are being received";
        match self {
            // A proxy may say UNAVAILABLE of what it has passed on, so that it means possibly lost.
            Self::Parca => Status::resource_exhausted(text).into_http(),
            // By OTLP RESOURCE_EXHAUSTED means that it mustn't be sent again.
            Self::OtlpGrpc => Status::unavailable(text).into_http(),
            Self::Http => (StatusCode::SERVICE_UNAVAILABLE, format!("{text}\n")).into_response(),
        }
    }

    /// Answers that nobody knows whether it was stored.
    fn too_slow(self, time: Duration) -> Response {
        let text = format!("a request may take {} s", time.as_secs());
        match self {
            Self::Parca | Self::OtlpGrpc => Status::deadline_exceeded(text).into_http(),
            Self::Http => (StatusCode::GATEWAY_TIMEOUT, format!("{text}\n")).into_response(),
        }
    }
}

/// Bounds how many requests are held at once and for how long, and answers a message that is too
/// large with grpc-go's code instead of tonic's: clients see by the code whether sending again
/// makes sense.
async fn limit_requests(State(slots): State<Slots>, request: Request, next: Next) -> Response {
    let protocol = PushProtocol::of(&request);
    // Never closed, so that only time can run out.
    let Ok(_slot) = tokio::time::timeout(slots.wait, slots.free.acquire()).await else {
        return protocol.busy();
    };
    let Ok(mut response) = tokio::time::timeout(slots.time, next.run(request)).await else {
        return protocol.too_slow(slots.time);
    };
    let is_out_of_range =
        |value: &HeaderValue| value.as_bytes() == (Code::OutOfRange as i32).to_string().as_bytes();
    if response.headers().get("grpc-status").is_some_and(is_out_of_range) {
        let code = HeaderValue::from(Code::ResourceExhausted as i32);
        response.headers_mut().insert("grpc-status", code);
    }
    response
}
