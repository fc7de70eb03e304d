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
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::bisection::{self, Policy, Verdict};
use super::options::DeliveryOptions;
use super::sink_queue::{Shared, State, pause_after};
use crate::export::parca::{Outcome, ParcaClient, Request, requests};
use crate::export::spool::Taken;
use crate::profile::model::Batch;

/// Encodes batches, one after the other, until no more come.
pub(super) async fn encode(
    shared: Arc<Shared>,
    max_request_bytes: usize,
    mut batches: mpsc::Receiver<Arc<Batch>>,
) {
    while let Some(batch) = batches.recv().await {
        let samples = batch.samples();
        let made = tokio::task::spawn_blocking(move || requests(&batch, max_request_bytes)).await;
        match made.map_err(std::io::Error::other).and_then(|made| made) {
            Ok(requests) => shared.put(requests).await,
            Err(error) => {
                let mut state = shared.state();
                state.counts.waiting -= samples;
                state.counts.losses.unencodable += samples;
                drop(state);
                tracing::error!(sink = shared.name, samples, %error, "samples can't be encoded and are lost");
            }
        }
        shared.save_soon().await;
    }
    shared.state().is_complete = true;
    shared.changed.notify_one();
}

/// Sends until no more comes, and at the end puts the rest into the spool.
pub(super) async fn send(shared: Arc<Shared>, client: ParcaClient) {
    let backoff = backoff(&shared.options);
    let now = Instant::now();
    // What an earlier daemon left isn't put at stake for a server of which nothing is known yet.
    let retry_at = (shared.state().counts.spooled > 0).then_some(now);
    let mut sender = Sender {
        shared,
        client,
        backoff,
        next_spooled: now,
        next_tried: now,
        retry_at,
        has_answered: false,
        takes_others: false,
    };
    sender.run().await;
}

#[derive(Debug)]
struct Sender {
    shared: Arc<Shared>,
    client: ParcaClient,
    backoff: ExponentialBackoff,
    /// When the spool may be sent from.
    next_spooled: Instant,
    /// When one may be sent that was tried, and wasn't taken while others were.
    next_tried: Instant,
    /// When a server that doesn't take anything is asked again.
    retry_at: Option<Instant>,
    /// The last thing was an answer to an empty request.
    has_answered: bool,
    /// Something was delivered since the last failure.
    takes_others: bool,
}

/// A series that failed so often by itself, others being taken each time in between, is refused.
/// With the longest delay between two tries that takes five minutes.
const TRIES: u32 = 10;

/// What to do next.
enum Step {
    /// From memory.
    Send(Request),
    /// From the spool; of those that were tried, or of the others.
    Spooled {
        is_tried: bool,
    },
    Ask,
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
            match self.next_step() {
                Step::Send(request) => self.send(request).await,
                Step::Spooled { is_tried } => self.spooled(is_tried).await,
                Step::Ask => self.ask().await,
                Step::Wait(until) => self.wait(until).await,
                Step::End => break,
            }
        }
        // What is being encoded now comes too late to be sent, not to be kept.
        while !self.shared.state().is_complete {
            self.shared.changed.notified().await;
        }
        self.shared.clear_outbox().await;
        self.give_up();
        self.shared.save_soon().await;
    }

    fn next_step(&self) -> Step {
        let now = Instant::now();
        let mut state = self.shared.state();
        let is_ending = self.shared.closing.borrow().is_some();
        let is_over = self.shared.closing.borrow().is_some_and(|until| now >= until);
        if is_over
            || (is_ending
                && state.is_complete
                && (state.outbox.is_empty() || state.is_down && self.shared.disk.is_some()))
        {
            return Step::End;
        }
        let has_spooled = state.has_spooled() && !is_ending;
        let has_tried = state.has_tried() && !is_ending;
        match self.retry_at {
            Some(until) if now < until => return Step::Wait(Some(until)),
            Some(_) if has_spooled || has_tried || !state.outbox.is_empty() => return Step::Ask,
            Some(_) => return Step::Wait(None),
            None => {}
        }
        if let Some(request) = state.pop_fresh() {
            return in_flight(&mut state, request);
        }
        if has_spooled && now >= self.next_spooled {
            return Step::Spooled { is_tried: false };
        }
        if has_tried && now >= self.next_tried {
            return match state.pop_tried() {
                Some(request) => in_flight(&mut state, request),
                None => Step::Spooled { is_tried: true },
            };
        }
        let spooled = has_spooled.then_some(self.next_spooled);
        Step::Wait(spooled.into_iter().chain(has_tried.then_some(self.next_tried)).min())
    }

    async fn wait(&self, until: Option<Instant>) {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut closing = self.shared.closing.subscribe();
        let is_closing = closing.borrow_and_update().is_some();
        tokio::select! {
            () = self.shared.changed.notified() => {}
            () = tokio::time::sleep_until(until.unwrap_or(far)) => {}
            _ = closing.changed(), if !is_closing => {}
            () = self.shared.deadline(), if is_closing => {}
        }
    }

    async fn send(&mut self, request: Request) {
        let samples = request.samples;
        self.shared.save_soon().await;
        let verdict = self.attempt(request).await;
        {
            let mut state = self.shared.state();
            let counts = &mut state.counts;
            counts.in_flight -= samples;
            counts.waiting -= samples - verdict.again();
            counts.delivered += verdict.delivered;
            counts.losses.refused += verdict.refused;
            counts.losses.possibly_lost += verdict.possibly_lost;
        }
        if !verdict.again.is_empty() {
            self.shared.keep_for_later(verdict.again).await;
            if self.retry_at.is_some() {
                self.shared.clear_outbox().await;
            }
        }
        self.shared.save_soon().await;
    }

    async fn spooled(&mut self, is_tried: bool) {
        let mut taken = match self.shared.take_spooled(is_tried).await {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(sink = self.shared.name, %error, "the spool can't be read, it will be tried again");
                self.next_spooled = Instant::now() + self.shared.options.max_delay;
                return;
            }
        };
        let Some(mut request) = Request::from_bytes(&taken.body, taken.created, taken.samples) else {
            tracing::error!(
                sink = self.shared.name,
                samples = taken.samples,
                "a record of the spool makes no sense"
            );
            let samples = taken.samples;
            return self
                .shared
                .settle(taken, Some(0), move |counts| counts.losses.unencodable += samples)
                .await;
        };
        request.tries = taken.tries;
        if let Some(disk) = &self.shared.disk {
            self.next_spooled = Instant::now() + pause_after(request.bytes(), &disk.plan);
        }
        let verdict = self.attempt(request).await;
        match &verdict.again[..] {
            [whole] if whole.samples == taken.samples => {
                taken.tries = whole.tries;
                self.shared.settle(taken, None, |_| {}).await;
            }
            _ => self.settle(taken, verdict).await,
        }
    }

    async fn settle(&self, taken: Taken, verdict: Verdict) {
        let again = verdict.again();
        let Verdict { delivered, refused, possibly_lost, .. } = verdict;
        let count = move |counts: &mut super::DeliveryCounts| {
            counts.delivered += delivered;
            counts.delivered_late += delivered;
            counts.losses.refused += refused;
            counts.losses.possibly_lost += possibly_lost;
            counts.waiting += again;
        };
        self.shared.settle(taken, Some(delivered), count).await;
        // A part of it, behind the others: the next ones needn't wait for it.
        self.shared.keep_for_later(verdict.again).await;
    }

    /// Sends a request, and finds out whether it is the server's fault or its own if it fails.
    async fn attempt(&mut self, request: Request) -> Verdict {
        let tries = request.tries;
        let policy =
            Policy { send_again: self.shared.options.send_again, divide: tries > 0 && self.takes_others };
        let mut verdict = {
            let deadline = pin!(self.shared.deadline());
            bisection::deliver(&self.client, request, policy, deadline).await
        };
        {
            let mut state = self.shared.state();
            let counts = &mut state.counts;
            counts.requests += verdict.requests;
            counts.sent_bytes += verdict.sent_bytes;
            counts.failed_requests += verdict.failed;
            counts.divided_requests += verdict.divided;
            counts.possibly_twice += verdict.possibly_twice;
        }
        let is_its_own = (self.has_answered || tries > 0) && verdict.possibly_lost == 0;
        self.has_answered = false;
        self.takes_others |= verdict.delivered > 0;
        if verdict.delivered > 0 {
            self.backoff = backoff(&self.shared.options);
        }
        match verdict.problem.clone() {
            Some(problem) if is_its_own => self.put_behind(&problem, &mut verdict),
            problem => self.react(problem),
        }
        verdict
    }

    /// The server answers, and doesn't take this: the others needn't wait for it.
    fn put_behind(&mut self, problem: &str, verdict: &mut Verdict) {
        let takes_others = std::mem::take(&mut self.takes_others);
        for request in &mut verdict.again {
            request.tries = (request.tries + u32::from(takes_others)).max(1);
        }
        let is_given_up = |request: &mut Request| request.tries >= TRIES && request.series() == 1;
        for request in verdict.again.extract_if(.., is_given_up) {
            let (samples, labels) = (request.samples, request.only_labels());
            tracing::error!(
                sink = self.shared.name,
                samples,
                labels,
                problem,
                "only this is never taken: it is refused"
            );
            verdict.refused += samples;
        }
        self.next_tried = Instant::now() + self.shared.options.max_delay;
        self.shared.state().is_down = false;
        let samples = verdict.again();
        tracing::warn!(
            sink = self.shared.name,
            samples,
            problem,
            "the server answers and doesn't take a request: it waits behind the others"
        );
    }

    /// Sends nothing for a while after a failure.
    fn react(&mut self, problem: Option<String>) {
        let mut state = self.shared.state();
        state.is_down = problem.is_some();
        drop(state);
        self.retry_at = None;
        if let Some(problem) = problem {
            self.takes_others = false;
            let delay = self.backoff.next().unwrap_or(self.shared.options.max_delay);
            self.retry_at = Some(Instant::now() + delay);
            let kept = if self.shared.disk.is_some() { "in the spool" } else { "in memory" };
            tracing::warn!(
                sink = self.shared.name,
                problem,
                ?delay,
                "the server doesn't take profiles: they are kept {kept}"
            );
        }
    }

    /// Whether the server is back, without a sample at stake.
    async fn ask(&mut self) {
        let outcome = tokio::select! {
            outcome = self.client.ask() => outcome,
            () = self.shared.deadline() => return,
        };
        match outcome {
            // It has looked at the request: whatever it thinks of an empty one.
            Outcome::Stored | Outcome::Refused { .. } => {
                let spooled = self.shared.state().counts.spooled;
                tracing::info!(sink = self.shared.name, spooled, "the server answers again");
                (self.retry_at, self.has_answered) = (None, true);
                self.shared.state().is_down = false;
            }
            Outcome::PossiblyLost { code, message } => self.react(Some(format!("{code:?}: {message}"))),
            Outcome::NotStored { message } => self.react(Some(message)),
        }
    }

    /// Without a spool the end of the daemon is the end of what waits.
    fn give_up(&self) {
        let mut state = self.shared.state();
        let mut samples = 0;
        while let Some(request) = state.pop_front() {
            samples += request.samples;
        }
        state.counts.waiting -= samples;
        state.counts.losses.undelivered += samples;
        drop(state);
        if samples > 0 {
            tracing::error!(sink = self.shared.name, samples, "nobody took the last profiles: they are lost");
        }
    }
}

fn in_flight(state: &mut State, request: Request) -> Step {
    state.counts.in_flight += request.samples;
    Step::Send(request)
}
