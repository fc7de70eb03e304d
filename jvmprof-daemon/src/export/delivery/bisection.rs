//! Sending one request: the series that are refused are found by halving it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use tonic::Code;

use super::backend::Backend;
use crate::event_type::SamplesByEvent;
use crate::export::push::{PushOutcome, PushRequest};

/// Requests that may be refused one after the other, none being taken, before the rest is believed
/// to be refused as well: a server that wants nothing is not asked for each series, unless each has
/// a request of its own anyway.
const MAX_REFUSALS: usize = 64;
/// The same limit for failures that say nothing of the request, while the one among its series is
/// searched that causes them.
const MAX_FAILURES: usize = 8;

/// Treatment of failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailurePolicy {
    /// Send again what may have been stored.
    pub(super) send_again: bool,
    /// Divide a request also if it isn't refused: others are taken, so that something in it must be
    /// the reason.
    pub(super) divide: bool,
}

/// The result of sending a request, in samples of its event and requests.
#[derive(Debug, Default)]
pub(super) struct SendReport {
    pub(super) delivered: SamplesByEvent,
    pub(super) refused: SamplesByEvent,
    /// Not sent, because the server takes none that are so old.
    pub(super) too_old: SamplesByEvent,
    /// Sent, and nobody knows; not to be sent again.
    pub(super) possibly_lost: SamplesByEvent,
    /// To be sent again: when the server is back, or behind others.
    pub(super) to_retry: Vec<PushRequest>,
    /// The part of `to_retry` that may be stored already, in samples.
    pub(super) possibly_twice: SamplesByEvent,
    /// The reason why something is to be sent again, or possibly lost.
    pub(super) problem: Option<String>,
    /// The time that the server has asked for with it.
    pub(super) retry_after: Option<Duration>,
    pub(super) requests: u64,
    pub(super) sent_bytes: u64,
    pub(super) failed: u64,
    pub(super) divided: u64,
}

/// Sends a request, in parts if the server doesn't want it as a whole. `deadline`: resolves when
/// answers aren't waited for any more.
pub(super) async fn deliver(
    backend: &Backend,
    request: PushRequest,
    policy: FailurePolicy,
    mut deadline: Pin<&mut impl Future<Output = ()>>,
) -> SendReport {
    let mut report = SendReport::default();
    let mut parts = VecDeque::from([request]);
    let (mut refusals, mut failures, mut is_over, mut has_ended) = (0, 0, false, false);
    while let Some(mut part) = parts.pop_front() {
        if is_over {
            report.to_retry.push(part);
            continue;
        }
        parts.extend(backend.take_others(&mut part));
        let outcome = tokio::select! {
            outcome = backend.send(&part) => outcome,
            () = &mut deadline => {
                // It must not be waited for again.
                has_ended = true;
                PushOutcome::possibly_lost(Code::DeadlineExceeded, "the daemon ended before there was an answer".to_owned())
            }
        };
        report.requests += 1;
        report.sent_bytes += part.bytes() as u64;
        report.failed += u64::from(outcome != PushOutcome::Stored);
        let problem = match outcome {
            PushOutcome::Stored => {
                (refusals, failures) = (0, 0);
                report.delivered += part.samples_by_event();
                continue;
            }
            PushOutcome::Refused { divisible, .. } => {
                refusals += 1;
                let samples = part.samples_by_event();
                let divided = divisible && refusals < MAX_REFUSALS;
                match if divided { part.split_series() } else { None } {
                    Some(halves) => {
                        report.divided += 1;
                        parts.extend(halves);
                    }
                    None => report.refused += samples,
                }
                continue;
            }
            PushOutcome::PossiblyLost { code, message, retry_after } if !policy.send_again => {
                report.problem = Some(format!("{code:?}: {message}"));
                report.retry_after = retry_after;
                report.possibly_lost += part.samples_by_event();
                is_over = true;
                continue;
            }
            PushOutcome::PossiblyLost { code, message, retry_after } => {
                is_over = retry_after.is_some();
                report.retry_after = retry_after;
                report.possibly_twice += part.samples_by_event();
                format!("{code:?}: {message}")
            }
            PushOutcome::NotStored { message, retry_after } => {
                // Nothing is wrong with the request: its parts would be asked to wait as well.
                is_over = retry_after.is_some();
                report.retry_after = retry_after;
                message
            }
        };
        report.problem = Some(problem);
        failures += 1;
        is_over |= has_ended || !policy.divide || failures >= MAX_FAILURES;
        if is_over || part.series() == 1 {
            report.to_retry.push(part);
        } else {
            report.divided += 1;
            parts.extend(part.split_series().into_iter().flatten());
        }
    }
    report
}

impl SendReport {
    /// Samples that are to be sent again.
    pub(super) fn retry_samples(&self) -> SamplesByEvent {
        self.to_retry.iter().map(PushRequest::samples_by_event).sum()
    }
}
