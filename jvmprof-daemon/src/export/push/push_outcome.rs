//! The outcome of a request: stored, refused, possibly lost, or to be sent again.

use std::error::Error;
use std::time::Duration;

use hyper::StatusCode;
use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt as _;
use url::Url;

use super::push_request::PushRequest;
use super::tls_mismatch::{self, PlaintextProtocol, TlsMismatch};
use crate::export::retry_after;

/// Longest part of an answer by HTTP that a message shows.
const SHOWN_CHARACTERS: usize = 300;

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    Stored,
    /// The server has it and doesn't want it: sending it again would end the same way.
    Refused {
        code: Code,
        message: String,
        /// A part of it may be welcome.
        divisible: bool,
    },
    /// It was sent, and nobody knows whether it was stored. Sending it again might count it twice.
    PossiblyLost {
        code: Code,
        message: String,
        /// The time after which the server wants to be asked again, if it says one: for whatever
        /// is sent next.
        retry_after: Option<Duration>,
    },
    /// It wasn't stored for certain, and might be later: nobody is there, there is no room at the
    /// moment, or we aren't let in.
    NotStored {
        message: String,
        /// The time after which the server wants to be asked again, if it says one.
        retry_after: Option<Duration>,
    },
}

impl PushOutcome {
    /// Makes the outcome of a request that wasn't stored, where nobody says when it might be.
    pub(in crate::export) fn not_stored(message: impl Into<String>) -> Self {
        Self::NotStored { message: message.into(), retry_after: None }
    }

    /// Makes the outcome of a request that was sent and may be stored, where nobody says when to
    /// ask again.
    pub(in crate::export) fn possibly_lost(code: Code, message: impl Into<String>) -> Self {
        Self::PossiblyLost { code, message: message.into(), retry_after: None }
    }

    /// Adds when the server wants to be asked again. Means nothing for what was stored or refused.
    pub(in crate::export) fn with_retry_after(self, after: Option<Duration>) -> Self {
        match self {
            Self::NotStored { message, retry_after } => {
                Self::NotStored { message, retry_after: after.or(retry_after) }
            }
            Self::PossiblyLost { code, message, retry_after } => {
                Self::PossiblyLost { code, message, retry_after: after.or(retry_after) }
            }
            other => other,
        }
    }

    /// The outcome of an empty request. Where it failed, and a server that is reached without TLS,
    /// directly, speaks TLS, it says so.
    pub(in crate::export) async fn unless_server_speaks_tls(
        self,
        plain_url: Option<&Url>,
        protocol: PlaintextProtocol,
    ) -> Self {
        let (Self::PossiblyLost { message, retry_after, .. } | Self::NotStored { message, retry_after }) =
            &self
        else {
            return self;
        };
        let Some(url) = plain_url else { return self };
        let Some(mismatch) = tls_mismatch::of_plaintext_address(url, protocol).await else { return self };
        let message = match (mismatch, &self) {
            // It has failed for another reason.
            (TlsMismatch::TheServerToo, Self::PossiblyLost { code, .. }) => {
                format!("{code:?}: {message} ({mismatch})")
            }
            (TlsMismatch::TheServerToo, _) => format!("{message} ({mismatch})"),
            _ => mismatch.to_string(),
        };
        Self::NotStored { message, retry_after: *retry_after }
    }

    /// Logs what became of a request.
    pub(in crate::export) fn log(&self, address: &str, request: &PushRequest) {
        let (series, samples) = (request.series(), request.samples);
        match self {
            Self::Stored => {
                tracing::debug!(address, series, samples, bytes = request.bytes(), "profiles pushed");
            }
            Self::Refused { code, message, .. } => {
                let labels = request.only_labels();
                tracing::error!(address, series, samples, ?code, message, labels, "server refused profiles");
            }
            Self::PossiblyLost { code, message, .. } => {
                let lost = "push broke off, profiles may be lost";
                tracing::error!(address, series, samples, ?code, message, "{lost}");
            }
            Self::NotStored { message, .. } => {
                tracing::debug!(address, series, samples, message, "profiles can't be pushed now");
            }
        }
    }

    /// Returns the outcome that a failure means.
    pub(in crate::export) fn of(status: &Status) -> Self {
        // Not gRPC but HTTP: a proxy that didn't let the request through, or a server that doesn't
        // know what it is.
        match http_status(status.message()) {
            Some(413) => return Self::refused(status, true),
            Some(400..=499 | 503) => return Self::not_stored_by(status),
            _ => {}
        }
        match status.source() {
            // A status with a cause was made on this side, out of a broken connection.
            Some(cause) if was_never_processed(cause) => Self::not_stored_by(status),
            Some(_) => Self::possibly_lost_by(status),
            None => Self::of_answer(status),
        }
    }

    /// The outcome of a status of OTLP: as [`Self::of`], but what its specification calls retryable
    /// was not stored, if the receiver itself has said it.
    pub(in crate::export) fn of_otlp_status(status: &Status) -> Self {
        match status.code() {
            Code::Unavailable | Code::Aborted | Code::DataLoss if is_answer(status) => {
                Self::not_stored_by(status)
            }
            _ => Self::of(status),
        }
    }

    /// Returns the outcome that a server's answer, or a proxy's, means. `docs/delivery.md` has it
    /// as a table.
    pub(in crate::export) fn of_answer(status: &Status) -> Self {
        match status.code() {
            // Before anything is stored, Parca looks at all series.
            Code::InvalidArgument => Self::refused(status, true),
            Code::ResourceExhausted | Code::OutOfRange if is_too_large(status.message()) => {
                Self::refused(status, true)
            }
            Code::ResourceExhausted => Self::not_stored_by(status),
            Code::Unavailable if was_not_forwarded(status.message()) => Self::not_stored_by(status),
            // The same text says that the server can't read the request and that we can't read its
            // answer.
            Code::Unimplemented if status.message().starts_with("Content is compressed with") => {
                Self::possibly_lost_by(status)
            }
            // They speak of us or of the server rather than of the profiles: somebody will put it
            // right.
            Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
                Self::not_stored_by(status)
            }
            Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition | Code::OutOfRange => {
                Self::refused(status, false)
            }
            // Unknown is what Parca says of bad gzip and of a failed storage alike; Unavailable is
            // what a proxy says of a connection that broke behind it, whenever it did.
            _ => Self::possibly_lost_by(status),
        }
    }

    /// Returns the outcome that a failure by HTTP means, whoever between us and the server it is
    /// from.
    pub(in crate::export) fn of_http_status(status: StatusCode, body: &str) -> Self {
        let is_page = status == StatusCode::BAD_REQUEST;
        if let Some(mismatch) = tls_mismatch::of_page(body).filter(|_| is_page) {
            return Self::not_stored(mismatch.to_string());
        }
        let shown: String = body.trim().chars().take(SHOWN_CHARACTERS).collect();
        let message = format!("HTTP {status}: {shown}");
        if is_page && tls_mismatch::wants_certificate(body) {
            let message = format!("the server wants a client certificate that it trusts: {message}");
            return Self::not_stored(message);
        }
        let (code, is_refused) = match status.as_u16() {
            400 | 422 => (Code::InvalidArgument, true),
            413 => (Code::ResourceExhausted, true),
            408 | 504 => (Code::DeadlineExceeded, false),
            // It was redirected, not authorized, throttled, or reached no server: somebody will put
            // it right.
            300..=498 | 501 | 503 => return Self::not_stored(message),
            _ => (Code::Unknown, false),
        };
        match is_refused {
            true => Self::Refused { code, message, divisible: true },
            false => Self::possibly_lost(code, message),
        }
    }

    fn refused(status: &Status, divisible: bool) -> Self {
        Self::Refused { code: status.code(), message: describe(status), divisible }
    }

    fn not_stored_by(status: &Status) -> Self {
        let message = format!("{:?}: {}", status.code(), describe(status));
        Self::not_stored(message).with_retry_after(retry_delay(status))
    }

    fn possibly_lost_by(status: &Status) -> Self {
        Self::possibly_lost(status.code(), describe(status)).with_retry_after(retry_delay(status))
    }
}

/// Returns true if somebody has answered by gRPC: neither is the connection broken, nor is it an
/// answer by HTTP.
pub(in crate::export) fn is_answer(status: &Status) -> bool {
    status.source().is_none() && http_status(status.message()).is_none()
}

/// The time after which the server wants to be asked again, by its `RetryInfo`, or a proxy that has
/// answered by HTTP: tonic makes the headers of such an answer metadata of its status.
pub(in crate::export) fn retry_delay(status: &Status) -> Option<Duration> {
    let by_grpc = status.get_details_retry_info().and_then(|info| info.retry_delay);
    by_grpc.or_else(|| retry_after::of_headers(status.metadata().as_ref()))
}

/// Describes a failure: what it means if that is clear, else the whole chain of causes: `transport
/// error` alone helps nobody.
pub(in crate::export) fn describe(status: &Status) -> String {
    if let Some(mismatch) = status.source().and_then(tls_mismatch::of_cause) {
        return mismatch.to_string();
    }
    let mut text = status.message().to_owned();
    for next in anyhow::Chain::new(status).skip(1).map(ToString::to_string) {
        if !text.ends_with(&next) {
            text = if text.is_empty() { next } else { format!("{text}: {next}") };
        }
    }
    text
}

/// Returns true if an error or one of its causes says that the request was never on the wire.
pub(in crate::export) fn was_never_processed(cause: &(dyn Error + 'static)) -> bool {
    // A server that doesn't take our certificate has read nothing behind it.
    let is_refused = matches!(tls_mismatch::of_cause(cause), Some(TlsMismatch::CertificateRefused(_)));
    is_refused
        || anyhow::Chain::new(cause).any(|error| {
            // The connection was gone before the request was on it.
            let is_canceled = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled);
            // RFC 9113 8.7: a refused stream has not been processed.
            let reason = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
            error.is::<ConnectError>() || is_canceled || reason == Some(h2::Reason::REFUSED_STREAM)
        })
}

/// The HTTP status of an answer that isn't gRPC, as tonic reports it: with a page of HTML in it, or
/// without.
fn http_status(message: &str) -> Option<u16> {
    let rest = ["receiving response with status: ", "HTTP status code "]
        .iter()
        .find_map(|before| message.split_once(before).map(|(_, rest)| rest))?;
    rest.get(..3)?.parse().ok()
}

/// Returns true if this is a server's text, in its library's words, for a message beyond its limit.
fn is_too_large(message: &str) -> bool {
    const TEXTS: &[&str] = &[
        // grpc-go `rpc_util.go`, C++, Python and Node.js: "received message larger than max (%d vs.
        // %d)"
        "larger than max",
        // grpc-java `MessageDeframer.java`: "gRPC message exceeds maximum size %d: %d"
        "exceeds maximum size",
        // grpc-dotnet: "Received message exceeds the maximum configured message size."
        "exceeds the maximum configured message size",
        // tonic `codec/decode.rs`: "Error, decoded message length too large: found %d bytes, the
        // limit is: %d bytes"
        "message length too large",
        // The same place, of a message that was compressed: "Error decompressing: size limit, of %d
        // bytes, exceeded while decompressing message"
        "exceeded while decompressing message",
    ];
    TEXTS.iter().any(|text| message.contains(text))
}

/// Answers of proxies that had nobody to pass the request to: Envoy's texts
/// (`source/common/http/utility.cc`, `source/common/router/router.cc`).
fn was_not_forwarded(message: &str) -> bool {
    const TEXTS: &[&str] = &[
        "no healthy upstream",
        "no upstream host",
        "reset reason: connection failure",
        "reset reason: remote connection failure",
        "reset reason: local connection failure",
        "reset reason: overflow",
    ];
    TEXTS.iter().any(|text| message.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum OutcomeKind {
        NotStored,
        Divided,
        Refused,
        Unknown,
    }

    fn kind(code: Code, message: &str) -> OutcomeKind {
        match PushOutcome::of(&Status::new(code, message)) {
            PushOutcome::NotStored { .. } => OutcomeKind::NotStored,
            PushOutcome::Refused { divisible: true, .. } => OutcomeKind::Divided,
            PushOutcome::Refused { .. } => OutcomeKind::Refused,
            PushOutcome::PossiblyLost { .. } => OutcomeKind::Unknown,
            PushOutcome::Stored => panic!("{code:?} is a failure"),
        }
    }

    #[test]
    fn answers_of_proxies_tell_whether_the_request_got_further() {
        assert_eq!(kind(Code::Unavailable, "no healthy upstream"), OutcomeKind::NotStored);
        assert_eq!(
            kind(Code::Unavailable, "upstream connect error, reset reason: connection failure"),
            OutcomeKind::NotStored
        );
        let ambiguous =
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination";
        assert_eq!(kind(Code::Unavailable, ambiguous), OutcomeKind::Unknown);
        assert_eq!(kind(Code::ResourceExhausted, "slow down"), OutcomeKind::NotStored);
        let too_large = "grpc: received message larger than max (70000000 vs. 67108864)";
        assert_eq!(kind(Code::ResourceExhausted, too_large), OutcomeKind::Divided);
    }
}
