//! The outcome of a request by a receiver's answer. `docs/delivery.md` has it as a table.
//!
//! The codes that OTLP calls retryable say that nothing was stored, except where a proxy may have
//! answered in the receiver's place (opentelemetry-proto docs/specification.md, "Failures").

use std::time::Duration;

use hyper::StatusCode;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb::Status as RpcStatus;

use crate::export::connect_code::code_of;
use crate::export::http_client::HttpAnswer;
use crate::export::push::PushOutcome;
use crate::export::push::push_outcome::{is_answer, retry_delay};

/// The contents of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    series: usize,
    profiles: usize,
}

impl Contents {
    /// Counts a message's series, each of which is a resource, and their profiles.
    pub(super) fn of(message: &ExportProfilesServiceRequest) -> Self {
        let resources = &message.resource_profiles;
        let scopes = resources.iter().flat_map(|resource| &resource.scope_profiles);
        Self { series: resources.len(), profiles: scopes.map(|scope| scope.profiles.len()).sum() }
    }
}

/// The answer to a message, from the receiver or from somebody before it.
#[derive(Debug)]
pub(super) enum Answer {
    Grpc(Result<ExportProfilesServiceResponse, Status>),
    Http(HttpAnswer),
}

/// The subject of an answer.
#[derive(Debug)]
pub(super) enum Meaning {
    /// The whole message.
    OfAll(PushOutcome),
    /// The whole message, which was stored, with what the receiver says of it.
    StoredWithWarning(String),
    /// Some of its profiles, which weren't taken for this reason. Others may have been stored.
    OfSome {
        code: Code,
        message: String,
        retry_after: Option<Duration>,
        /// The number of profiles that weren't taken, if the receiver says it.
        rejected: Option<usize>,
    },
}

impl Answer {
    pub(super) fn meaning(&self) -> Meaning {
        match self {
            Self::Grpc(Ok(response)) => of_response(response),
            Self::Grpc(Err(status)) => of_status(status),
            Self::Http(answer) => of_http(answer),
        }
    }

    /// Returns the outcome for a message without profiles, which puts no sample at stake: a failure
    /// of the receiver's own shows that it is there, unless it asks for time.
    pub(super) fn of_probe(&self) -> PushOutcome {
        match self.meaning().outcome(Contents { series: 0, profiles: 0 }) {
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

impl Meaning {
    /// Returns the code for which some of several series of a message that holds this weren't
    /// taken, if others may have been stored: it isn't said which.
    pub(super) fn code_of_unknown_series(&self, contents: Contents) -> Option<Code> {
        match self {
            Self::OfAll(_) | Self::StoredWithWarning(_) => None,
            Self::OfSome { code, rejected, .. } => {
                (contents.series > 1 && *rejected != Some(contents.profiles)).then_some(*code)
            }
        }
    }

    /// Returns the outcome for a message that holds this.
    pub(super) fn outcome(self, contents: Contents) -> PushOutcome {
        let (code, message, retry_after, rejected) = match self {
            Self::OfAll(outcome) => return outcome,
            Self::StoredWithWarning(_) => return PushOutcome::Stored,
            Self::OfSome { code, message, retry_after, rejected } => (code, message, retry_after, rejected),
        };
        if rejected == Some(contents.profiles) {
            // Each profile has been looked at by itself: parts of the message would end alike.
            return PushOutcome::Refused { code, message, divisible: false };
        }
        let status = Status::new(code, message);
        let outcome = PushOutcome::of_answer(&status);
        let is_clear = match outcome {
            // Of a series with several profiles the first ones may have been stored.
            PushOutcome::NotStored { .. } => contents.profiles <= 1,
            // The profiles of a series are of the same samples, which aren't stored as a whole. Of
            // several series it isn't said which were stored.
            _ => contents.series <= 1,
        };
        let outcome = if is_clear { outcome } else { PushOutcome::possibly_lost(code, status.message()) };
        outcome.with_retry_after(retry_after)
    }
}

/// A success, which may be a partial one. With no profile rejected its text is a warning.
fn of_response(response: &ExportProfilesServiceResponse) -> Meaning {
    match &response.partial_success {
        Some(partial) if partial.rejected_profiles > 0 => Meaning::OfSome {
            code: Code::InvalidArgument,
            message: format!("{} profiles rejected: {}", partial.rejected_profiles, partial.error_message),
            retry_after: None,
            rejected: usize::try_from(partial.rejected_profiles).ok(),
        },
        Some(partial) if !partial.error_message.is_empty() => {
            Meaning::StoredWithWarning(partial.error_message.clone())
        }
        Some(_) | None => Meaning::OfAll(PushOutcome::Stored),
    }
}

/// A failure by gRPC.
fn of_status(status: &Status) -> Meaning {
    match code_of_one_profile(status.message()).filter(|_| is_answer(status)) {
        Some(code) => {
            let (message, retry_after) = (status.message().to_owned(), retry_delay(status));
            Meaning::OfSome { code, message, retry_after, rejected: None }
        }
        None => Meaning::OfAll(PushOutcome::of_otlp_status(status)),
    }
}

/// An answer by HTTP.
fn of_http(answer: &HttpAnswer) -> Meaning {
    let HttpAnswer { status, body, is_whole, retry_after } = answer;
    let unknown = |message: String| Meaning::OfAll(PushOutcome::possibly_lost(Code::Unknown, message));
    if status.is_success() && !is_whole {
        // It would have said what was rejected, or that somebody else has answered.
        return unknown(format!("HTTP {status} without its whole body"));
    }
    if status.is_success() {
        return match ExportProfilesServiceResponse::decode(body.clone()) {
            Ok(response) => of_response(&response),
            // Somebody else's success says nothing of the profile.
            Err(error) => unknown(format!("HTTP {status} with a body that is no answer: {error}")),
        };
    }
    let text = text_of(body);
    match code_of_one_profile(&text) {
        Some(code) => {
            let message = format!("HTTP {status}: {}", text.trim());
            Meaning::OfSome { code, message, retry_after: *retry_after, rejected: None }
        }
        None => match PushOutcome::of_http_status(*status, &text) {
            // What is missing of the text might say that it is of one profile.
            PushOutcome::Refused { code, message, .. } if !is_whole && *status == StatusCode::BAD_REQUEST => {
                Meaning::OfSome { code, message, retry_after: *retry_after, rejected: None }
            }
            outcome => Meaning::OfAll(outcome.with_retry_after(*retry_after)),
        },
    }
}

/// Returns the code for which one of a message's profiles wasn't taken, by the text of a receiver
/// that stores them one after the other and fails with the first one that isn't: Pyroscope
/// (`pkg/ingester/otlp/ingest_handler.go`), whose own code is `UNKNOWN` and whose status 400 or 500
/// then.
fn code_of_one_profile(text: &str) -> Option<Code> {
    if text.contains("failed to convert otel profile: ") {
        return Some(Code::InvalidArgument);
    }
    let (_, push) = text.split_once("push series with index ")?;
    let (_, failure) = push.split_once(" failed: ")?;
    // The text of a failure of the Connect protocol.
    Some(failure.split_once(':').and_then(|(name, _)| code_of(name)).unwrap_or(Code::Unknown))
}

/// The message of an answer: that of its status (`google.rpc.Status`) in protobuf, else the body as
/// text.
fn text_of(body: &[u8]) -> String {
    let status = RpcStatus::decode(body).ok().filter(|status| !status.message.is_empty());
    status.map_or_else(|| String::from_utf8_lossy(body).into_owned(), |status| status.message)
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;

    use super::*;

    fn answer(status: StatusCode, body: &'static str, is_whole: bool) -> Answer {
        Answer::Http(HttpAnswer { status, body: body.into(), is_whole, retry_after: None })
    }

    fn kind(outcome: &PushOutcome) -> &'static str {
        match outcome {
            PushOutcome::Refused { .. } => "refused",
            PushOutcome::NotStored { .. } => "not stored",
            PushOutcome::PossiblyLost { .. } => "possibly lost",
            PushOutcome::Stored => "stored",
        }
    }

    #[test]
    fn a_success_counts_only_with_its_whole_body() {
        let outcome = |is_whole| {
            answer(StatusCode::OK, "", is_whole).meaning().outcome(Contents { series: 1, profiles: 1 })
        };
        assert!(matches!(outcome(true), PushOutcome::Stored));
        assert!(matches!(outcome(false), PushOutcome::PossiblyLost { .. }));
    }

    #[test]
    fn a_failure_with_one_profile_is_clear_only_where_no_other_may_have_been_stored() {
        const REFUSED: &str = "failed to make a GRPC request: push series with index 0 and id 1 failed: \
                               invalid_argument: 46 label names; limit 30";
        const THROTTLED: &str = "failed to make a GRPC request: push series with index 0 and id 1 failed: \
                                 resource_exhausted: push rate limit (4.0 MiB) exceeded";
        const MALFORMED: &str =
            "rpc error: code = InvalidArgument desc = failed to convert otel profile: index 7 out of bounds";
        const BROKEN: &str = "push series with index 0 and id 1 failed: context canceled";
        for (text, of_one, of_a_series) in [
            (REFUSED, "refused", "refused"),
            (MALFORMED, "refused", "refused"),
            (THROTTLED, "not stored", "possibly lost"),
            (BROKEN, "possibly lost", "possibly lost"),
        ] {
            for (series, profiles, expected) in
                [(1, 1, of_one), (1, 2, of_a_series), (2, 2, "possibly lost"), (3, 6, "possibly lost")]
            {
                let contents = Contents { series, profiles };
                let by_grpc = Answer::Grpc(Err(Status::unknown(text)));
                for answer in [
                    by_grpc,
                    answer(StatusCode::BAD_REQUEST, text, true),
                    answer(StatusCode::INTERNAL_SERVER_ERROR, text, true),
                ] {
                    assert_eq!(
                        kind(&answer.meaning().outcome(contents)),
                        expected,
                        "{answer:?} {contents:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_partial_success_is_clear_by_either_protocol_where_all_or_none_or_one_series_is_rejected() {
        // Rejected profiles, the text, series and profiles of the message, and what is known.
        for (rejected, text, series, profiles, expected) in [
            (0, "", 3, 6, "stored"),
            (0, "names were shortened", 3, 6, "stored"),
            // No number of anything.
            (-1, "names were shortened", 3, 6, "stored"),
            (1, "bad names", 1, 1, "refused"),
            (1, "bad names", 1, 2, "refused"),
            (2, "bad names", 1, 2, "refused"),
            (6, "bad names", 3, 6, "refused"),
            (5, "bad names", 3, 6, "possibly lost"),
            (1, "bad names", 2, 2, "possibly lost"),
            // More than there were: it counts something else.
            (7, "bad names", 3, 6, "possibly lost"),
            (1, "", 2, 2, "possibly lost"),
        ] {
            let partial =
                ExportProfilesPartialSuccess { rejected_profiles: rejected, error_message: text.to_owned() };
            let response = ExportProfilesServiceResponse { partial_success: Some(partial) };
            let body = response.encode_to_vec().into();
            let by_http = HttpAnswer { status: StatusCode::OK, body, is_whole: true, retry_after: None };
            let contents = Contents { series, profiles };
            for answer in [Answer::Grpc(Ok(response)), Answer::Http(by_http)] {
                let meaning = answer.meaning();
                let unknown = meaning.code_of_unknown_series(contents);
                assert_eq!(unknown.is_some(), expected == "possibly lost", "{answer:?} {contents:?}");
                assert_eq!(kind(&meaning.outcome(contents)), expected, "{answer:?} {contents:?}");
            }
        }
    }

    #[test]
    fn a_body_that_is_no_answer_makes_a_success_one_of_somebody_else() {
        let one = Contents { series: 1, profiles: 1 };
        for body in ["<html></html>", "OK", "{}", "{\"partialSuccess\":{\"rejectedProfiles\":\"1\"}}"] {
            let outcome = answer(StatusCode::OK, body, true).meaning().outcome(one);
            assert_eq!(kind(&outcome), "possibly lost", "{body}");
        }
        assert_eq!(kind(&answer(StatusCode::ACCEPTED, "", true).meaning().outcome(one)), "stored");
    }
}
