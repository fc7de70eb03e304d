//! Sending one request: the series that are refused are found by halving it.

use std::collections::VecDeque;
use std::pin::Pin;

use tonic::Code;

use crate::export::parca::{ParcaClient, PushOutcome, PushRequest};

/// Requests that may be refused one after the other, none being taken, before the rest is believed
/// to be refused as well: a server that wants nothing is not asked for each series.
const REFUSALS: usize = 64;
/// The same limit for failures that say nothing of the request, while the one among its series is
/// searched that causes them.
const FAILURES: usize = 8;

/// Treatment of failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailurePolicy {
    /// Send again what may have been stored.
    pub(super) send_again: bool,
    /// Divide a request also if it isn't refused: others are taken, so that something in it must be
    /// the reason.
    pub(super) divide: bool,
}

/// The result of sending a request, in samples and requests.
#[derive(Debug, Default)]
pub(super) struct SendReport {
    pub(super) delivered: u64,
    pub(super) refused: u64,
    /// Sent, and nobody knows; not to be sent again.
    pub(super) possibly_lost: u64,
    /// To be sent again: when the server is back, or behind others.
    pub(super) again: Vec<PushRequest>,
    /// The part of `again` that may be stored already, in samples.
    pub(super) possibly_twice: u64,
    /// The reason why something is to be sent again, or possibly lost.
    pub(super) problem: Option<String>,
    pub(super) requests: u64,
    pub(super) sent_bytes: u64,
    pub(super) failed: u64,
    pub(super) divided: u64,
}

/// Sends a request, in parts if the server doesn't want it as a whole. `deadline`: resolves when
/// answers aren't waited for any more.
pub(super) async fn deliver(
    client: &ParcaClient,
    request: PushRequest,
    policy: FailurePolicy,
    mut deadline: Pin<&mut impl Future<Output = ()>>,
) -> SendReport {
    let mut verdict = SendReport::default();
    let mut parts = VecDeque::from([request]);
    let (mut refusals, mut failures, mut is_over) = (0, 0, false);
    while let Some(part) = parts.pop_front() {
        if is_over {
            verdict.again.push(part);
            continue;
        }
        let outcome = tokio::select! {
            outcome = client.send(&part) => outcome,
            () = &mut deadline => PushOutcome::PossiblyLost {
                code: Code::DeadlineExceeded,
                message: "the daemon ended before there was an answer".to_owned(),
            },
        };
        verdict.requests += 1;
        verdict.sent_bytes += part.bytes() as u64;
        verdict.failed += u64::from(outcome != PushOutcome::Stored);
        let problem = match outcome {
            PushOutcome::Stored => {
                (refusals, failures) = (0, 0);
                verdict.delivered += part.samples;
                continue;
            }
            PushOutcome::Refused { divisible, .. } => {
                refusals += 1;
                let samples = part.samples;
                let divided = divisible && refusals < REFUSALS;
                match if divided { part.halves() } else { None } {
                    Some(halves) => {
                        verdict.divided += 1;
                        parts.extend(halves);
                    }
                    None => verdict.refused += samples,
                }
                continue;
            }
            PushOutcome::PossiblyLost { code, message } if !policy.send_again => {
                verdict.problem = Some(format!("{code:?}: {message}"));
                verdict.possibly_lost += part.samples;
                is_over = true;
                continue;
            }
            PushOutcome::PossiblyLost { code, message } => {
                verdict.possibly_twice += part.samples;
                format!("{code:?}: {message}")
            }
            PushOutcome::NotStored { message } => message,
        };
        verdict.problem = Some(problem);
        failures += 1;
        is_over = !policy.divide || failures >= FAILURES;
        if is_over || part.series() == 1 {
            verdict.again.push(part);
        } else {
            verdict.divided += 1;
            parts.extend(part.halves().into_iter().flatten());
        }
    }
    verdict
}

impl SendReport {
    /// Samples that are to be sent again.
    pub(super) fn again(&self) -> u64 {
        self.again.iter().map(|request| request.samples).sum()
    }
}
