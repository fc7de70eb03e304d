//! The pipeline from kernel events to batches: the one loop that `record` and `daemon` share.
//!
//! # The way of a sample
//!
//! [`Pipeline::poll`] takes events in the order of their times, and `kernel_events` dispatches
//! them: what happens to processes goes to the process table. A sample passes these stages, in
//! `State::process_sample`:
//!
//! | stage | owner | takes | gives |
//! |---|---|---|---|
//! | identify | [`ProcessTable::process_of_sample`], [`Symbolizer::identify`] | a [`StackSample`] | its process, an [`IdentifiedSample`](crate::symbolize::IdentifiedSample) |
//! | complete | [`IdentifiedSample::complete`](crate::symbolize::IdentifiedSample::complete) | a [`Deadline`] | a [`CompletedStack`](crate::symbolize::CompletedStack), or it is pending |
//! | name | [`CompletedStack::name`](crate::symbolize::CompletedStack::name) | | a [`SymbolizedStack`] |
//! | label | [`labels`] | the process, its JVM, the thread | a [`LabelDecision`] |
//! | weigh | `weighed_sample`, [`allocation`], [`off_cpu`] | the event, the stack | a `WeighedSample`: stacks and what they stand for |
//! | aggregate | `windows`, [`crate::profile::aggregate`] | a `WeighedSample`, its labels | counted |
//!
//! A sample whose stack needs what isn't there yet waits in `pending_samples`, with the deadline
//! [`Deadline::Open`]; it passes the same stages again with another deadline when that has
//! arrived, when its process is about to change, or when too many wait. [`Pipeline::flush`] ends a
//! window and gives its profiles.

pub mod allocation;
mod counts;
mod jvm_followers;
pub mod jvm_totals;
mod kernel_events;
pub mod labels;
pub mod off_cpu;
mod options;
pub mod pauses;
mod pending_samples;
mod probed_files;
pub mod thread_contexts;
mod thread_local_variables;
mod weighed_sample;
mod windows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::clock::monotonic_ns;
use crate::event_type::{EventType, SamplesByEvent};
use crate::own_process::{UrgentCpu, UrgentThread};
use crate::process::{Process, ProcessKey, ProcessTable};
use crate::profile::aggregate::LabelDecision;
use crate::sampler::{
    BackgroundSampler, BpfMaps, QueueLimits, SampleClock, SamplingPeriods, StackSample, period_ns,
};
use crate::symbolize::{Completion, Deadline, StackOutcome, SymbolizedStack, Symbolizer};
use allocation::AllocationProfiler;
pub use counts::Counts;
use jvm_followers::JvmFollowers;
use jvm_totals::AllJvmTotals;
use labels::thread_kinds::ThreadKinds;
use labels::{LabelKey, LabelOptions, Targets};
use off_cpu::{CONTENTION_PERIOD, OffCpuProfiler};
pub use options::{MemoryLimits, PipelineError, PipelineOptions};
use pauses::{JvmPauses, JvmStops, PauseTracker};
use pending_samples::PendingSamples;
use thread_contexts::ThreadContexts;
use weighed_sample::{WeighedSample, aggregate};
use windows::Windows;
pub use windows::{ClockCounts, WindowProfiles};

/// Runs the sampler and processes its events.
#[derive(Debug)]
pub struct Pipeline {
    sampler: BackgroundSampler,
    state: State,
    memory: MemoryLimits,
    /// The priority of the thread that calls [`Pipeline::poll`].
    priority: UrgentThread,
    urgent_cpu: UrgentCpu,
}

#[derive(Debug)]
struct State {
    table: ProcessTable,
    symbolizer: Symbolizer,
    windows: Windows<LabelKey>,
    periods: SamplingPeriods,
    targets: Targets,
    outcomes: BTreeMap<StackOutcome, SamplesByEvent>,
    /// Time when a process was sampled for the first time.
    newest: Instant,
    /// Time when native functions were named last.
    named: Instant,
    pending: PendingSamples,
    /// Time when pending samples were last checked.
    tried: Instant,
    /// True if samples don't wait for labels any more.
    release: bool,
    followers: JvmFollowers,
    /// The profiler of waits; `None` where that is off.
    off_cpu: Option<OffCpuProfiler>,
    /// The labels of requests; `None` where they are off.
    thread_contexts: Option<ThreadContexts>,
    thread_kinds: ThreadKinds,
    jvm_totals: AllJvmTotals,
}

/// Longest interval between two reads of the rings. A sample whose code or memory must be read
/// while it is there wakes their reader.
const RING_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of checking for unwind rows that samples wait for.
const ROWS_INTERVAL: Duration = Duration::from_millis(200);
/// Time without new processes after which native functions are named.
const NAMING_DELAY: Duration = Duration::from_millis(1500);
/// Interval of naming them: many names of one file cost little more than one.
const NAMING_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of different stacks of past windows that wait for labels; further ones are
/// delivered as they are.
const MAX_UNLABELLED_STACKS: usize = 65_536;

impl Pipeline {
    /// Starts sampling.
    ///
    /// # Errors
    /// See [`PipelineError`].
    pub fn start(options: &PipelineOptions) -> Result<Self, PipelineError> {
        let memory = &options.memory;
        let mut state = State {
            table: ProcessTable::new(memory.mappings),
            symbolizer: Symbolizer::new(&memory.symbols)
                .with_java_frame_types(options.java_frame_types)
                .with_native(options.native.clone()),
            windows: Windows::new(
                period_ns(options.sampler.frequency),
                options.labels.limit(),
                memory.window_stacks,
            ),
            periods: SamplingPeriods::new(options.sampler.frequency),
            targets: Targets::start(options.labels.clone(), options.events(), options.containers.clone())?,
            outcomes: BTreeMap::new(),
            newest: Instant::now(),
            named: Instant::now(),
            pending: PendingSamples::new(memory.waiting_samples),
            tried: Instant::now(),
            release: false,
            followers: JvmFollowers::default(),
            off_cpu: None,
            thread_contexts: None,
            thread_kinds: ThreadKinds::default(),
            jvm_totals: AllJvmTotals::default(),
        };
        let urgent_cpu = UrgentCpu::new(options.urgent_percent);
        let mut prepared = Ok(());
        let prepare = |maps: BpfMaps| prepared = state.take_maps(maps, options, &urgent_cpu);
        let limits = QueueLimits { samples: memory.queued_samples, events: memory.queued_events };
        let sampler = BackgroundSampler::start(&options.sampler, RING_INTERVAL, limits, prepare)?;
        prepared?;
        let priority = UrgentThread::start(urgent_cpu.clone());
        state.windows.begin();
        if let Some(off_cpu) = &mut state.off_cpu {
            off_cpu.begin();
        }
        Ok(Self { sampler, state, memory: *memory, priority, urgent_cpu })
    }

    /// Resolves when it is time to call [`Self::poll`] before the next turn: a sampled process may
    /// be gone soon.
    pub async fn urgent(&self) {
        self.sampler.urgent().await;
    }

    /// Says whether the time of each sample of CPU time is kept from now on, of as many as there is
    /// memory for.
    pub fn keep_times(&mut self, are_kept: bool) {
        self.state.windows.keep_times(are_kept);
    }

    pub fn clock(&self) -> SampleClock {
        self.sampler.clock()
    }

    /// Resolves when anything has happened.
    pub async fn arrived(&self) {
        self.sampler.arrived().await;
    }

    /// Returns the time when [`Self::poll`] should be called although nothing has happened.
    pub fn due(&self) -> Option<Instant> {
        let rows = self.state.symbolizer.is_loading().then(|| Instant::now() + ROWS_INTERVAL);
        [self.state.targets.due(), self.state.followers.awaited.due(), rows].into_iter().flatten().min()
    }

    /// Processes events since the last call, for about `limit` at most. To be called some times a
    /// second while it returns true; else there is nothing to do until [`Self::arrived`] or
    /// [`Self::due`].
    pub fn poll(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        self.priority.update();
        self.state.targets.refresh();
        self.state.take_rows(None);
        self.state.followers.maintain(&self.sampler);
        if let Some(off_cpu) = &mut self.state.off_cpu {
            off_cpu.maintain();
        }
        self.state.follow_awaited_jvms();
        let mut has_happened = false;
        while let Some(event) = self.sampler.take() {
            self.state.handle_kernel_event(event);
            has_happened = true;
            if Instant::now() >= end {
                self.sampler.notify_events_left();
                return true;
            }
        }
        if self.state.pending.len() > 0 && self.state.tried.elapsed() >= ROWS_INTERVAL {
            self.state.resolve_ready();
        }
        if self.state.newest.elapsed() >= NAMING_DELAY && self.state.named.elapsed() >= NAMING_INTERVAL {
            self.state.name_new();
        }
        has_happened || self.state.symbolizer.has_work()
    }

    /// Names new frames, unless a request is pending for them.
    pub fn name_new(&mut self) {
        self.state.name_new();
    }

    /// Stops sampling and processes the rest, for about `patience` at most: events that are left
    /// then are shed.
    pub fn stop(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        self.state.inspect_waiting();
        self.state.end_awaited_jvms();
        self.state.followers.end_events();
        self.sampler.stop();
        self.state.windows.end_sampling();
        while Instant::now() < end
            && let Some(event) = self.sampler.take()
        {
            self.state.handle_kernel_event(event);
        }
        let tlabs = self.sampler.shed_queued();
        self.state.followers.allocation.iter_mut().for_each(|it| it.count_shed(tlabs));
        self.state.take_rows(Some(end));
        self.state.complete_with_jitdumps();
        for sample in self.state.pending.take(|_, _| true) {
            self.state.process_sample(sample, Deadline::Expired);
        }
        self.state.release = true;
    }

    /// Keeps each pause of a JVM from now on, or what is known of them.
    pub fn keep_pauses(&mut self) {
        self.state.followers.summed_jvms.keep_ended();
        if let Some(pauses) = &mut self.state.followers.pauses {
            pauses.keep_pauses();
        }
    }

    /// Ends following the pauses of JVMs, and returns them; `None` where they aren't followed.
    pub fn take_pauses(&mut self) -> Option<Vec<JvmPauses>> {
        self.state.followers.pauses.as_mut().map(PauseTracker::take)
    }

    /// Ends reading how long JVMs stop whose pauses aren't followed, and returns it.
    pub fn take_stops(&mut self) -> Vec<JvmStops> {
        self.state.followers.summed_jvms.take()
    }

    /// Returns when the window that is open began, in ns of `CLOCK_MONOTONIC`.
    pub fn window_began_ns(&self) -> u64 {
        self.state.windows.began_ns()
    }

    /// Sets the frequency of samples on each CPU. The next [`Self::flush`] ends the window as of
    /// now and leaves later samples to the one after it: call it when pending events have arrived,
    /// half a second later.
    pub fn set_frequency(&mut self, frequency: u32) {
        let (change, result) = self.sampler.set_frequency(frequency);
        self.state.periods.change(change);
        self.state.windows.change_period(period_ns(frequency));
        if let Err(error) = result {
            tracing::error!(%error, frequency, "a CPU is not sampled until it can be");
        }
    }

    /// Reads the host's clocks. Returns true if it was suspended: the window should end. Its CPUs
    /// are sampled anew.
    pub fn check_clocks(&mut self) -> bool {
        let was_suspended = self.state.windows.check_clocks();
        if was_suspended {
            if let Err(error) = self.sampler.reattach_cpus() {
                tracing::error!(%error, "a CPU is not sampled until it can be");
            }
            // What processes have done on these CPUs since the resume was in no event.
            self.state.table.invalidate_all();
        }
        was_suspended
    }

    /// Sets other labels of series. To be called after [`Self::flush_all`], so that no window mixes
    /// the two.
    pub fn set_labels(&mut self, labels: LabelOptions) {
        self.state.windows.set_limit(labels.limit());
        self.state.targets.set_options(labels);
    }

    /// Returns the processes that are known.
    pub fn pids(&self) -> HashSet<u32> {
        self.state.table.iter().map(|process| process.pid).collect()
    }
}

impl State {
    /// Gives the maps of the kernel programs to the parts that use them, and fills them with the
    /// processes that are to be sampled, before the first sample.
    fn take_maps(
        &mut self,
        mut maps: BpfMaps,
        options: &PipelineOptions,
        urgent_cpu: &UrgentCpu,
    ) -> Result<(), PipelineError> {
        if let Some(table) = maps.dropped_processes.take() {
            self.targets.use_table(table);
        }
        self.followers.exec_starts = maps.exec_starts.take();
        let debuginfod = &options.native.debuginfod;
        let allocation = maps.allocation.take();
        self.followers.allocation =
            allocation.map(|maps| AllocationProfiler::new(options.allocation, maps, debuginfod.clone()));
        let pauses = maps.pauses.take();
        self.followers.pauses = pauses.map(|map| PauseTracker::new(map, debuginfod.clone()));
        let contexts = maps.thread_contexts.take();
        self.thread_contexts = contexts.map(|map| ThreadContexts::new(options.thread_context.clone(), map));
        let waits = maps.off_cpu.take();
        let off_cpu = waits.map(|maps| OffCpuProfiler::start(options.off_cpu.clone(), maps));
        self.off_cpu = off_cpu.transpose()?;
        self.symbolizer.fill(maps, urgent_cpu.clone()).map_err(PipelineError::RowLoader)?;
        self.discover(options.sampler.pids.as_deref());
        Ok(())
    }

    fn name_new(&mut self) {
        let by_key: HashMap<ProcessKey, &Process> =
            self.table.iter_with_replaced().map(|process| (process.key, process)).collect();
        self.symbolizer.name_new(|key| by_key.get(&key).copied());
        self.named = Instant::now();
    }

    /// Processes a sample. One that has to wait pushes out those for which there is no memory any
    /// more.
    fn sample(&mut self, sample: StackSample) {
        if let Some((key, sample)) = self.process_sample(sample, Deadline::Open) {
            for sample in self.pending.push(key, sample) {
                self.process_sample(sample, Deadline::OverCapacity);
            }
        }
    }

    /// Takes samples of threads that wait and don't come back.
    fn inspect_waiting(&mut self) {
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.begin_inspection();
        }
        while let Some(off_cpu) = &mut self.off_cpu {
            let contexts = self.thread_contexts.as_ref();
            let read = |thread: &_| contexts.map(|it| it.read_record(thread)).unwrap_or_default();
            let Some(sample) = off_cpu.next_waiting(read) else { break };
            self.sample(sample);
        }
    }

    /// Processes a sample: it is identified, completed, named, labelled and aggregated. Returns it
    /// if its stack is pending.
    fn process_sample(
        &mut self,
        sample: StackSample,
        deadline: Deadline,
    ) -> Option<(ProcessKey, StackSample)> {
        let header = &sample.header;
        let event = sample.event.event_type();
        let now = monotonic_ns();
        let mut cached = None;
        let process =
            self.table.process_of_sample(header.pid, header.start_ns, &sample.comm(), now, |process| {
                cached = self.symbolizer.cached(process, &sample);
                cached.is_none().then(|| sample.addresses())
            });
        let is_new = !self.targets.contains(process.key);
        if self.targets.drop_before_symbolizing(process, header.start_ns, event) {
            *self.outcomes.entry(StackOutcome::NotProfiled).or_default() += SamplesByEvent::of(event, 1);
            return None;
        }
        if is_new {
            self.newest = Instant::now();
        }
        let identified = self.symbolizer.identify(process, &sample, cached, now);
        let Completion::Completed(completed) = identified.complete(deadline) else {
            return Some((process.key, sample));
        };
        let SymbolizedStack { stack, outcome } = completed.name();
        *self.outcomes.entry(outcome).or_default() += SamplesByEvent::of(event, 1);
        let label_key = self.targets.label_key(process.key, &sample);
        let jvm = self.symbolizer.jvm_labels(process.key);
        let labels = self.targets.evaluate_rules(process, jvm, label_key, header.start_ns);
        if let Some(off_cpu) = &mut self.off_cpu {
            if jvm.is_some() && self.targets.is_wanted(process.key, EventType::OffCpu) {
                let read = |key| self.symbolizer.java_blockers(key);
                off_cpu.follow_blockers(process, header.start_ns, now, read);
            }
            if header.held_monitor != 0 && outcome == StackOutcome::Whole {
                off_cpu.keep_holder(process.key, &sample, &stack);
            }
        }
        let is_jvm = jvm.is_some();
        if is_jvm || (is_new && process.is_jvm()) {
            let of = (process, header.start_ns);
            self.followers.follow(of, true, &mut self.targets, &self.symbolizer);
        }
        let period_ns = self.periods.period_at(header.cpu, header.time_ns);
        let profilers = (&mut self.followers, self.off_cpu.as_mut());
        let mut weighed = WeighedSample::of(&sample, process.key, stack, period_ns, profilers)?;
        if is_jvm && event == EventType::Cpu {
            self.followers.label(process.key, header.time_ns, weighed.own_stack(), &labels);
        }
        let mut has_new_key = false;
        if let Some(contexts) = &mut self.thread_contexts {
            if let Some(variable) = contexts.follow(process, header.start_ns, now) {
                self.symbolizer.set_context_variable(process.key, variable);
            }
            if !matches!(labels, LabelDecision::Dropped) {
                has_new_key = contexts.label(process, sample.thread_context(), weighed.stacks());
            }
        }
        let window = self.windows.aggregator_at(event, weighed.period, header.time_ns);
        if !weighed.aggregate(window, &labels, label_key) {
            return None;
        }
        if let (Some(holder), Some(off_cpu)) = (weighed.holder, &mut self.off_cpu) {
            off_cpu.count_holder();
            let label_key = self.targets.process_label_key(process.key, EventType::LockHolder);
            let jvm = self.symbolizer.jvm_labels(process.key);
            let labels = self.targets.evaluate_rules(process, jvm, label_key, header.start_ns);
            let window = self.windows.aggregator(EventType::LockHolder, CONTENTION_PERIOD);
            aggregate(window, &labels, label_key, holder);
        }
        if has_new_key {
            let pid = process.pid;
            self.table.expect_context(pid, now);
        }
        None
    }
}
