//! A thread of its own between the rings and those who make sense of events.
//!
//! Reading a large program's symbols takes a second; the rings hold less than that. So they are emptied here, into a
//! queue with a limit in bytes, and nothing that the reader of the queue does makes the kernel lose samples.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Clock, Event, EventKind, Sampler, SamplerCounts, SamplerError, SamplerOptions};

/// CPUs come and go seldom.
const CPU_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A sampler whose rings are emptied in the background.
#[derive(Debug)]
pub struct BackgroundSampler {
    shared: Arc<Shared>,
    events: Receiver<Event>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    sampler: Mutex<Sampler>,
    queued_bytes: AtomicUsize,
    max_queued_bytes: usize,
    shed: AtomicU64,
    stop: AtomicBool,
    interval: Duration,
}

impl BackgroundSampler {
    /// Starts sampling. The rings are emptied every `interval`; the queue holds `max_queued_bytes` of samples.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn start(
        options: &SamplerOptions,
        interval: Duration,
        max_queued_bytes: usize,
    ) -> Result<Self, SamplerError> {
        let shared = Arc::new(Shared {
            sampler: Mutex::new(Sampler::start(options)?),
            queued_bytes: AtomicUsize::new(0),
            max_queued_bytes,
            shed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            interval,
        });
        let (sender, events) = channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("rings".to_owned())
            .spawn(move || of_thread.run(&sender))
            .map_err(|source| SamplerError::Thread { source })?;
        Ok(Self { shared, events, thread: Some(thread) })
    }

    pub fn clock(&self) -> Clock {
        self.shared.sampler().clock()
    }

    /// The next event, if one is waiting.
    pub fn next(&self) -> Option<Event> {
        let event = self.events.try_recv().ok()?;
        self.shared.queued_bytes.fetch_sub(bytes(&event), Ordering::Relaxed);
        Some(event)
    }

    /// Stops sampling; what was sampled can still be taken.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that empties the rings broke down: its last samples are lost");
            }
        }
    }

    /// Counters since the start.
    pub fn counts(&self) -> SamplerCounts {
        SamplerCounts { shed: self.shared.shed.load(Ordering::Relaxed), ..self.shared.sampler().counts() }
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
    fn run(&self, events: &Sender<Event>) {
        let mut next_cpu_check = Instant::now() + CPU_CHECK_INTERVAL;
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(self.interval);
            let mut sampler = self.sampler();
            sampler.poll(&mut |event| self.queue(event, events));
            if Instant::now() >= next_cpu_check {
                next_cpu_check = Instant::now() + CPU_CHECK_INTERVAL;
                if let Err(error) = sampler.follow_cpus() {
                    tracing::error!(%error, "a CPU is not sampled");
                }
            }
        }
        self.sampler().stop(&mut |event| self.queue(event, events));
    }

    fn queue(&self, event: Event, events: &Sender<Event>) {
        let bytes = bytes(&event);
        // Without process events all later samples would be misread: only samples are shed.
        let is_sample = matches!(event.kind, EventKind::Sample(_));
        if is_sample && self.queued_bytes.load(Ordering::Relaxed) + bytes > self.max_queued_bytes {
            self.shed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The receiver only goes away with the profiler.
        let _ = events.send(event);
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
