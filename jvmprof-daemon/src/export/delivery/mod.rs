//! Delivery of batches to their sinks: each sink on its own, so that a dead one holds up no other,
//! and every sample accounted for. See `docs/delivery.md`.
//!
//! [`Delivery::enqueue`] puts a batch into the queue of each sink. A `remote_sink` has two tasks:
//! one encodes batches into requests, the other sends them, by `bisection` where the server refuses
//! a part, without the `refused_series` that it never takes, and as `server_state` allows. Both
//! share a `sink_queue`: the outbox in memory, the spool, and the `counts`, which the `ledger`
//! keeps on disk so that the sums hold beyond the end of a daemon that was killed. A `local_sink`
//! writes to the store.

mod backend;
mod bisection;
mod counts;
mod ledger;
mod local_sink;
mod options;
mod refused_series;
mod remote_sink;
mod server_state;
mod sink_queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::spool::SpoolError;
use super::store::Store;
use crate::event_type::{AtomicSamplesByEvent, EventType, SamplesByEvent};
use crate::profile::model::Batch;

pub use backend::Backend;
pub use counts::{DeliveryCounts, Losses};
pub use ledger::{LedgerEntry, read as read_ledger};
pub use options::{DeliveryOptions, MAX_CONCURRENCY, SpoolPlan};

use sink_queue::SinkQueue;

/// Windows of all events whose batches wait for a sink to be encoded or stored; more are lost, and
/// counted.
const QUEUED_WINDOWS: usize = 3;
const QUEUED_BATCHES: usize = QUEUED_WINDOWS * EventType::ALL.len();

/// All sinks. Must be used inside of a tokio runtime.
#[derive(Debug, Default)]
pub struct Delivery {
    sinks: Vec<Sink>,
    /// Samples that were handed over while there was no sink.
    without_sink: AtomicSamplesByEvent,
    before: SampleTotals,
}

/// Samples since the daemon's start, at the time when its sinks were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleTotals {
    /// That were taken.
    pub taken: SamplesByEvent,
    /// The part of them that the daemon has taken itself: see [`LedgerEntry::taken_by_daemon`].
    pub taken_by_daemon: SamplesByEvent,
    /// The part of them that was lost before it could be handed over, and counted.
    pub lost_before: SamplesByEvent,
    /// The part of them that was handed over to other sinks.
    pub handed_over: SamplesByEvent,
}

/// The name under which samples are counted that had no sink.
const NO_SINK: &str = "none";

#[derive(Debug)]
struct Sink {
    sink_queue: Arc<SinkQueue>,
    queue: mpsc::Sender<Arc<Batch>>,
    tasks: Vec<JoinHandle<()>>,
    /// Entries of the ledger that are being written.
    ledger_writes: Vec<JoinHandle<()>>,
}

impl Delivery {
    /// Makes a delivery without sinks yet, in a daemon that has done this before.
    pub fn after(before: SampleTotals) -> Self {
        Self { before, ..Self::default() }
    }

    /// Adds a backend. What an earlier daemon left in its spool is
    /// on its way from now on.
    ///
    /// # Errors
    /// The spool can't be used.
    pub fn add_remote(
        &mut self,
        backend: impl Into<Backend>,
        options: DeliveryOptions,
    ) -> Result<(), SpoolError> {
        let backend = backend.into();
        let sink_queue = Arc::new(SinkQueue::open(backend.address().to_owned(), options, self.before)?);
        let (queue, batches) = mpsc::channel(QUEUED_BATCHES);
        let encode = remote_sink::encode(Arc::clone(&sink_queue), backend.clone(), batches);
        let send = remote_sink::send(Arc::clone(&sink_queue), backend);
        let tasks = vec![tokio::spawn(encode), tokio::spawn(send)];
        self.sinks.push(Sink { sink_queue, queue, tasks, ledger_writes: Vec::new() });
        Ok(())
    }

    /// Adds a folder of pprof files.
    pub fn add_local(&mut self, store: Arc<Store>) {
        let sink_queue = Arc::new(SinkQueue::without_spool(store.dir().display().to_string()));
        let (queue, batches) = mpsc::channel(QUEUED_BATCHES);
        let append = local_sink::append(Arc::clone(&sink_queue), store, batches);
        self.sinks.push(Sink {
            sink_queue,
            queue,
            tasks: vec![tokio::spawn(append)],
            ledger_writes: Vec::new(),
        });
    }

    /// Hands a batch to every sink. Never waits: where there is no room the batch is lost and
    /// counted.
    pub fn enqueue(&self, batch: Batch) {
        let (event, count) = (batch.event, batch.samples());
        if count == 0 {
            return;
        }
        let (name, samples) = (event.as_str(), SamplesByEvent::of(event, count));
        if self.sinks.is_empty() {
            self.without_sink.add(event, count);
            tracing::error!(event = name, samples = count, "there is no sink: a batch is lost");
        }
        let batch = Arc::new(batch);
        for sink in &self.sinks {
            // Before the batch is on its way, because it may be quick.
            sink.count(|counts| {
                counts.handed_over += samples;
                counts.waiting += samples;
            });
            if sink.queue.try_send(Arc::clone(&batch)).is_err() {
                sink.count(|counts| {
                    counts.waiting -= samples;
                    counts.losses.queue_full += samples;
                });
                tracing::error!(
                    sink = sink.sink_queue.name,
                    event = name,
                    samples = count,
                    "the sink is too slow: a batch is lost"
                );
            }
        }
    }

    /// Records how many samples were taken since the daemon's start, and how many of them are lost
    /// before they could be handed over. Noted down beside the counts of each sink that has a
    /// spool, soon.
    pub fn record_taken(&mut self, so_far: &SampleTotals) {
        for sink in &mut self.sinks {
            if sink.sink_queue.record_taken(so_far) {
                let sink_queue = Arc::clone(&sink.sink_queue);
                sink.ledger_writes.retain(|write| !write.is_finished());
                sink.ledger_writes.push(tokio::spawn(async move { sink_queue.save_ledger().await }));
            }
        }
    }

    /// Returns true if there is no sink.
    pub fn is_empty(&self) -> bool {
        self.sinks.is_empty()
    }

    /// Each sink's name and counts; what had none is listed under `NO_SINK`.
    pub fn counts(&self) -> Vec<(String, DeliveryCounts)> {
        let sinks =
            self.sinks.iter().map(|sink| (sink.sink_queue.name.clone(), sink.sink_queue.state().counts));
        sinks.chain(self.without_sink()).collect()
    }

    fn without_sink(&self) -> Option<(String, DeliveryCounts)> {
        let samples = self.without_sink.load();
        let losses = Losses { undelivered: samples, ..Losses::default() };
        let counts = DeliveryCounts { handed_over: samples, losses, ..DeliveryCounts::default() };
        (!samples.is_none()).then(|| (NO_SINK.to_owned(), counts))
    }

    /// Ends: what waits is sent for at most so long, then it goes to the spools, which nobody holds
    /// any more. Gives each sink's name and last counts.
    pub async fn finish(self, drain: Duration) -> Vec<(String, DeliveryCounts)> {
        let mut ended: Vec<_> = self.without_sink().into_iter().collect();
        let until = Instant::now() + drain;
        let mut waiting = Vec::new();
        for Sink { sink_queue, queue, mut tasks, ledger_writes } in self.sinks {
            drop(queue);
            sink_queue.closing.send_replace(Some(until));
            tasks.extend(ledger_writes);
            waiting.push((sink_queue, tasks));
        }
        for (sink_queue, tasks) in waiting {
            for task in tasks {
                if let Err(error) = task.await {
                    tracing::error!(sink = sink_queue.name, %error, "a task of the delivery broke down");
                }
            }
            sink_queue.state().is_closed = true;
            sink_queue.save_ledger().await;
            let counts = sink_queue.state().counts;
            ended.push((sink_queue.name.clone(), counts));
        }
        ended
    }
}

impl Sink {
    fn count(&self, change: impl FnOnce(&mut DeliveryCounts)) {
        change(&mut self.sink_queue.state().counts);
    }
}
