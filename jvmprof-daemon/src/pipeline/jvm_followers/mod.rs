//! Followers of JVMs beside their samples: allocation, pauses, and the sums that they keep
//! themselves; and the JVMs that aren't followed yet.

mod awaited_jvms;

use std::collections::HashSet;
use std::time::Instant;

use super::State;
use super::allocation::AllocationProfiler;
use super::labels::Targets;
use super::pauses::{PauseTracker, SummedJvms};
use crate::clock::monotonic_ns;
use crate::event_type::EventType;
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::{LabelDecision, NamedStack};
use crate::sampler::{BackgroundSampler, ExecStarts};
use crate::symbolize::Symbolizer;
use awaited_jvms::AwaitedJvms;

/// The reason of a JVM that isn't followed by its end, or that of the recording.
const NOT_READY: &str = "not ready";

/// The parts of the pipeline that follow JVMs, each in its way.
#[derive(Debug, Default)]
pub(super) struct JvmFollowers {
    /// The profiler of allocation; `None` where that is off.
    pub(super) allocation: Option<AllocationProfiler>,
    /// The pauses of JVMs; `None` where that is off.
    pub(super) pauses: Option<PauseTracker>,
    /// The sums of the pauses that aren't followed.
    pub(super) summed_jvms: SummedJvms,
    pub(super) awaited: AwaitedJvms,
    /// When processes started; `None`: nothing is sampled.
    pub(super) exec_starts: Option<ExecStarts>,
}

impl JvmFollowers {
    /// Attaches uprobes that are needed, and reads what is due. To be called some times a second.
    pub(super) fn maintain(&mut self, sampler: &BackgroundSampler) {
        if let Some(allocation) = &mut self.allocation {
            allocation.maintain(sampler);
        }
        if let Some(pauses) = &mut self.pauses {
            pauses.maintain(sampler);
        }
        self.summed_jvms.maintain(monotonic_ns);
    }

    /// Ends the events of all JVMs, before the last ones are read.
    pub(super) fn end_events(&mut self) {
        if let Some(allocation) = &mut self.allocation {
            allocation.end_events();
        }
        if let Some(pauses) = &mut self.pauses {
            pauses.end_events();
        }
        self.summed_jvms.read_all(monotonic_ns);
    }

    /// Begins the next window, and forgets JVMs that have ended, or whose events aren't wanted any
    /// more.
    pub(super) fn begin_window(
        &mut self,
        live: &HashSet<ProcessKey>,
        mut is_wanted: impl FnMut(ProcessKey, EventType) -> bool,
    ) {
        self.awaited.retain(|key| live.contains(&key));
        self.summed_jvms.begin_window(|key| is_wanted(key, EventType::Cpu));
        if let Some(pauses) = &mut self.pauses {
            pauses.begin_window(|key| is_wanted(key, EventType::Cpu));
        }
        if let Some(allocation) = &mut self.allocation {
            allocation.begin_window(|key| is_wanted(key, EventType::Allocation));
        }
    }

    /// Follows a JVM where it isn't followed yet and can be; else it is awaited. `start_ns` is the
    /// start of its process, as recorded with its samples; `is_sampled`: a sample causes it.
    pub(super) fn follow(
        &mut self,
        (process, start_ns): (&Process, u64),
        is_sampled: bool,
        targets: &mut Targets,
        symbolizer: &Symbolizer,
    ) {
        let key = process.key;
        let reads_sums =
            self.pauses.as_ref().is_none_or(|it| it.is_unfollowed(key)) && !self.summed_jvms.is_decided(key);
        let allocation = self.allocation.as_mut().filter(|it| !it.is_decided(key));
        let pauses = self.pauses.as_mut().filter(|it| it.wants(key));
        if (allocation.is_none() && pauses.is_none() && !reads_sums) || process.has_exited() {
            self.awaited.remove(key);
            return;
        }
        let now = Instant::now();
        let awaited = self.awaited.add(process, now);
        if symbolizer.jvm_labels(key).is_none() {
            return;
        }
        let is_last = awaited.is_last_attempt(is_sampled, now);
        if let Some(allocation) = allocation
            && targets.is_wanted(key, EventType::Allocation)
        {
            allocation.follow(process, start_ns, symbolizer.java_heap(key), is_last);
        }
        if !targets.is_wanted(key, EventType::Cpu) {
            return;
        }
        if let Some(pauses) = pauses {
            pauses.follow(process, start_ns, symbolizer.pause_variables(key), is_last);
        }
        let now_ns = monotonic_ns();
        if reads_sums && self.summed_jvms.wants(key, now_ns) {
            let counters = symbolizer.safepoint_counters(key);
            self.summed_jvms.follow(key, process.pid, counters, now_ns);
        }
    }

    /// Labels the stack of a sample of a JVM's CPU time with the pause that it lies in, and keeps
    /// the name of the JVM's series for its pauses.
    pub(super) fn label(
        &mut self,
        key: ProcessKey,
        time_ns: u64,
        stack: Option<&mut NamedStack>,
        labels: &LabelDecision,
    ) {
        if let (Some(pauses), Some(stack)) = (&mut self.pauses, stack) {
            pauses.label(key, time_ns, stack);
        }
        let LabelDecision::Labels(labels) = labels else { return };
        self.summed_jvms.set_name(key, labels);
        if let Some(pauses) = &mut self.pauses {
            pauses.set_name(key, labels);
        }
    }

    /// Counts a JVM that isn't followed by its end, or that of sampling.
    fn count_unfollowed(&mut self, key: ProcessKey, targets: &mut Targets) {
        if let Some(allocation) = &mut self.allocation
            && !allocation.is_decided(key)
            && targets.is_wanted(key, EventType::Allocation)
        {
            allocation.count_unfollowed(NOT_READY);
        }
        if let Some(pauses) = &mut self.pauses
            && pauses.wants(key)
            && targets.is_wanted(key, EventType::Cpu)
        {
            pauses.count_unfollowed(NOT_READY);
        }
    }
}

impl State {
    /// Tries again to follow the JVMs that are awaited, where that is due.
    pub(super) fn follow_awaited_jvms(&mut self) {
        for (key, pid) in self.followers.awaited.take_due(Instant::now()) {
            let process = self.table.get(pid).filter(|process| process.key == key && !process.has_exited());
            let Some((process, start_ns)) = process.and_then(|it| Some((it, it.start_ns()?))) else {
                self.followers.awaited.remove(key);
                continue;
            };
            self.symbolizer.refresh(process, monotonic_ns(), false);
            self.targets.update_jvm(process, self.symbolizer.jvm_labels(key));
            self.followers.follow((process, start_ns), false, &mut self.targets, &self.symbolizer);
        }
    }

    /// Awaits the JVM of a process that has just mapped it, where more than samples are taken of
    /// it: it may sleep from its start, and have none.
    pub(super) fn await_mapped_jvm(&mut self, pid: u32) {
        let JvmFollowers { allocation, pauses, awaited, exec_starts, .. } = &mut self.followers;
        if allocation.is_none() && pauses.is_none() {
            return;
        }
        let Some(start_ns) = exec_starts.as_ref().and_then(|starts| starts.get(pid)) else { return };
        if let Some(process) = self.table.process_of_event(pid, start_ns, monotonic_ns()) {
            awaited.add(process, Instant::now());
        }
    }

    /// Counts the JVM of a process that ends, or is replaced, before it was followed.
    pub(super) fn end_awaited_jvm(&mut self, pid: u32) {
        if let Some(process) = self.table.get(pid)
            && self.followers.awaited.remove(process.key)
        {
            self.followers.count_unfollowed(process.key, &mut self.targets);
        }
    }

    /// Counts the JVMs that aren't followed by the end of sampling.
    pub(super) fn end_awaited_jvms(&mut self) {
        for key in self.followers.awaited.take() {
            self.followers.count_unfollowed(key, &mut self.targets);
        }
    }
}
