//! The receiving side: Parca's `ProfileStoreService`, OTLP's `ProfilesService` and Pyroscope's
//! `PusherService`, with Parca's validation, into a [`Store`](crate::export::store::Store).
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
mod pyroscope_receiver;
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
use axum::http::{HeaderValue, StatusCode, header};
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

use crate::export::listener::{self, ListenerLimits, WhenFull};
use crate::proto::profilestore::profile_store_service_server::ProfileStoreServiceServer;

use access_token::AccessToken;
use otlp_receiver::OtlpReceiver;

pub use parca_receiver::{CollectorCounters, CollectorService};
pub use profile_reader::ReadLimits;

/// Parca's own limit (`pkg/debuginfo/client.go`, `MaxMsgSize`).
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The same for OTLP and Pyroscope, whose clients split at 4 MiB: in memory a message of tiny
/// entries takes many times its size.
pub const MAX_OTHER_MESSAGE_BYTES: usize = 8 << 20;

/// Requests that are received at the same time; each may hold [`MAX_MESSAGE_BYTES`]. Others wait.
const MAX_REQUESTS: usize = 8;

/// The time that others wait, before they are asked to come back.
const SLOT_TIME: Duration = Duration::from_secs(30);
/// The time that a request may take, from its headers to its answer: whoever trickles bytes holds a
/// slot.
const REQUEST_TIME: Duration = Duration::from_secs(120);

/// The routes of profiles that are pushed, to be merged with those of a page: they have no fallback
/// of their own.
pub fn routes(collector: Arc<CollectorService>) -> Router {
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
    let slots = Slots::new(REQUEST_TIME);
    Router::new()
        .route(otlp_receiver::HTTP_PATH, post(otlp_receiver::post))
        .route(pyroscope_receiver::PATH, post(pyroscope_receiver::post))
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
        when_full: WhenFull::CloseLongestIdle,
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
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return next.run(request).await;
    }
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "a gRPC call has the content type application/grpc\n")
        .into_response()
}

/// Requests of one kind: how many at a time, and how long each may take.
#[derive(Clone, Debug)]
struct Slots {
    free: Arc<Semaphore>,
    time: Duration,
}

impl Slots {
    fn new(time: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(MAX_REQUESTS)), time }
    }
}

/// Bounds how many requests are held at once and for how long, and answers a message that is too
/// large with grpc-go's code instead of tonic's: clients see by the code whether sending again
/// makes sense.
async fn limit_requests(State(slots): State<Slots>, request: Request, next: Next) -> Response {
    // Never closed, so that only time can run out.
    let Ok(_slot) = tokio::time::timeout(SLOT_TIME, slots.free.acquire()).await else {
        return Status::unavailable("too many requests are being received").into_http();
    };
    let Ok(mut response) = tokio::time::timeout(slots.time, next.run(request)).await else {
        return Status::deadline_exceeded(format!("a request may take {} s", slots.time.as_secs()))
            .into_http();
    };
    let is_out_of_range =
        |value: &HeaderValue| value.as_bytes() == (Code::OutOfRange as i32).to_string().as_bytes();
    if response.headers().get("grpc-status").is_some_and(is_out_of_range) {
        let code = HeaderValue::from(Code::ResourceExhausted as i32);
        response.headers_mut().insert("grpc-status", code);
    }
    response
}
