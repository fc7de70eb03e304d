//! The queue of one sink, which its tasks share: requests in memory, the spool, the counts and
//! their ledger.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::SampleTotals;
use super::counts::DeliveryCounts;
use super::ledger::{Ledger, LedgerEntry};
use super::options::{DeliveryOptions, SpoolPlan};
use crate::event_type::SamplesByEvent;
use crate::export::push::PushRequest;
use crate::export::spool::{NewRecord, RecordId, RecordInFlight, Spool, SpoolError, SpoolOptions};

/// A sink's spool with its ledger.
#[derive(Debug)]
pub(super) struct SinkSpool {
    pub(super) spool: Mutex<Spool>,
    ledger: Mutex<Ledger>,
    pub(super) plan: SpoolPlan,
}

/// Locks are taken in the order spool, ledger, state; the last one never during I/O.
#[derive(Debug)]
pub(super) struct SinkQueue {
    pub(super) name: String,
    pub(super) options: DeliveryOptions,
    pub(super) disk: Option<SinkSpool>,
    state: Mutex<QueueState>,
    /// Something has changed that the sender should look at.
    pub(super) changed: Notify,
    /// Set when the daemon ends: how long answers are waited for.
    pub(super) closing: watch::Sender<Option<Instant>>,
}

#[derive(Debug, Default)]
pub(super) struct QueueState {
    /// Not tried yet.
    pub(super) outbox: VecDeque<PushRequest>,
    /// Without a spool: tried, and not taken while others were.
    retries: VecDeque<PushRequest>,
    /// Bytes of both.
    waiting_bytes: usize,
    /// Samples of the spool's records that weren't tried yet, and of those that were; without those
    /// that are being sent.
    untried_in_spool: SamplesByEvent,
    retries_in_spool: SamplesByEvent,
    /// The server doesn't take anything at the moment.
    pub(super) is_down: bool,
    /// No more requests will come into the outbox.
    pub(super) is_complete: bool,
    pub(super) counts: DeliveryCounts,
    earlier: DeliveryCounts,
    taken: SamplesByEvent,
    taken_by_daemon: SamplesByEvent,
    lost_before: SamplesByEvent,
    /// Samples that this daemon had handed over when the sink was opened.
    handed_over_before: SamplesByEvent,
    /// Everything is sent or on disk.
    pub(super) is_closed: bool,
    appended: SamplesByEvent,
    /// Records of the spool that are being sent.
    in_transit: Vec<(RecordId, SamplesByEvent)>,
}

impl QueueState {
    fn push_back(&mut self, request: PushRequest) {
        self.waiting_bytes += request.bytes();
        self.outbox.push_back(request);
    }

    /// The oldest of all.
    pub(super) fn pop_front(&mut self) -> Option<PushRequest> {
        self.pop_retry().or_else(|| self.pop_fresh())
    }

    pub(super) fn pop_fresh(&mut self) -> Option<PushRequest> {
        let request = self.outbox.pop_front()?;
        self.waiting_bytes -= request.bytes();
        Some(request)
    }

    pub(super) fn pop_retry(&mut self) -> Option<PushRequest> {
        let request = self.retries.pop_front()?;
        self.waiting_bytes -= request.bytes();
        Some(request)
    }

    /// Returns true if there is something that was tried, in memory or in the spool.
    pub(super) fn has_retries(&self) -> bool {
        !self.retries.is_empty() || !self.retries_in_spool.is_none()
    }

    /// Returns true if the spool has something that wasn't.
    pub(super) fn has_spooled(&self) -> bool {
        !self.untried_in_spool.is_none()
    }

    /// Takes over the counts of the spool.
    fn refresh_counts(&mut self, spool: &Spool) {
        let losses = spool.losses();
        self.counts.losses.spool_full = losses.full;
        self.counts.losses.spool_expired = losses.expired;
        self.counts.losses.spool_damaged = losses.damaged;
        self.counts.spooled = spool.samples();
        self.counts.spool_bytes = spool.bytes();
        self.untried_in_spool = spool.untried_samples();
        self.retries_in_spool = spool.retry_samples();
        self.appended = spool.appended();
    }

    fn entry(&self) -> LedgerEntry {
        LedgerEntry {
            earlier: self.earlier,
            run: self.counts,
            taken: self.taken,
            taken_by_daemon: self.taken_by_daemon,
            lost_before: self.lost_before,
            handed_over_before: self.handed_over_before,
            is_closed: self.is_closed,
            appended: self.appended,
            in_transit: self.in_transit.clone(),
            ..LedgerEntry::default()
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SinkQueue {
    /// Opens the spool, if there is to be one, and closes the books of the daemon before. `before`:
    /// what this daemon has done.
    pub(super) fn open(
        name: String,
        options: DeliveryOptions,
        before: SampleTotals,
    ) -> Result<Self, SpoolError> {
        let SampleTotals { taken, taken_by_daemon, lost_before, handed_over } = before;
        let mut state = QueueState {
            taken,
            taken_by_daemon,
            lost_before,
            handed_over_before: handed_over,
            ..QueueState::default()
        };
        let disk = match &options.spool {
            Some(plan) => Some(open_spool(&name, plan, options.send_again, &mut state)?),
            None => None,
        };
        Ok(Self::from_parts(name, options, disk, state))
    }

    /// Makes the queue of a sink that needs no spool.
    pub(super) fn without_spool(name: String) -> Self {
        Self::from_parts(name, DeliveryOptions::default(), None, QueueState::default())
    }

    fn from_parts(
        name: String,
        options: DeliveryOptions,
        disk: Option<SinkSpool>,
        state: QueueState,
    ) -> Self {
        let (closing, _) = watch::channel(None);
        Self { name, options, disk, state: Mutex::new(state), changed: Notify::new(), closing }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Waits until answers aren't waited for any more.
    pub(super) async fn deadline(&self) {
        let mut closing = self.closing.subscribe();
        let until = closing.wait_for(Option::is_some).await.ok().and_then(|until| *until);
        match until {
            Some(until) => tokio::time::sleep_until(until).await,
            // The sender of the watch is part of `self`.
            None => std::future::pending().await,
        }
    }

    /// Records what the sampler has taken so far, for the ledger. Returns true if there is a
    /// ledger, and this is new.
    pub(super) fn record_taken(&self, so_far: &SampleTotals) -> bool {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.taken, so_far.taken);
        state.taken_by_daemon = so_far.taken_by_daemon;
        state.lost_before = so_far.lost_before;
        self.disk.is_some() && before != so_far.taken
    }

    /// Puts requests behind the others. What there is no room for goes to the spool, the oldest
    /// first.
    pub(super) async fn enqueue(self: &Arc<Self>, requests: Vec<PushRequest>) {
        let excess = {
            let mut state = self.state();
            requests.into_iter().for_each(|request| state.push_back(request));
            self.take_excess(&mut state)
        };
        self.spool(excess).await;
        self.changed.notify_one();
    }

    fn take_excess(&self, state: &mut QueueState) -> Vec<PushRequest> {
        // What can't be sent now is safer on disk.
        let room = match (&self.disk, state.is_down) {
            (Some(_), true) => 0,
            _ => self.options.max_waiting_bytes,
        };
        let mut excess = Vec::new();
        while state.waiting_bytes > room {
            excess.extend(state.pop_front());
        }
        excess
    }

    /// Takes everything that waits out of memory, if there is a spool to put it into.
    pub(super) async fn spool_outbox(self: &Arc<Self>) {
        if self.disk.is_some() {
            let waiting: Vec<_> = {
                let mut state = self.state();
                std::iter::from_fn(|| state.pop_front()).collect()
            };
            self.spool(waiting).await;
        }
    }

    /// Requests that have to be sent again: the first ones, if it was the server that took nothing,
    /// or behind all others, if it took others.
    pub(super) async fn requeue(self: &Arc<Self>, requests: Vec<PushRequest>) {
        if self.disk.is_some() {
            return self.spool(requests).await;
        }
        let excess = {
            let mut state = self.state();
            for request in requests.into_iter().rev() {
                state.waiting_bytes += request.bytes();
                if request.tries == 0 {
                    state.outbox.push_front(request);
                } else {
                    state.retries.push_back(request);
                }
            }
            self.take_excess(&mut state)
        };
        self.spool(excess).await;
    }

    /// Puts requests into the spool; without one they are lost.
    async fn spool(self: &Arc<Self>, requests: Vec<PushRequest>) {
        if requests.is_empty() {
            return;
        }
        let sink_queue = Arc::clone(self);
        self.blocking(move || {
            for request in requests {
                sink_queue.spool_one(&request);
            }
            sink_queue.write_ledger();
        })
        .await;
    }

    fn spool_one(&self, request: &PushRequest) {
        let (event, samples) = (request.event.as_str(), request.samples_by_event());
        let Some(disk) = &self.disk else {
            let mut state = self.state();
            state.counts.waiting -= samples;
            state.counts.losses.queue_full += samples;
            drop(state);
            tracing::error!(
                sink = self.name,
                event,
                samples = request.samples,
                "too much waits for the server: the oldest samples are lost"
            );
            return;
        };
        let record = NewRecord {
            created: request.created,
            event: request.event,
            samples: request.samples,
            series: u32::try_from(request.series()).unwrap_or(u32::MAX),
            tries: request.tries,
            body: request.to_bytes(),
        };
        let mut spool = lock(&disk.spool);
        let kept = spool.append(&record);
        let mut state = self.state();
        state.counts.waiting -= samples;
        state.refresh_counts(&spool);
        if let Err(error) = kept {
            state.counts.losses.spool_failed += samples;
            drop(state);
            let samples = request.samples;
            tracing::error!(sink = self.name, event, samples, %error, "samples can't be spooled and are lost");
        }
    }

    /// A record of the spool, which is from now on being sent: the oldest that wasn't tried yet, or
    /// one of those that were.
    pub(super) async fn take_spooled(
        self: &Arc<Self>,
        is_retry: bool,
    ) -> Result<Option<RecordInFlight>, SpoolError> {
        let sink_queue = Arc::clone(self);
        let taken = self
            .blocking(move || {
                let Some(disk) = &sink_queue.disk else { return Ok(None) };
                let mut spool = lock(&disk.spool);
                let taken = if is_retry { spool.take_retry() } else { spool.take_next() };
                let mut state = sink_queue.state();
                state.refresh_counts(&spool);
                let sending = taken.as_ref().ok().and_then(Option::as_ref);
                state.in_transit.extend(sending.map(|taken| (taken.id, taken.samples_by_event())));
                drop((state, spool));
                sink_queue.write_ledger();
                taken
            })
            .await;
        taken.unwrap_or(Ok(None))
    }

    /// Notes down what became of a record of the spool. `count` gets the counts in the moment in
    /// which the spool lets go of it.
    pub(super) async fn record_result(
        self: &Arc<Self>,
        taken: RecordInFlight,
        delivered: Option<u64>,
        count: impl FnOnce(&mut DeliveryCounts) + Send + 'static,
    ) {
        let sink_queue = Arc::clone(self);
        self.blocking(move || {
            let Some(disk) = &sink_queue.disk else { return };
            let mut spool = lock(&disk.spool);
            match delivered {
                Some(delivered) => spool.complete(taken.id, delivered),
                None => spool.requeue(&taken),
            }
            let mut state = sink_queue.state();
            state.refresh_counts(&spool);
            state.in_transit.retain(|(id, _)| *id != taken.id);
            count(&mut state.counts);
            drop(state);
            // Before anybody else may use the spool, and let its file go.
            sink_queue.write_ledger();
            drop(spool);
        })
        .await;
    }

    /// Brings the ledger up to date.
    pub(super) async fn save_ledger(self: &Arc<Self>) {
        let sink_queue = Arc::clone(self);
        self.blocking(move || sink_queue.write_ledger()).await;
    }

    fn write_ledger(&self) {
        let Some(disk) = &self.disk else { return };
        let mut ledger = lock(&disk.ledger);
        let entry = self.state().entry();
        if let Err(error) = ledger.write(&entry) {
            tracing::warn!(sink = self.name, %error, "after a crash the sums would be older than they could be");
        }
    }

    /// Runs what may wait for a disk. `None` if it broke down.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::error!(sink = self.name, %error, "a step of the delivery broke down");
                None
            }
        }
    }
}

fn open_spool(
    name: &str,
    plan: &SpoolPlan,
    send_again: bool,
    state: &mut QueueState,
) -> Result<SinkSpool, SpoolError> {
    let options = SpoolOptions { max_bytes: plan.max_bytes, max_age: plan.max_age, send_again };
    // The lock comes with the spool: the ledger is read before by nobody who would write to it.
    let noted = super::ledger::read(&plan.dir).ok().flatten();
    let in_transit = noted.map(|entry| entry.in_transit).unwrap_or_default();
    let unresolved: Vec<_> = in_transit.into_iter().map(|(id, _)| id).collect();
    let (spool, found) = Spool::open(&plan.dir, options, &unresolved)?;
    let (ledger, last) = Ledger::open(&plan.dir)?;
    let last = last.unwrap_or_default();
    state.earlier = last.reconcile(&found);
    state.counts.found = found.waiting;
    // Counted in the run that sends them, not in the one before: the sums of all runs add both up.
    state.counts.possibly_twice = found.sent_again;
    state.refresh_counts(&spool);
    let before = last.total();
    let after = &state.earlier.losses;
    let killed = (after.killed - before.losses.killed).total();
    let possibly_lost = (after.possibly_lost - before.losses.possibly_lost).total();
    let damaged = (after.spool_damaged - before.losses.spool_damaged).total();
    if killed + possibly_lost + damaged > 0 {
        tracing::error!(
            sink = name,
            killed,
            possibly_lost,
            damaged,
            "the daemon before this one did not end in good order: samples are lost"
        );
    }
    if !found.waiting.is_none() || found.damaged_places > 0 {
        let (samples, damaged_places) = (found.waiting.total(), found.damaged_places);
        let possibly_twice = found.sent_again.total();
        tracing::info!(sink = name, samples, possibly_twice, damaged_places, dir = %plan.dir.display(), "spool found");
    }
    let disk = SinkSpool { spool: Mutex::new(spool), ledger: Mutex::new(ledger), plan: plan.clone() };
    lock(&disk.ledger).write(&state.entry())?;
    Ok(disk)
}

/// Returns the time after one request out of the spool before the next one may be sent.
pub(super) fn pause_after(bytes: usize, plan: &SpoolPlan) -> Duration {
    Duration::from_secs_f64(bytes as f64 / plan.bytes_per_second.max(1) as f64)
}
