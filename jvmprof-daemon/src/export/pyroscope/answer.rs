//! The outcome of a request by an answer of HTTP: Pyroscope's own (Connect's errors, JSON)
//! or a proxy's. `docs/delivery.md` has it as a table.

use hyper::StatusCode;
use serde::Deserialize;
use tonic::{Code, Status};

use crate::export::parca::PushOutcome;

/// An error of the Connect protocol.
#[derive(Debug, Deserialize)]
struct ConnectFailure {
    code: String,
    #[serde(default)]
    message: String,
}

/// Returns the outcome that an answer means.
pub(super) fn outcome(status: StatusCode, body: &[u8]) -> PushOutcome {
    if status.is_success() {
        return PushOutcome::Stored;
    }
    let failure = serde_json::from_slice::<ConnectFailure>(body).ok();
    let own = failure.and_then(|failure| Some((code_of(&failure.code)?, failure.message)));
    match own {
        // The codes are those of gRPC, and mean the same.
        Some((code, message)) => PushOutcome::of_answer(&Status::new(code, message)),
        // Somebody who isn't Pyroscope, or a part of it that comes before the service.
        None => match PushOutcome::of_http_status(status, &String::from_utf8_lossy(body)) {
            PushOutcome::PossiblyLost { message, .. } if status.as_u16() == 499 => {
                PushOutcome::possibly_lost(Code::Cancelled, message)
            }
            outcome => outcome,
        },
    }
}

/// The code of an error's name, which is gRPC's in small letters.
fn code_of(name: &str) -> Option<Code> {
    Some(match name {
        "canceled" => Code::Cancelled,
        "unknown" => Code::Unknown,
        "invalid_argument" => Code::InvalidArgument,
        "deadline_exceeded" => Code::DeadlineExceeded,
        "not_found" => Code::NotFound,
        "already_exists" => Code::AlreadyExists,
        "permission_denied" => Code::PermissionDenied,
        "resource_exhausted" => Code::ResourceExhausted,
        "failed_precondition" => Code::FailedPrecondition,
        "aborted" => Code::Aborted,
        "out_of_range" => Code::OutOfRange,
        "unimplemented" => Code::Unimplemented,
        "internal" => Code::Internal,
        "unavailable" => Code::Unavailable,
        "data_loss" => Code::DataLoss,
        "unauthenticated" => Code::Unauthenticated,
        _ => return None,
    })
}
