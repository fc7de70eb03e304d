//! Counters on the way from kernel events to batches.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jvmprof_common::abi::{Counter, Event};

use super::Pipeline;
use super::allocation::{AllocationCounts, AllocationProfiler};
use super::jvm_totals::{JvmName, JvmTotals};
use super::labels::TargetCounts;
use super::off_cpu::{OffCpuCounts, OffCpuProfiler, WaitTime};
use super::pauses::{PauseCounts, PauseTracker};
use super::thread_contexts::{ThreadContextCounts, ThreadContexts};
use super::windows::ClockCounts;
use crate::event_type::{EventType, SamplesByEvent};
use crate::process::process_table::ProcessTableCounts;
use crate::profile::model::Frame;
use crate::sampler::SamplerCounts;
use crate::symbolize::{CacheUsage, Outcome, SymbolCounts};

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
    pub outcomes: BTreeMap<Outcome, SamplesByEvent>,
    /// (nanoseconds, runs) of the kernel programs, where the kernel measures them.
    pub kernel_run_time: Option<(u64, u64)>,
    /// (nanoseconds, runs) of the uprobes of allocation, where the kernel measures them.
    pub probe_run_time: Option<(u64, u64)>,
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
            kernel_run_time: self.sampler.run_time(),
            probe_run_time: self.sampler.probe_run_time(),
            processes: self.state.table.len() as u64,
            waiting: self.state.pending.len() as u64,
            caches: self.caches(),
            clocks: self.state.windows.clock_counts(),
            allocation: self.state.allocation.as_ref().map(AllocationProfiler::counts).unwrap_or_default(),
            off_cpu: self.off_cpu_counts(),
            pauses: self.pause_counts(),
            jvms: self.state.jvm_totals.get().clone(),
            thread_contexts: self
                .state
                .thread_contexts
                .as_ref()
                .map(ThreadContexts::counts)
                .unwrap_or_default(),
        }
    }

    /// Returns whether the kernel's rings are being emptied.
    pub fn is_sampling(&self) -> bool {
        self.sampler.is_running()
    }

    /// Returns the error for which the kernel's frames have no names.
    pub fn kernel_error(&self) -> Option<String> {
        self.state.symbolizer.kernel_error()
    }

    /// Returns (nanoseconds, runs) of the kernel programs, where the kernel measures them.
    pub fn kernel_run_time(&self) -> Option<(u64, u64)> {
        self.sampler.run_time()
    }

    pub fn sampler_counts(&self) -> SamplerCounts {
        let mut counts = self.sampler.counts();
        counts.add_taken(Event::OffCpu, self.taken_by_daemon().get(EventType::OffCpu));
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
        let pauses = self.state.pauses.as_ref().map_or(0, PauseTracker::taken);
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
    pub fn wait_times(&self) -> HashMap<u32, WaitTime> {
        self.state.off_cpu.as_ref().map(OffCpuProfiler::wait_times).unwrap_or_default()
    }

    fn off_cpu_counts(&self) -> OffCpuCounts {
        self.state.off_cpu.as_ref().map(OffCpuProfiler::counts).unwrap_or_default()
    }

    fn pause_counts(&self) -> PauseCounts {
        let run_time = self.sampler.pause_run_time();
        let followed = self.state.pauses.as_ref().map(|pauses| pauses.counts(run_time));
        PauseCounts { unknown_sums: self.state.summed_jvms.unknown().clone(), ..followed.unwrap_or_default() }
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
        self.outcomes.get(&Outcome::Whole).map_or(0, |samples| samples.total())
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
    /// each is counted by its reason in [`Self::losses`].
    pub fn lost_before_delivery(&self) -> SamplesByEvent {
        lost(&self.sampler, self.targets.dropped)
    }

    /// Returns all that is missing or incomplete, by name; zeros left out.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let mut losses = self.all_losses();
        losses.retain(|_, count| *count > 0);
        losses
    }

    /// Returns [`Self::losses`] with zeros.
    fn all_losses(&self) -> BTreeMap<String, u64> {
        let sampler = &self.sampler;
        let mut losses = BTreeMap::from([
            ("ring_buffer_full".to_owned(), sampler.get(Counter::RingBufferFull)),
            ("unwinder_unavailable".to_owned(), sampler.get(Counter::UnwinderUnavailable)),
            ("kernel_stack_unreadable".to_owned(), sampler.get(Counter::KernelStackUnreadable)),
            ("filter_full".to_owned(), sampler.get(Counter::FilterFull)),
            ("shed".to_owned(), sampler.shed.total()),
            ("malformed_records".to_owned(), sampler.malformed.total()),
            ("process_events_lost".to_owned(), sampler.records_lost),
            ("malformed_process_events".to_owned(), sampler.malformed_records),
            ("late_events".to_owned(), sampler.late),
            ("unreadable_processes".to_owned(), self.table.unreadable),
            ("mappings_over_limit".to_owned(), self.table.mappings_over_limit),
            ("mapping_resets".to_owned(), self.table.resets),
            ("refused_contexts".to_owned(), self.table.contexts.refused),
            ("torn_contexts".to_owned(), self.table.contexts.torn),
            ("context_attributes_left_out".to_owned(), self.table.contexts.left_out),
            ("unwind_tables_without_room".to_owned(), self.symbols.tables.no_room),
            ("unpublished_processes".to_owned(), self.symbols.tables.unpublished_processes),
            ("refused_unwind_rows".to_owned(), self.symbols.tables.refused_rows),
            ("without_container_metadata".to_owned(), self.targets.without_container_metadata),
            ("dropped_by_rules".to_owned(), self.dropped()),
            ("over_series_limit".to_owned(), self.over_series_limit),
            ("window_full".to_owned(), self.window_full),
            ("other_threads".to_owned(), self.targets.other_threads),
            ("cut_labels".to_owned(), self.targets.cut_labels),
            ("waiting_full".to_owned(), self.waiting_full),
            ("thread_contexts_unreadable".to_owned(), sampler.get(Counter::ThreadContextUnreadable)),
            ("thread_contexts_left_out".to_owned(), self.thread_contexts.left_out),
            ("thread_contexts_without_variable".to_owned(), self.thread_contexts.without_variable),
            ("pauses_lost".to_owned(), self.pauses.lost),
            ("pauses_unnamed".to_owned(), self.pauses.unnamed),
            ("off_cpu_unfollowed_switches".to_owned(), self.off_cpu.unfollowed_switches),
            ("off_cpu_lost_waits".to_owned(), self.off_cpu.lost_waits),
            ("off_cpu_unreported_parts".to_owned(), self.off_cpu.unreported_parts),
            ("off_cpu_unnamed_blockers".to_owned(), self.off_cpu.unnamed_blockers),
            ("off_cpu_jvms_without_blockers".to_owned(), self.off_cpu.jvms_without_blockers),
        ]);
        losses.extend(self.allocation_losses());
        let unseen = self.pauses.unseen_jvms.iter();
        losses.extend(unseen.map(|(reason, count)| (format!("pauses_unseen_jvms: {reason}"), *count)));
        let unknown = self.pauses.unknown_sums.iter();
        losses.extend(unknown.map(|(reason, count)| (format!("pauses_unknown_sums: {reason}"), *count)));
        losses.extend(self.symbols.perf_maps.losses());
        for (outcome, samples) in &self.outcomes {
            if let Outcome::Truncated(reason) = outcome {
                losses.insert(format!("truncated: {reason}"), samples.total());
            }
        }
        let by_reason = [
            ("unusable_files", &self.symbols.unusable_files),
            ("unreadable_jvms", &self.symbols.unreadable_jvms),
            ("unnamed", &self.symbols.unnamed),
        ];
        for (what, counts) in by_reason {
            losses.extend(counts.iter().map(|(reason, count)| (format!("{what}: {reason}"), *count)));
        }
        losses
    }

    fn allocation_losses(&self) -> impl Iterator<Item = (String, u64)> {
        let allocation = &self.allocation;
        let by_name = [
            ("allocation_unknown_classes", allocation.unknown_classes),
            ("allocation_unfollowed_events", allocation.unfollowed + allocation.unfollowed_threads),
            ("allocation_bytes_without_census", allocation.bytes_without_census),
            ("allocation_unclassified_bytes", allocation.unclassified_bytes),
            ("allocation_skipped_censuses", allocation.skipped_censuses),
            ("allocation_tlabs_lost", self.sampler.get(Counter::TlabsLost)),
        ];
        let unseen = allocation.unseen_jvms.iter();
        let unseen = unseen.map(|(reason, count)| (format!("allocation_unseen_jvms: {reason}"), *count));
        let failed = allocation.failed_censuses.iter();
        let failed = failed.map(|(reason, count)| (format!("allocation_failed_censuses: {reason}"), *count));
        by_name.map(|(name, count)| (name.to_owned(), count)).into_iter().chain(unseen).chain(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::event_type::EventType;
    use crate::export::delivery::Losses;

    const DOCUMENT: &str = include_str!("../../../docs/losses.md");

    /// Returns the names in the document's tables of counters.
    fn documented() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut is_table = false;
        for line in DOCUMENT.lines() {
            is_table = line.starts_with("| counted as |") || (is_table && line.starts_with('|'));
            if let Some(name) =
                line.strip_prefix("| `").filter(|_| is_table).and_then(|row| row.split('`').next())
            {
                assert!(names.insert(name.to_owned()), "{name} is documented twice");
            }
        }
        names
    }

    #[test]
    fn the_document_has_each_loss_and_no_other() {
        let mut counts = Counts::default();
        counts.symbols.perf_maps.unusable_dumps.insert("REASON", 1);
        counts.symbols.unusable_files.insert("REASON", 1);
        counts.symbols.unreadable_jvms.insert("REASON", 1);
        counts.symbols.unnamed.insert("REASON", 1);
        counts.allocation.unseen_jvms.insert("REASON", 1);
        counts.allocation.failed_censuses.insert("REASON", 1);
        counts.pauses.unseen_jvms.insert("REASON", 1);
        counts.pauses.unknown_sums.insert("REASON", 1);
        let mut counted: BTreeSet<String> = counts.all_losses().into_keys().collect();
        counted.extend(Losses::<u64>::default().iter().map(|(name, _)| name.to_owned()));
        assert_eq!(documented(), counted);
        // What is cut off has a table of its own.
        let two = SamplesByEvent::of(EventType::Cpu, 1) + SamplesByEvent::of(EventType::Allocation, 1);
        counts.outcomes = BTreeMap::from([(Outcome::Truncated("stack unreadable"), two)]);
        assert_eq!(counts.losses()["truncated: stack unreadable"], 2);
        assert!(DOCUMENT.contains("\n| stack unreadable |"));
    }
}
