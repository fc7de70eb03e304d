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
    let mut bisection = Bisection::new(backend, refused_series, request, policy);
    while let Some(part) = bisection.next_part() {
        let outcome = tokio::select! {
            outcome = backend.send(&part) => outcome,
            () = &mut deadline => {
                // It must not be waited for again.
                bisection.has_ended = true;
                PushOutcome::possibly_lost(Code::DeadlineExceeded, "the daemon ended before there was an answer".to_owned())
            }
        };
        bisection.record(part, outcome);
    }
    bisection.finish()
}

/// A request on its way, in parts.
struct Bisection<'a> {
    backend: &'a Backend,
    refused_series: &'a RefusedSeries,
    policy: FailurePolicy,
    /// The parts that are still to be sent, in this order.
    parts: VecDeque<PushRequest>,
    report: SendReport,
    /// True if the server is known to take some series and not others.
    takes_others: bool,
    refusals: usize,
    /// Failures since something was stored.
    failures: usize,
    /// True if the remaining parts aren't sent now.
    is_over: bool,
    /// True if the deadline has passed.
    has_ended: bool,
}

impl<'a> Bisection<'a> {
    fn new(
        backend: &'a Backend,
        refused_series: &'a RefusedSeries,
        request: PushRequest,
        policy: FailurePolicy,
    ) -> Self {
        Self {
            backend,
            refused_series,
            policy,
            parts: VecDeque::from([request]),
            report: SendReport::default(),
            takes_others: refused_series.takes_others(),
            refusals: 0,
            failures: 0,
            is_over: false,
            has_ended: false,
        }
    }

    /// Returns the next part that is to be sent. Series that were refused again and again are
    /// passed over.
    fn next_part(&mut self) -> Option<PushRequest> {
        while !self.is_over {
            let mut part = self.parts.pop_front()?;
            self.parts.extend(self.refused_series.take_suspects(&mut part));
            self.parts.extend(self.backend.take_others(&mut part));
            if !self.refused_series.is_paused(&part, Instant::now()) {
                return Some(part);
            }
            self.report.refused += part.samples_by_event();
            self.report.withheld_series += 1;
        }
        None
    }

    /// Records the outcome of sending a part, and divides it where that may help.
    fn record(&mut self, part: PushRequest, outcome: PushOutcome) {
        self.report.requests += 1;
        self.report.sent_bytes += part.bytes() as u64;
        self.report.failed += u64::from(outcome != PushOutcome::Stored);
        match outcome {
            PushOutcome::Stored => {
                self.failures = 0;
                self.report.delivered += part.samples_by_event();
                self.refused_series.note_stored(&part);
            }
            PushOutcome::Refused { code, divisible, .. } => self.record_refusal(part, code, divisible),
            PushOutcome::PossiblyLost { code, message, retry_after } => {
                let problem = format!("{code:?}: {message}");
                if self.policy.send_again {
                    self.report.possibly_twice += part.samples_by_event();
                    self.record_failure(part, problem, retry_after);
                } else {
                    self.report.problem = Some(problem);
                    self.report.retry_after = retry_after;
                    self.report.possibly_lost += part.samples_by_event();
                    self.is_over = true;
                }
            }
            PushOutcome::NotStored { message, retry_after } => {
                self.record_failure(part, message, retry_after);
            }
        }
    }

    /// Divides a part that was refused, if the server may take a half of it.
    fn record_refusal(&mut self, part: PushRequest, code: Code, divisible: bool) {
        self.refusals += 1;
        let takes_some = self.takes_others || !self.report.delivered.is_none();
        if self.policy.remember_refusals && code == Code::InvalidArgument {
            note_refused(self.refused_series, self.backend, &part);
        }
        let samples = part.samples_by_event();
        let is_divided = divisible && (takes_some || self.refusals < MAX_REFUSALS);
        let halves = if is_divided { part.split_series() } else { None };
        let Some([first, second]) = halves else {
            self.report.refused += samples;
            return;
        };
        self.report.divided += 1;
        if takes_some || self.refusals < REFUSALS_BEFORE_DEPTH_FIRST {
            self.parts.extend([first, second]);
        } else {
            self.parts.push_front(second);
            self.parts.push_front(first);
        }
    }

    /// Divides a part after a failure that says nothing of it, where something in the request may
    /// be the reason; else all that is left is to be sent again.
    fn record_failure(&mut self, part: PushRequest, problem: String, retry_after: Option<Duration>) {
        self.report.problem = Some(problem);
        self.report.retry_after = retry_after;
        self.failures += 1;
        // Where the server says when to ask again, nothing is wrong with the request: its parts
        // would be asked to wait as well.
        self.is_over =
            retry_after.is_some() || self.has_ended || !self.policy.divide || self.failures >= MAX_FAILURES;
        if self.is_over || part.series() == 1 {
            self.report.to_retry.push(part);
        } else {
            self.report.divided += 1;
            self.parts.extend(part.split_series().into_iter().flatten());
        }
    }

    /// Returns the report, with the remaining parts among those to be sent again.
    fn finish(mut self) -> SendReport {
        self.report.to_retry.extend(self.parts);
        if self.refusals > 0 {
            self.refused_series.note_takes_others(!self.report.delivered.is_none());
        }
        self.report
    }
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
