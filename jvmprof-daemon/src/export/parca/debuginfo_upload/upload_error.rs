//! Errors of uploads, and the time at which trying again makes sense.

use std::fmt;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};

use crate::export::push::push_outcome::describe;
use crate::native::debug_files_to_upload::extract_debug_info::ExtractError;

/// The reason why a file wasn't uploaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    #[error("{step}: {} ({:?})", describe(status), status.code())]
    Status { step: &'static str, status: Box<Status> },
    #[error("{step}: no answer in {limit:?}")]
    TimedOut { step: &'static str, limit: Duration },
    #[error("announcing a debug file: the answer has no instructions that can be followed")]
    Instructions,
    #[error("sending a debug file: {received} of {sent} bytes arrived")]
    Short { sent: u64, received: u64 },
    #[error("sending a debug file to its signed URL: {0}")]
    Put(Box<ureq::Error>),
    #[error(transparent)]
    Extract(#[from] ExtractError),
    #[error("reading the file: {0}")]
    Read(io::Error),
    #[error("reading the file: it was written anew meanwhile")]
    Changed,
    #[error("reading the file: it has another build id than the one that it was offered by")]
    OtherBuild,
    #[error("reading the access token: {0}")]
    Token(String),
    #[error("running a step of the upload on a thread: {0}")]
    Thread(String),
    #[error("waiting for other uploads: the daemon is ending")]
    Ending,
}

/// The time of the next try after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTime {
    /// Try again after a short while.
    Soon,
    /// Ask again in some minutes.
    Later,
    /// It would end the same way.
    Never,
}

#[derive(Debug)]
pub(super) struct UploadFailure {
    pub(super) error: UploadError,
    pub(super) next: RetryTime,
}

impl UploadFailure {
    /// Returns true if the server doesn't want it, now or ever.
    pub(super) fn is_refusal(&self) -> bool {
        self.next == RetryTime::Never && matches!(self.error, UploadError::Status { .. })
    }
}

impl From<UploadError> for UploadFailure {
    fn from(error: UploadError) -> Self {
        let next = match &error {
            UploadError::Status { status, .. } => next(status.code()),
            UploadError::TimedOut { .. } | UploadError::Short { .. } => RetryTime::Soon,
            UploadError::Put(error) => match **error {
                // The URL has expired, or was for another size: the next round gets another one.
                ureq::Error::StatusCode(400..500) => RetryTime::Later,
                _ => RetryTime::Soon,
            },
            UploadError::Token(_) | UploadError::Thread(_) | UploadError::Instructions => RetryTime::Later,
            UploadError::Extract(ExtractError::Write(_)) => RetryTime::Later,
            UploadError::Extract(_)
            | UploadError::Read(_)
            | UploadError::Changed
            | UploadError::OtherBuild
            | UploadError::Ending => RetryTime::Never,
        };
        Self { error, next }
    }
}

/// Returns when a file that was answered so is tried again. parca-agent knows the same three kinds;
/// the codes are those of Parca's `pkg/debuginfo/store.go`.
fn next(code: Code) -> RetryTime {
    match code {
        // It came from elsewhere meanwhile, or is on its way from there, which may fail.
        Code::FailedPrecondition => RetryTime::Later,
        Code::AlreadyExists
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => RetryTime::Never,
        _ => RetryTime::Soon,
    }
}

impl fmt::Display for UploadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
