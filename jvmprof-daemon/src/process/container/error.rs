//! Errors of querying a container runtime.

use std::path::PathBuf;
use std::time::Duration;

/// Error of a query.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuntimeError {
    #[error("querying {} for a container: {}: {}", socket.display(), status.code(), status.message())]
    Cri { socket: PathBuf, status: Box<tonic::Status> },
    #[error("querying {} for a container: {source}", socket.display())]
    Connection { socket: PathBuf, source: std::io::Error },
    #[error("querying {} for a container: {source}", socket.display())]
    Http { socket: PathBuf, source: hyper::Error },
    #[error("querying {} for a container: the answer is {what}", socket.display())]
    Answer { socket: PathBuf, what: String },
    #[error("querying {} for a container: no answer within {timeout:?}", socket.display())]
    TimedOut { socket: PathBuf, timeout: Duration },
}
