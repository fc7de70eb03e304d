//! Serving HTTP and gRPC to whoever connects, without being exhausted by it: bounded are the number of connections, the time
//! until a request's headers are there, the time in which nothing moves, and the streams of a connection.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// What all clients together may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Open at the same time; further ones are closed at once, and counted.
    pub connections: usize,
    /// From the first byte of an HTTP/1 request to the end of its headers.
    pub header_time: Duration,
    /// A connection on which nothing is read, or nothing can be written, for so long is closed. HTTP/2 clients that live
    /// answer pings, so theirs stay.
    pub idle_time: Duration,
    /// Headers of a request, bytes; 8 KiB at least.
    pub header_bytes: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
    /// How long requests that have begun may take at the end.
    pub drain_time: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            header_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            header_bytes: 32 << 10,
            streams: 64,
            drain_time: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown` is ready, then finishes the requests that have begun. `refused` counts connections that were one
/// too many.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    limits: ListenerLimits,
    refused: Arc<AtomicU64>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let (builder, graceful) = (builder(limits), GracefulShutdown::new());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let stream = tokio::select! {
            (stream, _) = listener.accept() => stream,
            () = &mut shutdown => break,
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(limit = limits.connections, "a connection is refused: too many are open");
            continue;
        };
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(Some(limits.idle_time));
        stream.set_write_timeout(Some(limits.idle_time));
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let _slot = slot;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
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
    builder
}

#[cfg(test)]
mod tests;
