//! A thread of its own between the rings and those who make sense of events.
//!
//! Reading a large program's symbols takes a second; the rings hold less than that. So they are
//! emptied here, into a queue with a limit in bytes, and nothing that the reader of the queue does
//! makes the kernel lose samples.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::counts::SamplerCounts;
use super::ebpf::maps::KernelTables;
use super::error::SamplerError;
use super::event::{Event, EventKind};
use super::event_source::{SETTLE, Sampler};
use super::options::{Clock, SamplerOptions};
use super::rings::epoll::Waker;
use super::sampling_period::FrequencyChange;
use crate::clock::monotonic_ns;
use crate::own_process::thread_priority;

/// Memory for what waits between the rings and the reader of the queue, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    pub samples: usize,
    /// Of process events: some ten thousand take 4 MiB.
    pub events: usize,
}

/// Rings that haven't been emptied for so long aren't being emptied any more.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// When nothing has happened for so long, the rings are looked at less often: what fills them, or
/// is to be looked at at once, wakes their reader anyway.
const QUIET: Duration = Duration::from_secs(2);
const QUIET_INTERVAL: Duration = Duration::from_secs(1);
/// CPUs come and go seldom.
const CPU_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A sampler whose rings are emptied in the background.
#[derive(Debug)]
pub struct BackgroundSampler {
    shared: Arc<Shared>,
    /// What one emptying of the rings brought.
    events: Receiver<Vec<Event>>,
    /// Of these, what hasn't been taken.
    rest: std::vec::IntoIter<Event>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    sampler: Mutex<Sampler>,
    /// Of samples.
    queued_bytes: AtomicUsize,
    /// Of process events.
    event_bytes: AtomicUsize,
    /// New mappings that found no room.
    dropped: AtomicU64,
    is_dropping: AtomicBool,
    limits: QueueLimits,
    shed: AtomicU64,
    /// `CLOCK_MONOTONIC` when the rings were emptied last.
    polled_ns: AtomicU64,
    stop: AtomicBool,
    urgent: Notify,
    arrived: Notify,
    interval: Duration,
}

impl BackgroundSampler {
    /// Starts sampling; for `prepare` see [`Sampler::start`]. The rings are emptied every
    /// `interval`, or sooner if a process record is there that can't wait; what waits in the queue
    /// has `limits`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn start(
        options: &SamplerOptions,
        interval: Duration,
        limits: QueueLimits,
        prepare: impl FnOnce(KernelTables),
    ) -> Result<Self, SamplerError> {
        let sampler = Sampler::start(options, prepare)?;
        let shared = Arc::new(Shared {
            sampler: Mutex::new(sampler),
            queued_bytes: AtomicUsize::new(0),
            event_bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            is_dropping: AtomicBool::new(false),
            limits,
            shed: AtomicU64::new(0),
            polled_ns: AtomicU64::new(monotonic_ns()),
            stop: AtomicBool::new(false),
            urgent: Notify::new(),
            arrived: Notify::new(),
            interval,
        });
        let (sender, events) = channel();
        let waker = shared.sampler().waker();
        let (of_thread, waited_on) = (Arc::clone(&shared), Arc::clone(&waker));
        let thread = std::thread::Builder::new()
            .name("rings".to_owned())
            .spawn(move || {
                thread_priority::raise_priority();
                of_thread.run(&sender, &waited_on);
            })
            .map_err(|source| SamplerError::Thread { source })?;
        Ok(Self { shared, events, waker, rest: Vec::new().into_iter(), thread: Some(thread) })
    }

    pub fn clock(&self) -> Clock {
        self.shared.sampler().clock()
    }

    /// Resolves when events wait that should be looked at at once.
    pub async fn urgent(&self) {
        self.shared.urgent.notified().await;
    }

    /// Resolves when events wait.
    pub async fn arrived(&self) {
        self.shared.arrived.notified().await;
    }

    /// Makes [`Self::urgent`] resolve: events are left to be looked at.
    pub fn look_again(&self) {
        self.shared.urgent.notify_one();
    }

    /// The next event, if one is waiting.
    pub fn take(&mut self) -> Option<Event> {
        if self.rest.len() == 0 {
            self.rest = self.events.try_recv().ok()?.into_iter();
        }
        let event = self.rest.next()?;
        let is_sample = matches!(event.kind, EventKind::Sample(_));
        let queued = if is_sample { &self.shared.queued_bytes } else { &self.shared.event_bytes };
        queued.fetch_sub(bytes(&event), Ordering::Relaxed);
        Some(event)
    }

    /// Stops sampling; what was sampled can still be taken.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.call();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that empties the rings broke down: its last samples are lost");
        }
    }

    /// Lets go of what waits to be taken: its samples are counted as shed.
    pub fn shed_rest(&mut self) {
        while let Some(event) = self.take() {
            if matches!(event.kind, EventKind::Sample(_)) {
                self.shared.shed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counters since the start.
    pub fn counts(&self) -> SamplerCounts {
        let counts = self.shared.sampler().counts();
        SamplerCounts {
            shed: self.shared.shed.load(Ordering::Relaxed),
            records_lost: counts.records_lost + self.shared.dropped.load(Ordering::Relaxed),
            ..counts
        }
    }

    /// See [`Sampler::set_frequency`].
    pub fn set_frequency(&self, frequency: u32) -> (FrequencyChange, Result<(), SamplerError>) {
        self.shared.sampler().set_frequency(frequency)
    }

    /// Whether the rings have been emptied lately.
    pub fn is_running(&self) -> bool {
        let silence = monotonic_ns().saturating_sub(self.shared.polled_ns.load(Ordering::Relaxed));
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && silence < MAX_SILENCE.as_nanos() as u64
    }

    /// Bytes of samples that wait to be taken.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of process events that wait to be taken, and about how many do at most.
    pub fn event_bytes(&self) -> (usize, usize) {
        (self.shared.event_bytes.load(Ordering::Relaxed), self.shared.limits.events)
    }

    /// See [`Sampler::run_time`].
    pub fn run_time(&self) -> Option<(u64, u64)> {
        self.shared.sampler().run_time()
    }
}

impl Drop for BackgroundSampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, events: &Sender<Vec<Event>>, waker: &Waker) {
        let mut next_cpu_check = Instant::now() + CPU_CHECK_INTERVAL;
        let mut last_event = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let is_quiet = last_event.elapsed() >= QUIET;
            let limit = if is_quiet { QUIET_INTERVAL.max(self.interval) } else { self.interval };
            let is_urgent = waker.wait(limit);
            if is_urgent {
                // Handed on are only events that are complete for sure.
                std::thread::sleep(SETTLE + Duration::from_micros(200));
            }
            let mut sampler = self.sampler();
            let mut batch = Vec::new();
            sampler.poll(&mut |event| self.queue(event, &mut batch));
            self.end_dropping(&mut batch);
            let has_happened = !batch.is_empty();
            if has_happened {
                // The receiver only goes away with the profiler.
                let _ = events.send(batch);
            }
            self.polled_ns.store(monotonic_ns(), Ordering::Relaxed);
            if is_urgent {
                self.urgent.notify_one();
            }
            if has_happened {
                last_event = Instant::now();
                self.arrived.notify_one();
            }
            if Instant::now() >= next_cpu_check {
                next_cpu_check = Instant::now() + CPU_CHECK_INTERVAL;
                if let Err(error) = sampler.follow_cpus() {
                    tracing::error!(%error, "a CPU is not sampled");
                }
            }
        }
        let mut batch = Vec::new();
        self.sampler().stop(&mut |event| self.queue(event, &mut batch));
        let _ = events.send(batch);
    }

    fn queue(&self, event: Event, batch: &mut Vec<Event>) {
        let bytes = bytes(&event);
        if matches!(event.kind, EventKind::Sample(_)) {
            if self.queued_bytes.load(Ordering::Relaxed) + bytes > self.limits.samples {
                self.shed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            let is_full = self.event_bytes.load(Ordering::Relaxed) + bytes > self.limits.events;
            // Whoever maps code in a loop must not take the room of samples, nor all memory. Other
            // events are small.
            if is_full && matches!(event.kind, EventKind::Map { .. }) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if !self.is_dropping.swap(true, Ordering::Relaxed) {
                    self.tell_lost(batch);
                }
                return;
            }
            self.event_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        batch.push(event);
    }

    /// Ends a stretch in which events were dropped, once there is room again: what is read of
    /// processes from then on has all that was dropped.
    fn end_dropping(&self, batch: &mut Vec<Event>) {
        let has_room = self.event_bytes.load(Ordering::Relaxed) < self.limits.events / 2;
        if has_room && self.is_dropping.swap(false, Ordering::Relaxed) {
            self.tell_lost(batch);
        }
    }

    fn tell_lost(&self, batch: &mut Vec<Event>) {
        let event = Event { time_ns: monotonic_ns(), kind: EventKind::EventsLost };
        self.event_bytes.fetch_add(bytes(&event), Ordering::Relaxed);
        batch.push(event);
    }

    /// A thread that panicked left counters at worst.
    fn sampler(&self) -> MutexGuard<'_, Sampler> {
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that an event takes while it waits.
fn bytes(event: &Event) -> usize {
    size_of::<Event>()
        + match &event.kind {
            EventKind::Sample(sample) => sample.words() * 8,
            EventKind::Map { mapping, .. } => mapping.path.len(),
            _ => 0,
        }
}
