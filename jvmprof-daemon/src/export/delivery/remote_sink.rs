//! A sink behind a network: one task encodes, one sends.
//!
//! Fresh requests go first. When the server doesn't take one, nothing is sent for a while, and what
//! comes in meanwhile goes to the spool. Then an empty request asks whether the server is back,
//! because an answer that doesn't come would cost samples otherwise. The spool is sent oldest
//! first, at a bounded rate beside what is fresh.
//!
//! A request that fails although the server has just answered holds up no other: it waits behind
//! them, is divided until what isn't taken stands alone, and is refused in the end.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backend::Backend;
use super::bisection::{self, FailurePolicy, SendReport};
use super::options::DeliveryOptions;
use super::sink_queue::{QueueState, SinkQueue, pause_after};
use crate::event_type::SamplesByEvent;
use crate::export::parca::{PushOutcome, PushRequest};
use crate::export::spool::RecordInFlight;
use crate::profile::model::Batch;

/// Encodes batches, one after the other, until no more come.
pub(super) async fn encode(
    sink_queue: Arc<SinkQueue>,
    backend: Backend,
    mut batches: mpsc::Receiver<Arc<Batch>>,
) {
    while let Some(batch) = batches.recv().await {
        let (event, samples) = (batch.event, batch.samples_by_event());
        let backend = backend.clone();
        let made = tokio::task::spawn_blocking(move || backend.encode(&batch)).await;
        match made.map_err(std::io::Error::other).and_then(|made| made) {
            Ok(requests) => sink_queue.enqueue(requests).await,
            Err(error) => {
                let mut state = sink_queue.state();
                state.counts.waiting -= samples;
                state.counts.losses.unencodable += samples;
                drop(state);
                let (event, samples) = (event.as_str(), samples.get(event));
                tracing::error!(sink = sink_queue.name, event, samples, %error, "samples can't be encoded and are lost");
            }
        }
        sink_queue.save_ledger().await;
    }
    sink_queue.state().is_complete = true;
    sink_queue.changed.notify_one();
}

/// Sends until no more comes, and at the end puts the rest into the spool.
pub(super) async fn send(sink_queue: Arc<SinkQueue>, backend: Backend) {
    let backoff = backoff(&sink_queue.options);
    let now = Instant::now();
    // What an earlier daemon left isn't put at stake for a server of which nothing is known yet.
    let retry_at = (!sink_queue.state().counts.spooled.is_none()).then_some(now);
    let mut sender = Sender {
        sink_queue,
        backend,
        backoff,
        next_spooled: now,
        next_retry: now,
        retry_at,
        probe_answered: false,
        delivered_since_failure: false,
    };
    sender.run().await;
}

#[derive(Debug)]
struct Sender {
    sink_queue: Arc<SinkQueue>,
    backend: Backend,
    backoff: ExponentialBackoff,
    /// The time from which the spool may be sent.
    next_spooled: Instant,
    /// The time from which a request may be retried that wasn't taken while others were.
    next_retry: Instant,
    /// The time at which a server that doesn't take anything is probed again.
    retry_at: Option<Instant>,
    /// The last thing was an answer to an empty request.
    probe_answered: bool,
    /// Something was delivered since the last failure.
    delivered_since_failure: bool,
}

/// A series that failed so often by itself, others being taken each time in between, is refused.
/// With the longest delay between two tries that takes five minutes.
const MAX_TRIES: u32 = 10;

/// Longest time that a server's `Retry-After` is kept to: a day there may be a mistake.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The next thing to do.
enum SenderAction {
    /// From memory.
    Send(PushRequest),
    /// From the spool; of those that were tried, or of the others.
    Spooled {
        is_retry: bool,
    },
    Probe,
    Wait(Option<Instant>),
    End,
}

fn backoff(options: &DeliveryOptions) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(options.first_delay)
        .with_max_delay(options.max_delay)
        .without_max_times()
        .build()
}

impl Sender {
    async fn run(&mut self) {
        loop {
            match self.next_action() {
                SenderAction::Send(request) => self.send(request).await,
                SenderAction::Spooled { is_retry } => self.send_spooled(is_retry).await,
                SenderAction::Probe => self.probe().await,
                SenderAction::Wait(until) => self.wait(until).await,
                SenderAction::End => break,
            }
        }
        // What is being encoded now comes too late to be sent, not to be kept.
        while !self.sink_queue.state().is_complete {
            self.sink_queue.changed.notified().await;
        }
        self.sink_queue.spool_outbox().await;
        self.discard_outbox();
        self.sink_queue.save_ledger().await;
    }

    fn next_action(&self) -> SenderAction {
        let now = Instant::now();
        let mut state = self.sink_queue.state();
        let is_ending = self.sink_queue.closing.borrow().is_some();
        let is_over = self.sink_queue.closing.borrow().is_some_and(|until| now >= until);
        if is_over
            || (is_ending
                && state.is_complete
                && (state.outbox.is_empty() || state.is_down && self.sink_queue.disk.is_some()))
        {
            return SenderAction::End;
        }
        let has_spooled = state.has_spooled() && !is_ending;
        let has_retries = state.has_retries() && !is_ending;
        match self.retry_at {
            Some(until) if now < until => return SenderAction::Wait(Some(until)),
            Some(_) if has_spooled || has_retries || !state.outbox.is_empty() => return SenderAction::Probe,
            Some(_) => return SenderAction::Wait(None),
            None => {}
        }
        if let Some(request) = state.pop_fresh() {
            return in_flight(&mut state, request);
        }
        if has_spooled && now >= self.next_spooled {
            return SenderAction::Spooled { is_retry: false };
        }
        if has_retries && now >= self.next_retry {
            return match state.pop_retry() {
                Some(request) => in_flight(&mut state, request),
                None => SenderAction::Spooled { is_retry: true },
            };
        }
        let spooled = has_spooled.then_some(self.next_spooled);
        SenderAction::Wait(spooled.into_iter().chain(has_retries.then_some(self.next_retry)).min())
    }

    async fn wait(&self, until: Option<Instant>) {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut closing = self.sink_queue.closing.subscribe();
        let is_closing = closing.borrow_and_update().is_some();
        tokio::select! {
            () = self.sink_queue.changed.notified() => {}
            () = tokio::time::sleep_until(until.unwrap_or(far)) => {}
            _ = closing.changed(), if !is_closing => {}
            () = self.sink_queue.deadline(), if is_closing => {}
        }
    }

    async fn send(&mut self, request: PushRequest) {
        let samples = request.samples_by_event();
        self.sink_queue.save_ledger().await;
        let report = self.attempt(request).await;
        {
            let mut state = self.sink_queue.state();
            let counts = &mut state.counts;
            counts.in_flight -= samples;
            counts.waiting -= samples - report.retry_samples();
            counts.delivered += report.delivered;
            counts.losses.refused += report.refused;
            counts.losses.too_old += report.too_old;
            counts.losses.possibly_lost += report.possibly_lost;
        }
        if !report.to_retry.is_empty() {
            self.sink_queue.requeue(report.to_retry).await;
            if self.retry_at.is_some() {
                self.sink_queue.spool_outbox().await;
            }
        }
        self.sink_queue.save_ledger().await;
    }

    async fn send_spooled(&mut self, is_retry: bool) {
        let mut taken = match self.sink_queue.take_spooled(is_retry).await {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(sink = self.sink_queue.name, %error, "the spool can't be read, it will be tried again");
                self.next_spooled = Instant::now() + self.sink_queue.options.max_delay;
                return;
            }
        };
        let RecordInFlight { created, event, samples, .. } = taken;
        let Some(mut request) = PushRequest::from_bytes(&taken.body, created, event, samples) else {
            tracing::error!(
                sink = self.sink_queue.name,
                event = event.as_str(),
                samples,
                "a record of the spool makes no sense"
            );
            let samples = taken.samples_by_event();
            return self
                .sink_queue
                .record_result(taken, Some(0), move |counts| counts.losses.unencodable += samples)
                .await;
        };
        request.tries = taken.tries;
        let (begun, bytes) = (Instant::now(), request.bytes());
        let report = self.attempt(request).await;
        if let (Some(disk), true) = (&self.sink_queue.disk, report.requests > 0) {
            self.next_spooled = begun + pause_after(bytes, &disk.plan);
        }
        match &report.to_retry[..] {
            [whole] if whole.samples == taken.samples => {
                taken.tries = whole.tries;
                self.sink_queue.record_result(taken, None, |_| {}).await;
            }
            _ => self.record_result(taken, report).await,
        }
    }

    async fn record_result(&self, taken: RecordInFlight, report: SendReport) {
        let to_retry = report.retry_samples();
        let SendReport { delivered, refused, too_old, possibly_lost, .. } = report;
        let count = move |counts: &mut super::DeliveryCounts| {
            counts.delivered += delivered;
            counts.delivered_late += delivered;
            counts.losses.refused += refused;
            counts.losses.too_old += too_old;
            counts.losses.possibly_lost += possibly_lost;
            counts.waiting += to_retry;
        };
        self.sink_queue.record_result(taken, Some(delivered.total()), count).await;
        // A part of it, behind the others: the next ones needn't wait for it.
        self.sink_queue.requeue(report.to_retry).await;
    }

    /// Sends a request, and finds out whether it is the server's fault or its own if it fails.
    async fn attempt(&mut self, request: PushRequest) -> SendReport {
        if self.is_too_old(&request) {
            return SendReport { too_old: request.samples_by_event(), ..SendReport::default() };
        }
        let tries = request.tries;
        let policy = FailurePolicy {
            send_again: self.sink_queue.options.send_again,
            divide: tries > 0 && self.delivered_since_failure,
        };
        let mut report = {
            let deadline = pin!(self.sink_queue.deadline());
            bisection::deliver(&self.backend, request, policy, deadline).await
        };
        {
            let mut state = self.sink_queue.state();
            let counts = &mut state.counts;
            counts.requests += report.requests;
            counts.sent_bytes += report.sent_bytes;
            counts.failed_requests += report.failed;
            counts.divided_requests += report.divided;
            counts.possibly_twice += report.possibly_twice;
        }
        let is_request_failure = (self.probe_answered || tries > 0) && report.possibly_lost.is_none();
        self.probe_answered = false;
        let has_delivered = !report.delivered.is_none();
        self.delivered_since_failure |= has_delivered;
        if has_delivered {
            self.backoff = backoff(&self.sink_queue.options);
        }
        match report.problem.clone() {
            // A server that asks for time says that the reason is its own.
            Some(problem) if is_request_failure && report.retry_after.is_none() => {
                self.schedule_retry(&problem, &mut report);
            }
            problem => self.update_backoff(problem, report.retry_after),
        }
        report
    }

    /// Returns true if the server wouldn't take a request any more; that is logged.
    fn is_too_old(&self, request: &PushRequest) -> bool {
        let Some(max_age) = self.backend.max_age() else { return false };
        // The server compares with its own clock, and knows nothing of one that was set.
        let is_too_old = SystemTime::now().duration_since(request.created).is_ok_and(|age| age > max_age);
        if is_too_old {
            tracing::error!(
                sink = self.sink_queue.name,
                event = request.event.as_str(),
                samples = request.samples,
                ?max_age,
                "the server takes no profiles that are so old: they are lost"
            );
        }
        is_too_old
    }

    /// The server answers, and doesn't take this: it is sent again after the others, which needn't
    /// wait for it, and is refused after too many tries.
    fn schedule_retry(&mut self, problem: &str, report: &mut SendReport) {
        let delivered_since_failure = std::mem::take(&mut self.delivered_since_failure);
        for request in &mut report.to_retry {
            request.tries = (request.tries + u32::from(delivered_since_failure)).max(1);
        }
        let is_exhausted = |request: &mut PushRequest| request.tries >= MAX_TRIES && request.series() == 1;
        for request in report.to_retry.extract_if(.., is_exhausted) {
            let (samples, labels) = (request.samples, request.only_labels());
            tracing::error!(
                sink = self.sink_queue.name,
                event = request.event.as_str(),
                samples,
                labels,
                problem,
                "only this is never taken: it is refused"
            );
            report.refused += request.samples_by_event();
        }
        self.next_retry = Instant::now() + self.sink_queue.options.max_delay;
        self.sink_queue.state().is_down = false;
        let samples = report.retry_samples().total();
        tracing::warn!(
            sink = self.sink_queue.name,
            samples,
            problem,
            "the server answers and doesn't take a request: it waits behind the others"
        );
    }

    /// Notes whether the server takes requests. After a failure nothing is sent for a while, and
    /// not before the time that the server asks for.
    fn update_backoff(&mut self, problem: Option<String>, retry_after: Option<Duration>) {
        let mut state = self.sink_queue.state();
        state.is_down = problem.is_some();
        drop(state);
        self.retry_at = None;
        if let Some(problem) = problem {
            self.delivered_since_failure = false;
            // The back-off on top of it, because daemons that were asked together needn't come
            // together.
            let asked = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
            let delay = asked + self.backoff.next().unwrap_or(self.sink_queue.options.max_delay);
            self.retry_at = Some(Instant::now() + delay);
            let kept = if self.sink_queue.disk.is_some() { "in the spool" } else { "in memory" };
            tracing::warn!(
                sink = self.sink_queue.name,
                problem,
                ?delay,
                "the server doesn't take profiles: they are kept {kept}"
            );
        }
    }

    /// Returns true if the server is back, without a sample at stake.
    async fn probe(&mut self) {
        let outcome = tokio::select! {
            outcome = self.backend.probe() => outcome,
            () = self.sink_queue.deadline() => return,
        };
        match outcome {
            // It has looked at the request: whatever it thinks of an empty one.
            PushOutcome::Stored | PushOutcome::Refused { .. } => {
                let spooled = self.sink_queue.state().counts.spooled.total();
                tracing::info!(sink = self.sink_queue.name, spooled, "the server answers again");
                (self.retry_at, self.probe_answered) = (None, true);
                self.sink_queue.state().is_down = false;
            }
            PushOutcome::PossiblyLost { code, message } => {
                self.update_backoff(Some(format!("{code:?}: {message}")), None);
            }
            PushOutcome::NotStored { message, retry_after } => {
                self.update_backoff(Some(message), retry_after);
            }
        }
    }

    /// Without a spool, what still waits when the daemon ends is lost, and counted.
    fn discard_outbox(&self) {
        let mut state = self.sink_queue.state();
        let mut samples = SamplesByEvent::NONE;
        while let Some(request) = state.pop_front() {
            samples += request.samples_by_event();
        }
        state.counts.waiting -= samples;
        state.counts.losses.undelivered += samples;
        drop(state);
        if !samples.is_none() {
            tracing::error!(
                sink = self.sink_queue.name,
                samples = samples.total(),
                "nobody took the last profiles: they are lost"
            );
        }
    }
}

fn in_flight(state: &mut QueueState, request: PushRequest) -> SenderAction {
    state.counts.in_flight += request.samples_by_event();
    SenderAction::Send(request)
}
