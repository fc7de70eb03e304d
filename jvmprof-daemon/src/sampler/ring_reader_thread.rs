//! A thread that reads the rings into a queue with a limit in bytes.
//!
//! Reading a large program's symbols takes a second; the rings hold less than that. With a thread
//! of their own nothing that the consumer of the queue does makes the kernel lose samples.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::counts::{ProgramRunTimes, SamplerCounts};
use super::ebpf::maps::BpfMaps;
use super::ebpf::uprobes::{AttachedProbes, ProbedFunctions};
use super::error::SamplerError;
use super::event::{KernelEvent, KernelEventKind};
use super::event_source::{RECORD_WRITE_DELAY, Sampler};
use super::options::{SampleClock, SamplerOptions};
use super::rings::epoll::RingEpoll;
use super::sampling_period::FrequencyChange;
use crate::clock::monotonic_ns;
use crate::event_type::AtomicSamplesByEvent;
use crate::own_process::thread_priority;

/// Most memory of queued events, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    pub samples: usize,
    /// Process events: some ten thousand take 4 MiB.
    pub events: usize,
}

/// Time without a read of the rings after which their thread counts as hung.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Time without events after which the rings are read less often: a ring that fills up, or an
/// urgent sample, wakes the thread anyway.
const QUIET_AFTER: Duration = Duration::from_secs(2);
const QUIET_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checking which CPUs are online.
const CPU_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A sampler whose rings are read on a thread of its own.
#[derive(Debug)]
pub struct BackgroundSampler {
    shared: Arc<ReaderState>,
    /// Batches of events, one for each read of the rings.
    events: Receiver<Vec<KernelEvent>>,
    /// Rest of the batch that is being consumed.
    batch: std::vec::IntoIter<KernelEvent>,
    epoll: Arc<RingEpoll>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ReaderState {
    sampler: Mutex<Sampler>,
    /// Bytes of queued samples.
    queued_bytes: AtomicUsize,
    /// Bytes of queued process events.
    event_bytes: AtomicUsize,
    /// New mappings that were dropped since the queue was full.
    dropped: AtomicU64,
    is_dropping: AtomicBool,
    limits: QueueLimits,
    shed: AtomicSamplesByEvent,
    /// Time of the last read of the rings, in ns of `CLOCK_MONOTONIC`.
    polled_ns: AtomicU64,
    stop: AtomicBool,
    urgent: Notify,
    arrived: Notify,
    interval: Duration,
}

impl BackgroundSampler {
    /// Starts sampling; for `prepare` see [`Sampler::start`]. The rings are read every `interval`,
    /// or sooner for an urgent sample; `limits` bound the queue.
    ///
    /// # Errors
    /// Returns the errors of [`Sampler::start`], and of starting the thread.
    pub fn start(
        options: &SamplerOptions,
        interval: Duration,
        limits: QueueLimits,
        prepare: impl FnOnce(BpfMaps),
    ) -> Result<Self, SamplerError> {
        let sampler = Sampler::start(options, prepare)?;
        let shared = Arc::new(ReaderState {
            sampler: Mutex::new(sampler),
            queued_bytes: AtomicUsize::new(0),
            event_bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            is_dropping: AtomicBool::new(false),
            limits,
            shed: AtomicSamplesByEvent::default(),
            polled_ns: AtomicU64::new(monotonic_ns()),
            stop: AtomicBool::new(false),
            urgent: Notify::new(),
            arrived: Notify::new(),
            interval,
        });
        let (sender, events) = channel();
        let epoll = shared.sampler().epoll();
        let (of_thread, waited_on) = (Arc::clone(&shared), Arc::clone(&epoll));
        let thread = std::thread::Builder::new()
            .name("rings".to_owned())
            .spawn(move || {
                let _ = thread_priority::raise_priority();
                of_thread.run(&sender, &waited_on);
            })
            .map_err(|source| SamplerError::Thread { source })?;
        Ok(Self { shared, events, epoll, batch: Vec::new().into_iter(), thread: Some(thread) })
    }

    pub fn clock(&self) -> SampleClock {
        self.shared.sampler().clock()
    }

    /// Resolves when urgent events are queued.
    pub async fn urgent(&self) {
        self.shared.urgent.notified().await;
    }

    /// Resolves when events are queued.
    pub async fn arrived(&self) {
        self.shared.arrived.notified().await;
    }

    /// Makes [`Self::urgent`] resolve, since events are left in the queue.
    pub fn notify_events_left(&self) {
        self.shared.urgent.notify_one();
    }

    /// Takes the next event from the queue.
    pub fn take(&mut self) -> Option<KernelEvent> {
        if self.batch.len() == 0 {
            self.batch = self.events.try_recv().ok()?.into_iter();
        }
        let event = self.batch.next()?;
        let is_sample = matches!(event.kind, KernelEventKind::Sample(_));
        let queued = if is_sample { &self.shared.queued_bytes } else { &self.shared.event_bytes };
        queued.fetch_sub(bytes(&event), Ordering::Relaxed);
        Some(event)
    }

    /// Stops sampling; queued events can still be taken.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.epoll.interrupt();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reads the rings panicked: its last samples are lost");
        }
    }

    /// Drops the queued events, and counts their samples as shed. Returns the number of buffers
    /// among them that were to be counted.
    pub fn shed_queued(&mut self) -> u64 {
        let mut tlabs = 0;
        while let Some(event) = self.take() {
            match &event.kind {
                KernelEventKind::Sample(sample) => self.shared.shed.add(sample.event.event_type(), 1),
                KernelEventKind::Tlab(_) => tlabs += 1,
                _ => {}
            }
        }
        tlabs
    }

    /// Returns the counters since the start.
    pub fn counts(&self) -> SamplerCounts {
        let counts = self.shared.sampler().counts();
        SamplerCounts {
            shed: self.shared.shed.load(),
            records_lost: counts.records_lost + self.shared.dropped.load(Ordering::Relaxed),
            ..counts
        }
    }

    /// Attaches to every CPU anew: see [`Sampler::reattach_cpus`].
    pub fn reattach_cpus(&self) -> Result<(), SamplerError> {
        self.shared.sampler().reattach_cpus()
    }

    /// Changes the frequency: see [`Sampler::set_frequency`].
    pub fn set_frequency(&self, frequency: u32) -> (FrequencyChange, Result<(), SamplerError>) {
        self.shared.sampler().set_frequency(frequency)
    }

    /// Returns true if the thread runs and has read the rings lately.
    pub fn is_running(&self) -> bool {
        let silence = monotonic_ns().saturating_sub(self.shared.polled_ns.load(Ordering::Relaxed));
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && silence < MAX_SILENCE.as_nanos() as u64
    }

    /// Returns the bytes of queued samples.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of queued process events, and their limit.
    pub fn event_bytes(&self) -> (usize, usize) {
        (self.shared.event_bytes.load(Ordering::Relaxed), self.shared.limits.events)
    }

    /// Attaches uprobes: see [`Sampler::attach_probes`].
    pub fn attach_probes(
        &self,
        file: &Path,
        functions: &ProbedFunctions,
    ) -> Result<AttachedProbes, SamplerError> {
        self.shared.sampler().attach_probes(file, functions)
    }

    pub fn detach_probes(&self, attached: AttachedProbes) {
        self.shared.sampler().detach_probes(attached);
    }

    pub fn run_times(&self) -> ProgramRunTimes {
        self.shared.sampler().run_times()
    }
}

impl Drop for BackgroundSampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ReaderState {
    fn run(&self, events: &Sender<Vec<KernelEvent>>, epoll: &RingEpoll) {
        let mut next_cpu_check = Instant::now() + CPU_CHECK_INTERVAL;
        let mut last_event = Instant::now();
        let mut urgent_ns = None;
        while !self.stop.load(Ordering::Relaxed) {
            let is_quiet = last_event.elapsed() >= QUIET_AFTER;
            let limit = if is_quiet { QUIET_INTERVAL.max(self.interval) } else { self.interval };
            let remaining = urgent_ns.map(|time_ns| until_complete(time_ns, monotonic_ns()));
            let is_woken = epoll.wait(remaining.map_or(limit, |remaining| remaining.min(limit)));
            let is_urgent = is_woken || remaining.is_some();
            if is_woken {
                // Only events whose records are certainly complete are delivered.
                std::thread::sleep(RECORD_WRITE_DELAY + Duration::from_micros(200));
            }
            let mut sampler = self.sampler();
            let mut batch = Vec::new();
            sampler.poll(&mut |event| self.queue(event, &mut batch));
            if is_woken {
                sampler.expedite();
            }
            urgent_ns = sampler.urgent_ns();
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
                if let Err(error) = sampler.update_cpus() {
                    tracing::error!(%error, "a CPU is not sampled");
                }
            }
        }
        let mut batch = Vec::new();
        self.sampler().stop(&mut |event| self.queue(event, &mut batch));
        let _ = events.send(batch);
    }

    fn queue(&self, event: KernelEvent, batch: &mut Vec<KernelEvent>) {
        let bytes = bytes(&event);
        if let KernelEventKind::Sample(sample) = &event.kind {
            if self.queued_bytes.load(Ordering::Relaxed) + bytes > self.limits.samples {
                self.shed.add(sample.event.event_type(), 1);
                return;
            }
            self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            let is_full = self.event_bytes.load(Ordering::Relaxed) + bytes > self.limits.events;
            // A process that maps code in a loop, or calls the functions of pauses in one, must not
            // displace samples, nor take all memory. Other events are small.
            if is_full && matches!(event.kind, KernelEventKind::Pause(_)) {
                // It counts as lost: the kernel program has counted it as taken.
                return;
            }
            if is_full && matches!(event.kind, KernelEventKind::Map { .. }) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if !self.is_dropping.swap(true, Ordering::Relaxed) {
                    self.push_events_lost(batch);
                }
                return;
            }
            self.event_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        batch.push(event);
    }

    /// Ends dropping once the queue has shrunk: processes that are read from then on have the
    /// mappings that were dropped.
    fn end_dropping(&self, batch: &mut Vec<KernelEvent>) {
        let has_shrunk = self.event_bytes.load(Ordering::Relaxed) < self.limits.events / 2;
        if has_shrunk && self.is_dropping.swap(false, Ordering::Relaxed) {
            self.push_events_lost(batch);
        }
    }

    fn push_events_lost(&self, batch: &mut Vec<KernelEvent>) {
        let event = KernelEvent { time_ns: monotonic_ns(), kind: KernelEventKind::EventsLost };
        self.event_bytes.fetch_add(bytes(&event), Ordering::Relaxed);
        batch.push(event);
    }

    /// Locks the sampler. A thread that panicked has left outdated counters at worst.
    fn sampler(&self) -> MutexGuard<'_, Sampler> {
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how long it takes until the record of an event, and all of earlier ones, are certainly
/// complete, in whole milliseconds: those of `epoll_wait`.
fn until_complete(time_ns: u64, now_ns: u64) -> Duration {
    let complete_ns = time_ns.saturating_add(RECORD_WRITE_DELAY.as_nanos() as u64);
    Duration::from_millis(complete_ns.saturating_sub(now_ns).div_ceil(1_000_000))
}

/// Returns the memory of a queued event.
fn bytes(event: &KernelEvent) -> usize {
    size_of::<KernelEvent>()
        + match &event.kind {
            KernelEventKind::Sample(sample) => sample.words() * 8,
            KernelEventKind::Map { mapping, .. } => mapping.path.len(),
            KernelEventKind::Pause(pause) => size_of_val(&**pause),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_an_event_ends_when_it_is_complete_and_not_before() {
        for (time_ns, now_ns, milliseconds) in [
            (10_000_000, 10_000_000, 2),
            (10_000_000, 10_000_001, 2),
            (10_000_000, 11_000_000, 1),
            (10_000_000, 11_999_999, 1),
            (10_000_000, 12_000_000, 0),
            (10_000_000, 500_000_000, 0),
        ] {
            let until = until_complete(time_ns, now_ns);
            assert_eq!(until, Duration::from_millis(milliseconds), "{now_ns}");
            assert!(now_ns + until.as_nanos() as u64 >= time_ns + RECORD_WRITE_DELAY.as_nanos() as u64);
        }
    }
}
