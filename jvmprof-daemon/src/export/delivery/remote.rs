//! A sink behind a network: one task encodes, one sends.
//!
//! Fresh requests go first. When the server doesn't take one, nothing is sent for a while, and what comes in meanwhile goes
//! to the spool. Then an empty request asks whether the server is back, because an answer that doesn't come would cost
//! samples otherwise. The spool is sent oldest first, at a bounded rate beside what is fresh.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::attempt::{self, Verdict};
use super::options::DeliveryOptions;
use super::shared::{Shared, pause_after};
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
    let next_spooled = Instant::now();
    // What an earlier daemon left isn't put at stake for a server of which nothing is known yet.
    let retry_at = (shared.state().counts.spooled > 0).then_some(next_spooled);
    Sender { shared, client, backoff, next_spooled, retry_at }.run().await;
}

#[derive(Debug)]
struct Sender {
    shared: Arc<Shared>,
    client: ParcaClient,
    backoff: ExponentialBackoff,
    /// When the spool may be sent from.
    next_spooled: Instant,
    /// When a server that doesn't take anything is asked again.
    retry_at: Option<Instant>,
}

/// What to do next.
enum Step {
    Fresh(Request),
    Spooled,
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
    async fn run(mut self) {
        loop {
            match self.next_step() {
                Step::Fresh(request) => self.fresh(request).await,
                Step::Spooled => self.spooled().await,
                Step::Ask => self.ask().await,
                Step::Wait(until) => self.wait(until).await,
                Step::End => break,
            }
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
        let has_spooled = state.counts.spooled > 0 && !is_ending;
        match self.retry_at {
            Some(until) if now < until => return Step::Wait(Some(until)),
            Some(_) if has_spooled || !state.outbox.is_empty() => return Step::Ask,
            Some(_) => return Step::Wait(None),
            None => {}
        }
        match state.pop_front() {
            Some(request) => {
                state.counts.in_flight += request.samples;
                Step::Fresh(request)
            }
            None if has_spooled && now >= self.next_spooled => Step::Spooled,
            None => Step::Wait(has_spooled.then_some(self.next_spooled)),
        }
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

    async fn fresh(&mut self, request: Request) {
        let samples = request.samples;
        self.shared.save_soon().await;
        let verdict = self.attempt(request).await;
        {
            let mut state = self.shared.state();
            let counts = &mut state.counts;
            counts.in_flight -= samples;
            counts.waiting -= samples - again(&verdict);
            counts.delivered += verdict.delivered;
            counts.losses.refused += verdict.refused;
            counts.losses.possibly_lost += verdict.possibly_lost;
        }
        self.react(verdict.problem, verdict.delivered);
        if !verdict.again.is_empty() {
            self.shared.keep_for_later(verdict.again).await;
            self.shared.clear_outbox().await;
        }
        self.shared.save_soon().await;
    }

    async fn spooled(&mut self) {
        let taken = match self.shared.take_spooled().await {
            Ok(Some(taken)) => taken,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(sink = self.shared.name, %error, "the spool can't be read, it will be tried again");
                self.next_spooled = Instant::now() + self.shared.options.max_delay;
                return;
            }
        };
        let Some(request) = Request::from_bytes(&taken.body, taken.created, taken.samples) else {
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
        if let Some(disk) = &self.shared.disk {
            self.next_spooled = Instant::now() + pause_after(request.bytes(), &disk.plan);
        }
        let verdict = self.attempt(request).await;
        self.react(verdict.problem.clone(), verdict.delivered);
        self.settle(taken, verdict).await;
    }

    async fn settle(&self, taken: Taken, verdict: Verdict) {
        let again = again(&verdict);
        if again == taken.samples {
            return self.shared.settle(taken, None, |_| {}).await;
        }
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

    async fn attempt(&self, request: Request) -> Verdict {
        let deadline = pin!(self.shared.deadline());
        let verdict = attempt::deliver(&self.client, request, self.shared.options.send_again, deadline).await;
        let mut state = self.shared.state();
        let counts = &mut state.counts;
        counts.requests += verdict.requests;
        counts.sent_bytes += verdict.sent_bytes;
        counts.failed_requests += verdict.failed;
        counts.divided_requests += verdict.divided;
        counts.possibly_twice += verdict.possibly_twice;
        verdict
    }

    /// Sends nothing for a while after a failure.
    fn react(&mut self, problem: Option<String>, delivered: u64) {
        if delivered > 0 {
            self.backoff = backoff(&self.shared.options);
        }
        let mut state = self.shared.state();
        state.is_down = problem.is_some();
        drop(state);
        self.retry_at = None;
        if let Some(problem) = problem {
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
                self.retry_at = None;
                self.shared.state().is_down = false;
            }
            Outcome::PossiblyLost { code, message } => self.react(Some(format!("{code:?}: {message}")), 0),
            Outcome::NotStored { message } => self.react(Some(message), 0),
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

fn again(verdict: &Verdict) -> u64 {
    verdict.again.iter().map(|request| request.samples).sum()
}
