//! Sending one request: the series that are refused are found by halving it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::backend::Backend;
use super::refused_series::{PAUSE, RefusedSeries};
use crate::event_type::SamplesByEvent;
use crate::export::push::{PushOutcome, PushRequest};

/// Refusals, nothing being stored, from which on halves are divided at once instead of after all
/// others: where bad series are everywhere, a series alone says more than a smaller half.
const REFUSALS_BEFORE_DEPTH_FIRST: usize = 32;
/// Parts that may be refused, nothing of the request being stored, before the rest is believed to
/// be refused as well: a server that wants nothing is not asked for each series, unless each has a
/// request of its own anyway. Of one that has stored a part of the last such request, each is.
const MAX_REFUSALS: usize = 96;
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
    /// Remember the series that are refused: not of a request that waited, whose age may be the
    /// reason.
    pub(super) remember_refusals: bool,
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
    /// Series that weren't sent, because the server has refused them again and again: `refused`.
    pub(super) withheld_series: u64,
}

/// Sends a request, in parts if the server doesn't want it as a whole. `refused_series`: what the
/// server has refused before. `deadline`: resolves when answers aren't waited for any more.
pub(super) async fn deliver(
    backend: &Backend,
    refused_series: &RefusedSeries,
    request: PushRequest,
    policy: FailurePolicy,
    mut deadline: Pin<&mut impl Future<Output = ()>>,
) -> SendReport {
    let mut report = SendReport::default();
    let mut parts = VecDeque::from([request]);
    let takes_others = refused_series.takes_others();
    let (mut refusals, mut failures, mut is_over, mut has_ended) = (0, 0, false, false);
    while let Some(mut part) = parts.pop_front() {
        if is_over {
            report.to_retry.push(part);
            continue;
        }
        parts.extend(refused_series.take_suspects(&mut part));
        parts.extend(backend.take_others(&mut part));
        if refused_series.is_paused(&part, Instant::now()) {
            report.refused += part.samples_by_event();
            report.withheld_series += 1;
            continue;
        }
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
                failures = 0;
                report.delivered += part.samples_by_event();
                refused_series.note_stored(&part);
                continue;
            }
            PushOutcome::Refused { code, divisible, .. } => {
                refusals += 1;
                let takes_some = takes_others || !report.delivered.is_none();
                if policy.remember_refusals && code == Code::InvalidArgument {
                    note_refused(refused_series, backend, &part);
                }
                let samples = part.samples_by_event();
                let divided = divisible && (takes_some || refusals < MAX_REFUSALS);
                match if divided { part.split_series() } else { None } {
                    Some([first, second]) => {
                        report.divided += 1;
                        if takes_some || refusals < REFUSALS_BEFORE_DEPTH_FIRST {
                            parts.extend([first, second]);
                        } else {
                            parts.push_front(second);
                            parts.push_front(first);
                        }
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
    if refusals > 0 {
        refused_series.note_takes_others(!report.delivered.is_none());
    }
    report
}

/// Notes that a part was refused for its labels, and logs what follows.
fn note_refused(refused_series: &RefusedSeries, backend: &Backend, part: &PushRequest) {
    if refused_series.note_refused(part, Instant::now()) {
        tracing::error!(
            address = backend.address(),
            labels = part.only_labels(),
            pause = ?PAUSE,
            "the server refuses this series again and again: until it is tried again, its samples are lost"
        );
    }
}

impl SendReport {
    /// Samples that are to be sent again.
    pub(super) fn retry_samples(&self) -> SamplesByEvent {
        self.to_retry.iter().map(PushRequest::samples_by_event).sum()
    }
}
