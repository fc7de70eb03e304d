//! The outcome of a request by a receiver's answer. `docs/delivery.md` has it as a table.
//!
//! The codes that OTLP calls retryable say that nothing was stored, except where a proxy may have
//! answered in the receiver's place (opentelemetry-proto docs/specification.md, "Failures").

use hyper::StatusCode;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb::Status as RpcStatus;

use crate::export::http_client::HttpAnswer;
use crate::export::parca::PushOutcome;
use crate::export::parca::push_outcome::is_answer;

/// What came back for a message, from the receiver or from somebody before it.
#[derive(Debug)]
pub(super) enum Answer {
    Grpc(Result<ExportProfilesServiceResponse, Status>),
    Http(HttpAnswer),
}

impl Answer {
    /// Returns the outcome for a message of so many series.
    pub(super) fn outcome(&self, series: usize) -> PushOutcome {
        match self {
            Self::Grpc(Ok(response)) => of_response(response, series),
            Self::Grpc(Err(status)) => PushOutcome::of_otlp_status(status),
            Self::Http(answer) => of_http(answer, series),
        }
    }

    /// Returns the outcome for a message without profiles, which puts no sample at stake: a failure
    /// of the receiver's own shows that it is there, unless it asks for time.
    pub(super) fn of_probe(&self) -> PushOutcome {
        match self.outcome(0) {
            PushOutcome::PossiblyLost { code, message, retry_after: None } if self.is_own_failure() => {
                PushOutcome::Refused { code, message, divisible: false }
            }
            outcome => outcome,
        }
    }

    /// Returns true for a failure that no proxy gives while its receiver is away. Empty messages
    /// get it by gRPC from Parca (`UNKNOWN`), by HTTP from Pyroscope (500).
    fn is_own_failure(&self) -> bool {
        match self {
            Self::Grpc(Ok(_)) => false,
            Self::Grpc(Err(status)) => {
                is_answer(status) && matches!(status.code(), Code::Unknown | Code::Internal)
            }
            Self::Http(answer) => answer.status == StatusCode::INTERNAL_SERVER_ERROR && answer.is_whole,
        }
    }
}

/// Returns the outcome of a success, which may be a partial one, for a request of so many series.
fn of_response(response: &ExportProfilesServiceResponse, series: usize) -> PushOutcome {
    let Some(partial) = response.partial_success.as_ref().filter(|partial| partial.rejected_profiles > 0)
    else {
        return PushOutcome::Stored;
    };
    let message = format!("{} profiles rejected: {}", partial.rejected_profiles, partial.error_message);
    let code = Code::InvalidArgument;
    if series > 1 {
        // Of several it isn't said which were stored.
        return PushOutcome::possibly_lost(code, message);
    }
    // The profiles of a series are of the same samples, which aren't stored as a whole.
    PushOutcome::Refused { code, message, divisible: false }
}

/// Returns the outcome of an answer by HTTP to a request of so many series.
fn of_http(answer: &HttpAnswer, series: usize) -> PushOutcome {
    let HttpAnswer { status, body, is_whole, retry_after } = answer;
    if status.is_success() && !is_whole {
        // It would have said what was rejected, or that somebody else has answered.
        return PushOutcome::possibly_lost(Code::Unknown, format!("HTTP {status} without its whole body"));
    }
    if status.is_success() {
        return match ExportProfilesServiceResponse::decode(body.clone()) {
            Ok(response) => of_response(&response, series),
            // Somebody else's success says nothing of the profile.
            Err(error) => PushOutcome::possibly_lost(
                Code::Unknown,
                format!("HTTP {status} with a body that is no answer: {error}"),
            ),
        };
    }
    PushOutcome::of_http_status(*status, &text_of(body)).with_retry_after(*retry_after)
}

/// The message of an answer: that of its status (`google.rpc.Status`) in protobuf, else the body as
/// text.
fn text_of(body: &[u8]) -> String {
    let status = RpcStatus::decode(body).ok().filter(|status| !status.message.is_empty());
    status.map_or_else(|| String::from_utf8_lossy(body).into_owned(), |status| status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_counts_only_with_its_whole_body() {
        let answer = |is_whole| HttpAnswer {
            status: StatusCode::OK,
            body: Default::default(),
            is_whole,
            retry_after: None,
        };
        assert!(matches!(of_http(&answer(true), 1), PushOutcome::Stored));
        assert!(matches!(of_http(&answer(false), 1), PushOutcome::PossiblyLost { .. }));
    }
}
