//! A sink behind a network: one task encodes, one sends.
//!
//! Fresh requests go first. When the server doesn't take one, nothing is sent for a while, and what
//! comes in meanwhile goes to the spool. Then an empty request asks whether the server is back,
//! because an answer that doesn't come would cost samples otherwise. The spool is sent oldest
//! first, at a bounded rate beside what is fresh. How many requests are under way at once is the
//! backend's matter, and what `server_state` believes that the server can take.
//!
//! A request that fails although the server has just answered holds up no other: it waits behind
//! them, is divided until what isn't taken stands alone, and is refused in the end.

mod accounting;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;

use super::backend::Backend;
use super::bisection::{self, FailurePolicy, SendReport};
use super::refused_series::RefusedSeries;
use super::server_state::{RequestStart, ServerState};
use super::sink_queue::{QueueState, SinkQueue, pause_after};
use crate::event_type::SamplesByEvent;
use crate::export::push::{EncodedBatch, PushOutcome, PushRequest};
use crate::export::spool::RecordInFlight;
use crate::profile::model::Batch;
use accounting::Origin;

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
            Ok(EncodedBatch { requests, limited_labels }) => {
                note_limited_labels(&sink_queue, limited_labels);
                sink_queue.enqueue(requests).await;
            }
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

fn note_limited_labels(sink_queue: &SinkQueue, labels: u64) {
    let counts = &mut sink_queue.state().counts;
    if labels > 0 && counts.limited_labels == 0 {
        let sink = &*sink_queue.name;
        tracing::warn!(
            sink,
            labels,
            "labels are cut or left out: the server takes no longer or no more ones"
        );
    }
    counts.limited_labels += labels;
}

/// Sends until no more comes, and at the end puts the rest into the spool.
pub(super) async fn send(sink_queue: Arc<SinkQueue>, backend: Backend) {
    Sender::new(sink_queue, backend).run().await;
}

#[derive(Debug)]
struct Sender {
    sink_queue: Arc<SinkQueue>,
    backend: Backend,
    server: ServerState,
    refused_series: Arc<RefusedSeries>,
    /// The requests under way; each gives how long it took, and what became of it.
    under_way: JoinSet<(Duration, SendReport)>,
    /// What they are accounted for by, also if a task breaks down.
    attempts: HashMap<task::Id, Attempt>,
    /// How long the last request took that was delivered.
    answer_time: Duration,
    /// The time from which the spool may be sent.
    next_spooled: Instant,
    /// The last request from the spool was none that had been tried: one of those is next, if it
    /// may be sent.
    retry_has_turn: bool,
}

/// A request that was sent.
#[derive(Debug)]
struct Attempt {
    origin: Origin,
    start: RequestStart,
    tries: u32,
    samples: SamplesByEvent,
}

/// The end of its task.
type TaskResult = Result<(task::Id, (Duration, SendReport)), JoinError>;

/// A series that failed so often by itself, others being taken each time in between, is refused.
/// With the longest delays between two tries that takes five to ten minutes.
const MAX_TRIES: u32 = 10;

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

impl Sender {
    fn new(sink_queue: Arc<SinkQueue>, backend: Backend) -> Self {
        let now = Instant::now();
        // What an earlier daemon left isn't put at stake for a server of which nothing is known
        // yet.
        let retry_at = (!sink_queue.state().counts.spooled.is_none()).then_some(now);
        let server = ServerState::new(&sink_queue.options, backend.max_concurrency(), retry_at);
        Self {
            sink_queue,
            backend,
            server,
            refused_series: Arc::default(),
            under_way: JoinSet::new(),
            attempts: HashMap::new(),
            answer_time: Duration::ZERO,
            next_spooled: now,
            retry_has_turn: false,
        }
    }

    async fn run(&mut self) {
        loop {
            match self.next_action() {
                SenderAction::Send(request) => self.begin_fresh(request).await,
                SenderAction::Spooled { is_retry } => self.begin_spooled(is_retry).await,
                SenderAction::Probe => self.probe().await,
                SenderAction::Wait(until) => self.wait(until).await,
                SenderAction::End => break,
            }
            while let Some(ended) = self.under_way.try_join_next_with_id() {
                self.conclude(ended).await;
            }
        }
        // Each of them gives up at the same time.
        while let Some(ended) = self.under_way.join_next_with_id().await {
            self.conclude(ended).await;
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
        let closing = *self.sink_queue.closing.borrow();
        let has_spool = self.sink_queue.disk.is_some();
        if closing.is_some_and(|until| now >= until) {
            return SenderAction::End;
        }
        // An answer that comes too late leaves a request possibly lost that the spool could keep.
        let is_too_late = closing.is_some_and(|until| has_spool && now + self.answer_time >= until);
        let is_ending = closing.is_some();
        let is_done = state.is_complete && (state.outbox.is_empty() || state.is_down && has_spool);
        if is_too_late || is_ending && is_done {
            return if self.under_way.is_empty() { SenderAction::End } else { SenderAction::Wait(None) };
        }
        let has_spooled = state.has_spooled() && !is_ending;
        let has_retries = state.has_retries() && !is_ending;
        match self.server.retry_at() {
            Some(until) if now < until => return SenderAction::Wait(Some(until)),
            Some(_) if has_spooled || has_retries || !state.outbox.is_empty() => return SenderAction::Probe,
            Some(_) => return SenderAction::Wait(None),
            None => {}
        }
        if !self.under_way.is_empty() && !self.server.has_capacity() {
            return SenderAction::Wait(None);
        }
        if let Some(request) = state.pop_fresh() {
            return in_flight(&mut state, request);
        }
        // At the rate of the spool, too, since that is where they wait.
        let next_retry = self.server.retries.next().filter(|_| has_retries);
        let next_retry = next_retry.map(|next| next.max(self.next_spooled));
        let is_retry_due = next_retry.is_some_and(|next| now >= next);
        if has_spooled && now >= self.next_spooled && !(is_retry_due && self.retry_has_turn) {
            return SenderAction::Spooled { is_retry: false };
        }
        if is_retry_due {
            return match state.pop_retry() {
                Some(request) => in_flight(&mut state, request),
                None => SenderAction::Spooled { is_retry: true },
            };
        }
        let spooled = has_spooled.then_some(self.next_spooled);
        SenderAction::Wait(spooled.into_iter().chain(next_retry).min())
    }

    async fn wait(&mut self, until: Option<Instant>) {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut closing = self.sink_queue.closing.subscribe();
        let is_closing = closing.borrow_and_update().is_some();
        let ended = tokio::select! {
            Some(ended) = self.under_way.join_next_with_id() => Some(ended),
            () = self.sink_queue.changed.notified() => None,
            () = tokio::time::sleep_until(until.unwrap_or(far)) => None,
            _ = closing.changed(), if !is_closing => None,
            () = self.sink_queue.deadline(), if is_closing => None,
        };
        if let Some(ended) = ended {
            self.conclude(ended).await;
        }
    }

    async fn begin_fresh(&mut self, request: PushRequest) {
        self.sink_queue.save_ledger().await;
        let origin = Origin::Memory(request.samples_by_event());
        self.begin(request, origin).await;
    }

    async fn begin_spooled(&mut self, is_retry: bool) {
        let taken = match self.sink_queue.take_spooled(is_retry).await {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(sink = self.sink_queue.name, %error, "the spool can't be read, it will be tried again");
                let again = Instant::now() + self.sink_queue.options.max_delay;
                self.next_spooled = again;
                self.server.retries.delay_until(again);
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
        let taken = RecordInFlight { body: Vec::new(), ..taken };
        self.begin(request, Origin::Spool(taken)).await;
    }

    /// Sends a request, without waiting for the answer.
    async fn begin(&mut self, request: PushRequest, origin: Origin) {
        if self.is_too_old(&request) {
            let report = SendReport { too_old: request.samples_by_event(), ..SendReport::default() };
            return self.account(origin, report).await;
        }
        let (tries, bytes) = (request.tries, request.bytes());
        if let (Some(disk), Origin::Spool(_)) = (&self.sink_queue.disk, &origin) {
            self.next_spooled = Instant::now() + pause_after(bytes, &disk.plan);
            self.retry_has_turn = tries == 0;
        }
        let policy = FailurePolicy {
            send_again: self.sink_queue.options.send_again,
            divide: tries > 0 && self.server.has_delivered(),
            remember_refusals: tries == 0 && matches!(origin, Origin::Memory(_)),
        };
        let start = self.server.begin(bytes, tries > 0);
        let (backend, sink_queue) = (self.backend.clone(), Arc::clone(&self.sink_queue));
        let refused_series = Arc::clone(&self.refused_series);
        let samples = request.samples_by_event();
        let task = self.under_way.spawn(async move {
            let begun = Instant::now();
            let deadline = pin!(sink_queue.deadline());
            let report = bisection::deliver(&backend, &refused_series, request, policy, deadline).await;
            (begun.elapsed(), report)
        });
        self.attempts.insert(task.id(), Attempt { origin, start, tries, samples });
    }

    /// Learns from the end of a request whether it is the server's fault or its own if it failed,
    /// and accounts for its samples.
    async fn conclude(&mut self, ended: TaskResult) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(Attempt { mut origin, start, tries, samples }) = self.attempts.remove(&id) else { return };
        let (took, mut report) = ended.map_or_else(
            |error| {
                tracing::error!(sink = self.sink_queue.name, %error, "sending a request broke down");
                let problem = Some("sending it broke down".to_owned());
                (Duration::ZERO, SendReport { possibly_lost: samples, problem, ..SendReport::default() })
            },
            |(_, done)| done,
        );
        self.server.end(start);
        {
            let mut state = self.sink_queue.state();
            let counts = &mut state.counts;
            counts.requests += report.requests;
            counts.sent_bytes += report.sent_bytes;
            counts.failed_requests += report.failed;
            counts.divided_requests += report.divided;
            counts.withheld_series += report.withheld_series;
            counts.possibly_twice += report.possibly_twice;
        }
        if !report.delivered.is_none() {
            if self.server.is_current(start) {
                self.answer_time = took;
            }
            self.server.note_delivered(start);
        }
        let is_request_failure = self.server.is_current(start)
            && (start.is_after_probe || tries > 0)
            && report.possibly_lost.is_none();
        match report.problem.clone() {
            // A server that asks for time says that the reason is its own.
            Some(problem) if is_request_failure && report.retry_after.is_none() => {
                self.schedule_retry(&problem, &mut report);
            }
            Some(problem) => {
                self.note_failure(Some(start), &problem, report.retry_after);
                if is_request_failure {
                    // Others go first: it may be this one for which the server asks for time.
                    report.to_retry.iter_mut().for_each(|request| request.tries = request.tries.max(1));
                    self.server.retries.note_failure(Instant::now());
                }
            }
            None if self.server.is_current(start) => {
                self.sink_queue.state().is_down = self.server.retry_at().is_some();
            }
            None => {}
        }
        if let (Origin::Spool(taken), [whole]) = (&mut origin, &report.to_retry[..])
            && whole.samples == taken.samples
        {
            taken.tries = whole.tries;
        }
        self.account(origin, report).await;
        if self.server.retry_at().is_some() {
            self.sink_queue.spool_outbox().await;
        }
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
        let has_delivered = self.server.take_has_delivered();
        for request in &mut report.to_retry {
            request.tries = (request.tries + u32::from(has_delivered)).max(1);
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
        self.server.retries.note_failure(Instant::now());
        self.sink_queue.state().is_down = self.server.retry_at().is_some();
        let samples = report.retry_samples().total();
        tracing::warn!(
            sink = self.sink_queue.name,
            samples,
            problem,
            "the server answers and doesn't take a request: it waits behind the others"
        );
    }

    /// The server doesn't take a request, or (then `start` is `None`) an empty one.
    fn note_failure(&mut self, start: Option<RequestStart>, problem: &str, retry_after: Option<Duration>) {
        let Some(delay) = self.server.note_failure(start, retry_after, Instant::now()) else { return };
        self.sink_queue.state().is_down = true;
        let kept = if self.sink_queue.disk.is_some() { "in the spool" } else { "in memory" };
        tracing::warn!(
            sink = self.sink_queue.name,
            problem,
            ?delay,
            "the server doesn't take profiles: they are kept {kept}"
        );
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
                self.server.note_probe_answered();
                self.sink_queue.state().is_down = false;
            }
            PushOutcome::PossiblyLost { code, message, retry_after } => {
                self.note_failure(None, &format!("{code:?}: {message}"), retry_after);
            }
            PushOutcome::NotStored { message, retry_after } => {
                self.note_failure(None, &message, retry_after);
            }
        }
        if self.server.retry_at().is_some() {
            // What came in before the answer.
            self.sink_queue.spool_outbox().await;
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
