//! Serving HTTP and gRPC to whoever connects, without being exhausted by it: bounded are the number
//! of connections, the time until a request's headers are there, the time in which nothing moves,
//! and the streams of a connection.

mod open_connections;
pub mod tls;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::serve::Listener;
use axum::{Router, middleware};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio_io_timeout::TimeoutStream;

use open_connections::{Activity, OpenConnections};

/// Limits of what all clients together may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Open at the same time; for a further one another one is closed, or it is itself, and
    /// counted.
    pub connections: usize,
    pub when_full: ConnectionOverflow,
    /// Only HTTP/1.1 is spoken.
    pub http1_only: bool,
    /// From the first byte of an HTTP/1 request to the end of its headers, and from the beginning
    /// of any connection to the end of the first one's.
    pub header_time: Duration,
    /// A connection on which nothing is read, or nothing can be written, for so long is closed.
    /// HTTP/2 clients that live answer pings, so theirs stay.
    pub idle_time: Duration,
    /// Headers of a request, bytes; 8 KiB at least.
    pub header_bytes: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// Time that requests that have begun may take at the end.
    pub drain_time: Duration,
}

/// The treatment of one connection too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOverflow {
    /// It is closed: what others are sending may not be lost.
    Refuse,
    /// The one that has been idle for the longest time is closed: who holds connections open keeps
    /// nobody out.
    CloseLongestIdle,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            when_full: ConnectionOverflow::Refuse,
            http1_only: false,
            header_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            header_bytes: 32 << 10,
            streams: 64,
            drain_time: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown` is ready, then finishes the requests that have begun. `refused` counts
/// connections that were closed because there was one too many.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    limits: ListenerLimits,
    refused: Arc<AtomicU64>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let mut open = OpenConnections::default();
    let (builder, graceful) = (builder(limits), GracefulShutdown::new());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            (stream, _) = listener.accept() => stream,
            () = &mut shutdown => break,
        };
        if open.count() >= limits.connections {
            refused.fetch_add(1, Ordering::Relaxed);
            let is_room_made =
                limits.when_full == ConnectionOverflow::CloseLongestIdle && open.close_longest_idle();
            tracing::warn!(
                limit = limits.connections,
                is_room_made,
                "a connection is closed: too many are open"
            );
            if !is_room_made {
                continue;
            }
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(Some(limits.idle_time));
        stream.set_write_timeout(Some(limits.idle_time));
        let activity = Activity::new();
        let tracking = middleware::from_fn_with_state(Arc::clone(&activity), open_connections::track_request);
        let service = TowerToHyperService::new(router.clone().layer(tracking));
        let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service).into_owned();
        let connection = graceful.watch(connection);
        let tracked = Arc::clone(&activity);
        let task = tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                () = tracked.header_timeout(limits.header_time) => tracing::debug!("a connection without a request is closed"),
            }
        });
        open.add(activity, task.abort_handle());
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_time, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were under way for too long and are given up");
    }
}

fn builder(limits: ListenerLimits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        // hyper takes no less than 8 KiB.
        .max_buf_size(limits.header_bytes.max(8 << 10));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(limits.idle_time / 3)
        .keep_alive_timeout(limits.idle_time / 3);
    if limits.http1_only { builder.http1_only() } else { builder }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
