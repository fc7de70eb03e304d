//! One request on its way: what is refused is found by halving.

use std::collections::VecDeque;
use std::pin::Pin;

use tonic::Code;

use crate::export::parca::{Outcome, ParcaClient, Request};

/// Requests that may be refused one after the other, none being taken, before the rest is believed to be refused as well: a
/// server that wants nothing is not asked for each series.
const REFUSALS: usize = 64;

/// What became of a request's samples.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) delivered: u64,
    pub(super) refused: u64,
    /// Sent, and nobody knows; not to be sent again.
    pub(super) possibly_lost: u64,
    /// To be sent again, when the server is back.
    pub(super) again: Vec<Request>,
    /// The part of `again` that may be stored already, in samples.
    pub(super) possibly_twice: u64,
    /// Why it makes no sense to send anything at the moment.
    pub(super) problem: Option<String>,
    pub(super) requests: u64,
    pub(super) sent_bytes: u64,
    pub(super) failed: u64,
    pub(super) divided: u64,
}

/// Sends a request, in parts if the server doesn't want it as a whole. `send_again`: what to do with what may have been
/// stored. `deadline`: resolves when answers aren't waited for any more.
pub(super) async fn deliver(
    client: &ParcaClient,
    request: Request,
    send_again: bool,
    mut deadline: Pin<&mut impl Future<Output = ()>>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut parts = VecDeque::from([request]);
    let mut refusals = 0;
    while let Some(part) = parts.pop_front() {
        if verdict.problem.is_some() {
            verdict.again.push(part);
            continue;
        }
        let outcome = tokio::select! {
            outcome = client.send(&part) => outcome,
            () = &mut deadline => Outcome::PossiblyLost {
                code: Code::DeadlineExceeded,
                message: "the daemon ended before there was an answer".to_owned(),
            },
        };
        verdict.requests += 1;
        verdict.sent_bytes += part.bytes() as u64;
        verdict.failed += u64::from(outcome != Outcome::Stored);
        match outcome {
            Outcome::Stored => {
                refusals = 0;
                verdict.delivered += part.samples;
            }
            Outcome::Refused { divisible, .. } => {
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
            }
            Outcome::PossiblyLost { code, message } => {
                verdict.problem = Some(format!("{code:?}: {message}"));
                if send_again {
                    verdict.possibly_twice += part.samples;
                    verdict.again.push(part);
                } else {
                    verdict.possibly_lost += part.samples;
                }
            }
            Outcome::NotStored { message } => {
                verdict.problem = Some(message);
                verdict.again.push(part);
            }
        }
    }
    verdict
}
