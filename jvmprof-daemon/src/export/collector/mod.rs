//! The receiving side: Parca's `ProfileStoreService`, with Parca's validation, into a [`Store`](crate::export::store::Store).
//!
//! gRPC and whatever HTTP routes the caller merges share one port: HTTP/1.1 and HTTP/2 without TLS.

mod api;
pub mod page;
#[cfg(test)]
mod page_tests;
mod reading;
mod selection;
pub mod service;
#[cfg(test)]
mod tests;
mod timeline;
pub mod validate;

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::Code;
use tonic::server::NamedService as _;

use crate::proto::profilestore::profile_store_service_server::ProfileStoreServiceServer;

pub use reading::ReadLimits;
pub use service::{Collector, CollectorCounters};

/// Parca's own limit (`pkg/debuginfo/client.go`, `MaxMsgSize`).
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Requests that are received at the same time; each may hold [`MAX_MESSAGE_BYTES`]. Others wait.
const MAX_REQUESTS: usize = 8;

/// The gRPC routes, to be merged with those of a page: they have no fallback of their own.
pub fn routes(collector: Arc<Collector>) -> Router {
    let service = ProfileStoreServiceServer::from_arc(collector).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let path = format!("/{}/{{*method}}", ProfileStoreServiceServer::<Collector>::NAME);
    let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
    Router::new().route_service(&path, service).layer(middleware::from_fn_with_state(slots, as_parca_answers))
}

/// Serves until `shutdown` is ready, then finishes the requests that have begun.
///
/// # Errors
/// The listener fails for good.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
}

/// Bounds how many requests are held at once, and answers a message that is too large with grpc-go's code instead of
/// tonic's: clients tell by the code whether sending again makes sense.
async fn as_parca_answers(State(slots): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    // Never closed, so there always is a permit in the end.
    let _slot = slots.acquire().await.ok();
    let mut response = next.run(request).await;
    let is_out_of_range =
        |value: &HeaderValue| value.as_bytes() == (Code::OutOfRange as i32).to_string().as_bytes();
    if response.headers().get("grpc-status").is_some_and(is_out_of_range) {
        let code = HeaderValue::from(Code::ResourceExhausted as i32);
        response.headers_mut().insert("grpc-status", code);
    }
    response
}
