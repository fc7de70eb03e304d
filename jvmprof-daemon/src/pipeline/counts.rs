//! Counters on the way from kernel events to batches.

mod loss_reasons;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jvmprof_common::abi::{Counter, Event};
use jvmprof_common::off_cpu::EndedThread;

use super::Pipeline;
use super::allocation::{AllocationCounts, AllocationProfiler, ClassErrors};
use super::jvm_totals::{JvmName, JvmTotals};
use super::labels::TargetCounts;
use super::off_cpu::{OffCpuCounts, OffCpuProfiler, TotalWaitTime};
use super::pauses::{PauseCounts, PauseTracker};
use super::thread_contexts::{ThreadContextCounts, ThreadContexts};
use super::windows::ClockCounts;
use crate::event_type::{EventType, SamplesByEvent};
use crate::own_process::UrgentCpuCounts;
use crate::process::process_table::ProcessTableCounts;
use crate::profile::model::Frame;
use crate::sampler::{ProgramRunTimes, SamplerCounts};
use crate::symbolize::{CacheUsage, StackOutcome, SymbolCounts};

/// Returns the number of samples that the kernel program took and that will be in no batch.
/// `dropped` is that of samples dropped by rules after their arrival.
fn lost(sampler: &SamplerCounts, dropped: SamplesByEvent) -> SamplesByEvent {
    sampler.by_event(Counter::RingBufferFull)
        + sampler.by_event(Counter::UnwinderUnavailable)
        + sampler.shed
        + sampler.malformed
        + dropped
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub sampler: SamplerCounts,
    pub table: ProcessTableCounts,
    pub symbols: SymbolCounts,
    pub targets: TargetCounts,
    /// Samples in the series of samples beyond the limit of series.
    pub over_series_limit: u64,
    /// Samples whose stacks exceeded their window's budget.
    pub window_full: u64,
    /// Samples that could not wait for what their stacks need, since too many did.
    pub waiting_full: u64,
    /// Different stacks that wait for their labels now.
    pub unlabelled_stacks: u64,
    /// Samples that arrived, by the outcome of their stack; also those that rules dropped
    /// afterwards.
    pub outcomes: BTreeMap<StackOutcome, SamplesByEvent>,
    pub run_times: ProgramRunTimes,
    /// Processes in the table now.
    pub processes: u64,
    /// Samples that wait for unwind rows now.
    pub waiting: u64,
    pub caches: Vec<CacheUsage>,
    pub clocks: ClockCounts,
    pub allocation: AllocationCounts,
    pub off_cpu: OffCpuCounts,
    pub pauses: PauseCounts,
    pub thread_contexts: ThreadContextCounts,
    pub urgent_cpu: UrgentCpuCounts,
    /// The time of JVMs that run.
    pub jvms: BTreeMap<JvmName, JvmTotals>,
}

impl Pipeline {
    /// Returns all counters since the start.
    pub fn counts(&mut self) -> Counts {
        Counts {
            sampler: self.sampler_counts(),
            table: self.state.table.counts(),
            symbols: self.state.symbolizer.counts(),
            targets: self.state.targets.counts(),
            over_series_limit: self.state.windows.over_limit(),
            unlabelled_stacks: self.state.windows.unlabelled_stacks() as u64,
            outcomes: self.state.outcomes.clone(),
            window_full: self.state.windows.over_capacity(),
            waiting_full: self.state.pending.over_capacity(),
            run_times: self.run_times(),
            processes: self.state.table.len() as u64,
            waiting: self.state.pending.len() as u64,
            caches: self.caches(),
            clocks: self.state.windows.clock_counts(),
            allocation: self
                .state
                .followers
                .allocation
                .as_ref()
                .map(AllocationProfiler::counts)
                .unwrap_or_default(),
            off_cpu: self.off_cpu_counts(),
            pauses: self.pause_counts(),
            urgent_cpu: self.urgent_cpu.counts(),
            jvms: self.state.jvm_totals.get().clone(),
            thread_contexts: self
                .state
                .thread_contexts
                .as_ref()
                .map(ThreadContexts::counts)
                .unwrap_or_default(),
        }
    }

    /// Returns true if samples are labelled with the requests of their threads.
    pub fn reads_thread_contexts(&self) -> bool {
        self.state.thread_contexts.is_some()
    }

    /// Returns whether the kernel's rings are being emptied.
    pub fn is_sampling(&self) -> bool {
        self.sampler.is_running()
    }

    /// Returns the error for which the kernel's frames have no names.
    pub fn kernel_error(&self) -> Option<String> {
        self.state.symbolizer.kernel_error()
    }

    pub fn run_times(&self) -> ProgramRunTimes {
        self.sampler.run_times()
    }

    pub fn sampler_counts(&self) -> SamplerCounts {
        let mut counts = self.sampler.counts();
        counts.add_unrecorded(Event::OffCpu, self.taken_by_daemon().get(EventType::OffCpu));
        counts
    }

    /// Returns the samples that the daemon took itself, of threads that still waited, those that it
    /// made contentions of, the stacks of the holders of monitors, and the pauses of JVMs.
    pub fn taken_by_daemon(&self) -> SamplesByEvent {
        let inspected = self.state.off_cpu.as_ref().map_or(0, OffCpuProfiler::inspected);
        self.made_by_daemon() + SamplesByEvent::of(EventType::OffCpu, inspected)
    }

    /// Returns the part of them that the kernel program doesn't count as taken.
    fn made_by_daemon(&self) -> SamplesByEvent {
        let locks = self.state.off_cpu.as_ref().map_or(0, OffCpuProfiler::contended);
        let holders = self.state.off_cpu.as_ref().map_or(0, OffCpuProfiler::holder_samples);
        let pauses = self.state.followers.pauses.as_ref().map_or(0, PauseTracker::taken);
        SamplesByEvent::of(EventType::Lock, locks)
            + SamplesByEvent::of(EventType::LockHolder, holders)
            + SamplesByEvent::of(EventType::Pause, pauses)
    }

    /// Returns the number of samples that the kernel program took, and how many of them will be in
    /// no batch: a part of [`Self::counts`] that costs little.
    pub fn taken_and_lost(&self) -> (SamplesByEvent, SamplesByEvent) {
        let sampler = self.sampler_counts();
        let taken = sampler.by_event(Counter::Taken) + self.made_by_daemon();
        (taken, lost(&sampler, self.state.targets.counts().dropped))
    }

    pub fn samples(&self) -> u64 {
        self.state.outcomes.values().copied().sum::<SamplesByEvent>().total()
    }

    /// Returns the stacks of CPU time of the open window with their samples, leaf first. Functions
    /// of native code may not have their names yet.
    pub fn cpu_stacks(&self) -> impl Iterator<Item = (&[Arc<Frame>], u64)> {
        self.state.windows.cpu_stacks()
    }

    /// Returns how long the threads have waited whose switches are seen, by their ids.
    pub fn total_wait_times(&self) -> HashMap<u32, TotalWaitTime> {
        self.state.off_cpu.as_ref().map(OffCpuProfiler::total_wait_times).unwrap_or_default()
    }

    /// Takes the times of the threads that have ended, where
    /// [`thread_ends`](crate::sampler::SamplerOptions::thread_ends) is set.
    pub fn take_ended_threads(&mut self) -> Vec<EndedThread> {
        self.state.off_cpu.as_mut().map(OffCpuProfiler::take_ended_threads).unwrap_or_default()
    }

    /// Returns how well the classes of the last window with allocations are known; `None` where
    /// allocation isn't profiled.
    pub fn class_errors(&self) -> Option<&ClassErrors> {
        self.state.followers.allocation.as_ref().map(AllocationProfiler::errors)
    }

    fn off_cpu_counts(&self) -> OffCpuCounts {
        self.state.off_cpu.as_ref().map(OffCpuProfiler::counts).unwrap_or_default()
    }

    fn pause_counts(&self) -> PauseCounts {
        let followed = self.state.followers.pauses.as_ref().map(PauseTracker::counts);
        PauseCounts {
            unknown_sums: self.state.followers.summed_jvms.unknown().clone(),
            ..followed.unwrap_or_default()
        }
    }

    /// Returns the memory of caches and queues.
    fn caches(&self) -> Vec<CacheUsage> {
        let mut caches = self.state.symbolizer.cache_sizes();
        let table = &self.state.table;
        caches.push(CacheUsage::new("mappings", table.mapping_bytes(), table.max_mapping_bytes()));
        caches.push(self.state.pending.size());
        let (events, max_events) = self.sampler.event_bytes();
        caches.push(CacheUsage::new("queued_events", events, max_events));
        caches.push(CacheUsage::new(
            "queued_samples",
            self.sampler.queued_bytes(),
            self.memory.queued_samples,
        ));
        let stacks = self.state.windows.stack_bytes();
        caches.push(CacheUsage::new("window_stacks", stacks, self.memory.window_stacks));
        caches
    }
}

impl Counts {
    /// Returns the number of samples that arrived.
    pub fn samples(&self) -> u64 {
        self.outcomes.values().copied().sum::<SamplesByEvent>().total()
    }

    pub fn whole(&self) -> u64 {
        self.outcomes.get(&StackOutcome::Whole).map_or(0, |samples| samples.total())
    }

    /// Samples that were taken, those that contentions were made of, stacks of the holders of
    /// monitors, and pauses.
    pub fn taken(&self) -> SamplesByEvent {
        self.sampler.by_event(Counter::Taken)
            + SamplesByEvent::of(EventType::Lock, self.off_cpu.contended)
            + SamplesByEvent::of(EventType::LockHolder, self.off_cpu.holder_samples)
            + SamplesByEvent::of(EventType::Pause, self.pauses.taken)
    }

    /// Returns the number of samples that relabelling dropped, here or in the kernel.
    pub fn dropped(&self) -> u64 {
        self.targets.dropped.total() + self.sampler.get(Counter::Dropped)
    }

    /// Returns the number of samples that the kernel program took and that will be in no batch;
    /// each is counted by its reason in [`Self::losses`] (`loss_reasons`).
    pub fn lost_before_delivery(&self) -> SamplesByEvent {
        lost(&self.sampler, self.targets.dropped)
    }
}
