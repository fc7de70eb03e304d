//! The HTTP server of metrics and health. It has a thread and an event loop of its own, so that it
//! can report a hang of the daemon's loop.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::oneshot;

use super::health::HealthMonitor;
use super::metrics;
use crate::export::listener::{ConnectionOverflow, ListenerLimits, serve};
use crate::own_process::thread_priority;

/// Time that a scrape waits for a new snapshot before it gets the latest one.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2);
/// Age of a heartbeat from which on a new one is requested.
const HEARTBEAT_AGE: Duration = Duration::from_secs(10);

/// Address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for HttpAddress {
    type Err = String;

    /// Parses `127.0.0.1:7071`, `[::1]:7071`, or `unix:/run/jvmprof/http.sock`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err("a socket's path must be absolute, as in unix:/run/jvmprof/http.sock".to_owned())
            };
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "must be an IP address and a port, such as 127.0.0.1:7071, or unix:/path/of/a/socket".to_owned()
        })
    }
}

impl std::fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Error of starting the server.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("listening on {address} for metrics and health: {source}")]
    Listen { address: HttpAddress, source: io::Error },
    #[error("starting the thread of metrics and health: {source}")]
    Thread { source: io::Error },
}

/// The server. It ends when this is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: HttpAddress,
    refused: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A bound socket.
enum BoundListener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl HttpServer {
    /// Binds the address and starts serving.
    ///
    /// # Errors
    /// Returns an error if the address can't be bound, or the thread can't be started.
    pub fn start(address: &HttpAddress, monitor: Arc<HealthMonitor>) -> Result<Self, HttpError> {
        let failed = |source| HttpError::Listen { address: address.clone(), source };
        let (bound, address) = bind(address).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| HttpError::Thread { source })?;
        let refused = Arc::new(AtomicU64::new(0));
        let (counter, router) = (Arc::clone(&refused), router(monitor));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            thread_priority::lower_priority();
            runtime.block_on(run(bound, router, counter, stopped));
        });
        let thread = thread.map_err(|source| HttpError::Thread { source })?;
        Ok(Self { address, refused, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address, with the port that the kernel chose for port 0.
    pub fn address(&self) -> &HttpAddress {
        &self.address
    }

    /// Returns the number of connections that were closed since too many were open.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let HttpAddress::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of metrics and health panicked");
        }
    }
}

fn limits() -> ListenerLimits {
    // Requests are small and quick, from a handful of clients.
    ListenerLimits {
        connections: 32,
        when_full: ConnectionOverflow::CloseLongestIdle,
        http1_only: true,
        header_time: Duration::from_secs(5),
        idle_time: Duration::from_secs(30),
        header_bytes: 8 << 10,
        streams: 8,
        drain_time: Duration::from_secs(1),
    }
}

fn bind(address: &HttpAddress) -> io::Result<(BoundListener, HttpAddress)> {
    match address {
        HttpAddress::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = HttpAddress::Tcp(listener.local_addr()?);
            Ok((BoundListener::Tcp(listener), address))
        }
        HttpAddress::Unix(path) => {
            remove_stale(path)?;
            let listener = std::os::unix::net::UnixListener::bind(path)?;
            // For root and the daemon's group, whatever the umask is.
            fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
            listener.set_nonblocking(true)?;
            Ok((BoundListener::Unix(listener), address.clone()))
        }
    }
}

/// Removes the socket of a daemon that was killed, to which no process listens. Nothing else is
/// removed.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).err().is_some_and(refused) {
        fs::remove_file(path)?;
    }
    Ok(())
}

async fn run(bound: BoundListener, router: Router, refused: Arc<AtomicU64>, stopped: oneshot::Receiver<()>) {
    let shutdown = async {
        let _ = stopped.await;
    };
    // Both were bound and made non-blocking before; only a runtime without I/O could refuse them.
    match bound {
        BoundListener::Tcp(listener) => match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => serve(listener, router, limits(), refused, shutdown).await,
            Err(error) => tracing::error!(%error, "no metrics and health"),
        },
        BoundListener::Unix(listener) => match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => serve(listener, router, limits(), refused, shutdown).await,
            Err(error) => tracing::error!(%error, "no metrics and health"),
        },
    }
}

fn router(monitor: Arc<HealthMonitor>) -> Router {
    Router::new()
        .route("/", get(|| async { "jvmprof: /metrics /healthz /readyz\n" }))
        .route("/metrics", get(scrape))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .with_state(monitor)
}

async fn scrape(State(monitor): State<Arc<HealthMonitor>>) -> Response {
    let Some(snapshot) = monitor.request_snapshot(SNAPSHOT_TIMEOUT).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "nothing has been counted yet\n").into_response();
    };
    match metrics::exposition(snapshot) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("encoding metrics: {error}\n")).into_response()
        }
    }
}

async fn health(State(monitor): State<Arc<HealthMonitor>>) -> Response {
    refresh_heartbeat(&monitor).await;
    probe_response(monitor.unhealthy_reason())
}

async fn ready(State(monitor): State<Arc<HealthMonitor>>) -> Response {
    refresh_heartbeat(&monitor).await;
    let not_ready = monitor.not_ready_reason();
    match monitor.idle_reason().filter(|_| not_ready.is_none()) {
        Some(why) => format!("ok, idle: {why}\n").into_response(),
        None => probe_response(not_ready),
    }
}

/// Requests a heartbeat if the last one is old: an idle loop answers, one that hangs doesn't.
async fn refresh_heartbeat(monitor: &HealthMonitor) {
    if monitor.since_heartbeat() > HEARTBEAT_AGE {
        monitor.request_snapshot(SNAPSHOT_TIMEOUT).await;
    }
}

fn probe_response(reason: Option<String>) -> Response {
    match reason {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests;
