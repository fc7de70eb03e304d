//! What became of a request: the part that decides between sending again and counting as lost.

use std::error::Error;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};

use super::Request;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    /// The server has it and doesn't want it: sending it again would end the same way.
    Refused {
        code: Code,
        message: String,
    },
    /// It was sent, and nobody knows whether it was stored. Sending it again might count it twice.
    PossiblyLost {
        code: Code,
        message: String,
    },
    /// It wasn't stored for certain, and might be later: nobody there, or no room at the moment.
    Unreachable {
        message: String,
    },
}

/// A request and what became of it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub series: usize,
    /// Number of samples.
    pub samples: u64,
    /// Encoded size of the request.
    pub bytes: usize,
    /// How often it was tried; 0 if it wasn't, because the one before it was unreachable.
    pub attempts: u32,
    pub outcome: Outcome,
}

impl Sent {
    pub(super) fn of(request: &Request, outcome: Outcome, attempts: u32) -> Self {
        let Request { series, samples, .. } = *request;
        Self { series, samples, bytes: request.bytes(), attempts, outcome }
    }

    pub(super) fn log(&self, address: &str) {
        let Self { series, samples, bytes, attempts, outcome } = self;
        match outcome {
            Outcome::Stored => tracing::debug!(address, series, samples, bytes, attempts, "profiles pushed"),
            Outcome::Refused { code, message } => {
                tracing::error!(address, series, samples, ?code, message, "server refused profiles");
            }
            Outcome::PossiblyLost { code, message } => {
                tracing::error!(
                    address,
                    series,
                    samples,
                    ?code,
                    message,
                    "push broke off, profiles may be lost"
                );
            }
            Outcome::Unreachable { message } => {
                tracing::error!(address, series, samples, attempts, message, "profiles can't be pushed");
            }
        }
    }
}

/// What became of a batch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub requests: Vec<Sent>,
}

impl Report {
    pub(super) fn of_failure(samples: u64, message: String) -> Self {
        tracing::error!(samples, message, "profiles can't be pushed");
        let outcome = Outcome::Unreachable { message };
        Self { requests: vec![Sent { series: 0, samples, bytes: 0, attempts: 0, outcome }] }
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for sent in &self.requests {
            let samples = match sent.outcome {
                Outcome::Stored => &mut totals.stored_samples,
                Outcome::Refused { .. } => &mut totals.refused_samples,
                Outcome::PossiblyLost { .. } => &mut totals.possibly_lost_samples,
                Outcome::Unreachable { .. } => &mut totals.unreachable_samples,
            };
            *samples += sent.samples;
            totals.requests += 1;
            totals.retries += u64::from(sent.attempts.saturating_sub(1));
            totals.bytes += sent.bytes as u64;
        }
        totals
    }

    /// Whether everything was stored.
    pub fn is_stored(&self) -> bool {
        self.requests.iter().all(|sent| sent.outcome == Outcome::Stored)
    }
}

/// Numbers for a counter of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub requests: u64,
    pub retries: u64,
    pub bytes: u64,
    pub stored_samples: u64,
    pub refused_samples: u64,
    pub possibly_lost_samples: u64,
    pub unreachable_samples: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.retries += other.retries;
        self.bytes += other.bytes;
        self.stored_samples += other.stored_samples;
        self.refused_samples += other.refused_samples;
        self.possibly_lost_samples += other.possibly_lost_samples;
        self.unreachable_samples += other.unreachable_samples;
    }
}

/// One attempt that failed.
#[derive(Debug)]
pub(super) struct Failure {
    kind: Kind,
    code: Code,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The server can't have stored it.
    NotStored,
    Refused,
    Unknown,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl Failure {
    /// Something on this side that kept the request from being sent.
    pub(super) fn not_sent(error: &dyn Error) -> Self {
        Self { kind: Kind::NotStored, code: Code::Unavailable, message: error.to_string() }
    }

    pub(super) fn timed_out(after: Duration) -> Self {
        let message = format!("no answer after {after:?}");
        Self { kind: Kind::Unknown, code: Code::DeadlineExceeded, message }
    }

    pub(super) fn from_status(status: &Status) -> Self {
        let kind = match status.source() {
            // A status with a cause was made on this side, out of a broken connection.
            Some(cause) => {
                if was_never_processed(cause) {
                    Kind::NotStored
                } else {
                    Kind::Unknown
                }
            }
            None => kind_of_answer(status),
        };
        Self { kind, code: status.code(), message: describe(status) }
    }

    pub(super) fn may_be_sent_again(&self) -> bool {
        self.kind == Kind::NotStored
    }

    pub(super) fn into_outcome(self) -> Outcome {
        let Self { kind, code, message } = self;
        match kind {
            Kind::NotStored => Outcome::Unreachable { message: format!("{code:?}: {message}") },
            Kind::Refused => Outcome::Refused { code, message },
            Kind::Unknown => Outcome::PossiblyLost { code, message },
        }
    }
}

/// The whole chain of causes: `transport error` alone helps nobody.
fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = if text.is_empty() { next } else { format!("{text}: {next}") };
        }
        cause = error.source();
    }
    text
}

fn was_never_processed(cause: &(dyn Error + 'static)) -> bool {
    let mut next = Some(cause);
    while let Some(error) = next {
        // The connection was gone before the request was on it.
        let is_canceled = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled);
        // RFC 9113 8.7: a refused stream has not been processed.
        let reason = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
        if error.is::<ConnectError>() || is_canceled || reason == Some(h2::Reason::REFUSED_STREAM) {
            return true;
        }
        next = error.source();
    }
    false
}

fn kind_of_answer(status: &Status) -> Kind {
    match status.code() {
        Code::ResourceExhausted if is_too_large(status.message()) => Kind::Refused,
        Code::ResourceExhausted => Kind::NotStored,
        Code::Unavailable if was_not_forwarded(status.message()) => Kind::NotStored,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Kind::Refused,
        // Unknown is what Parca says of bad gzip and of a failed storage alike; Unavailable is what a proxy says of a
        // connection that broke behind it, whenever it did.
        _ => Kind::Unknown,
    }
}

/// grpc-go `rpc_util.go`: "grpc: received message larger than max (%d vs. %d)".
fn is_too_large(message: &str) -> bool {
    message.contains("larger than max")
}

/// Answers of proxies that had nobody to pass the request to: Envoy's texts (`source/common/http/utility.cc`,
/// `source/common/router/router.cc`), and tonic's for a plain HTTP 429.
fn was_not_forwarded(message: &str) -> bool {
    const TEXTS: &[&str] = &[
        "no healthy upstream",
        "no upstream host",
        "reset reason: connection failure",
        "reset reason: remote connection failure",
        "reset reason: local connection failure",
        "reset reason: overflow",
        "HTTP status code 429",
    ];
    TEXTS.iter().any(|text| message.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, message: &str) -> Kind {
        Failure::from_status(&Status::new(code, message)).kind
    }

    #[test]
    fn only_answers_that_rule_storing_out_are_sent_again() {
        assert_eq!(kind(Code::ResourceExhausted, "slow down"), Kind::NotStored);
        assert_eq!(kind(Code::Unavailable, "no healthy upstream"), Kind::NotStored);
        assert_eq!(
            kind(Code::Unavailable, "upstream connect error, reset reason: connection failure"),
            Kind::NotStored
        );
        let ambiguous =
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination";
        assert_eq!(kind(Code::Unavailable, ambiguous), Kind::Unknown);
        for code in [
            Code::Unknown,
            Code::DeadlineExceeded,
            Code::Cancelled,
            Code::Internal,
            Code::Aborted,
            Code::DataLoss,
        ] {
            assert_eq!(kind(code, ""), Kind::Unknown, "{code:?}");
        }
        for code in
            [Code::InvalidArgument, Code::Unauthenticated, Code::PermissionDenied, Code::Unimplemented]
        {
            assert_eq!(kind(code, ""), Kind::Refused, "{code:?}");
        }
        let too_large = "grpc: received message larger than max (70000000 vs. 67108864)";
        assert_eq!(kind(Code::ResourceExhausted, too_large), Kind::Refused);
    }

    #[test]
    fn samples_are_counted_under_what_became_of_them() {
        let sent = |samples, attempts, outcome| Sent { series: 1, samples, bytes: 10, attempts, outcome };
        let (code, message) = (Code::Unknown, String::new());
        let report = Report {
            requests: vec![
                sent(1, 1, Outcome::Stored),
                sent(2, 3, Outcome::Refused { code, message: message.clone() }),
                sent(4, 1, Outcome::PossiblyLost { code, message: message.clone() }),
                sent(8, 0, Outcome::Unreachable { message }),
            ],
        };
        let mut totals = report.totals();
        totals += report.totals();
        assert_eq!(
            totals,
            Totals {
                requests: 8,
                retries: 4,
                bytes: 80,
                stored_samples: 2,
                refused_samples: 4,
                possibly_lost_samples: 8,
                unreachable_samples: 16,
            }
        );
        assert!(!report.is_stored());
    }
}
