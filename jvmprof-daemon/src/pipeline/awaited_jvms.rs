//! JVMs that have been sampled and aren't followed yet: they are starting, or a debug file is being
//! fetched. Each is tried again by time, since one that sleeps from its start has no further
//! samples.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::State;
use super::allocation::AllocationProfiler;
use super::labels::Targets;
use super::pauses::{PauseTracker, SummedJvms};
use crate::clock::monotonic_ns;
use crate::event_type::EventType;
use crate::process::{Process, ProcessKey};
use crate::symbolize::Symbolizer;

/// Samples of a JVM that can be read after which it is followed without what it doesn't say: while
/// it starts it says less.
const LAST_SAMPLE: u32 = 20;
/// Time for the same, where there are no samples.
const LAST_ATTEMPT: Duration = Duration::from_secs(5);
/// Intervals of attempts, each until that age.
const INTERVALS: [(Duration, Duration); 2] = [
    (Duration::from_secs(2), Duration::from_millis(50)),
    (Duration::from_secs(60), Duration::from_millis(500)),
];
const LAST_INTERVAL: Duration = Duration::from_secs(5);
/// The reason of a JVM that isn't followed by its end, or that of the recording.
pub(super) const NOT_READY: &str = "not ready";

/// JVMs that aren't followed yet.
#[derive(Debug, Default)]
pub(super) struct AwaitedJvms(HashMap<ProcessKey, AwaitedJvm>);

#[derive(Debug)]
struct AwaitedJvm {
    pid: u32,
    since: Instant,
    /// Time since when it can be read.
    readable_since: Option<Instant>,
    /// Samples since then.
    samples: u32,
    next: Instant,
}

impl AwaitedJvms {
    /// Awaits a JVM, if it isn't awaited yet.
    fn add(&mut self, process: &Process, now: Instant) -> &mut AwaitedJvm {
        self.0.entry(process.key).or_insert_with(|| AwaitedJvm {
            pid: process.pid,
            since: now,
            readable_since: None,
            samples: 0,
            next: now + INTERVALS[0].1,
        })
    }

    /// Returns the time of the next attempt.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|jvm| jvm.next).min()
    }

    /// Returns the JVMs that are to be tried now, by their process ids.
    fn take_due(&mut self, now: Instant) -> Vec<(ProcessKey, u32)> {
        let due = self.0.iter_mut().filter(|(_, jvm)| jvm.next <= now);
        due.map(|(key, jvm)| {
            let age = now - jvm.since;
            let interval = INTERVALS.iter().find(|(until, _)| age < *until);
            jvm.next = now + interval.map_or(LAST_INTERVAL, |(_, interval)| *interval);
            (*key, jvm.pid)
        })
        .collect()
    }

    /// Forgets JVMs that have ended, or aren't wanted any more.
    pub(super) fn retain(&mut self, mut is_wanted: impl FnMut(ProcessKey) -> bool) {
        self.0.retain(|key, _| is_wanted(*key));
    }
}

impl AwaitedJvm {
    /// Records an attempt on a JVM that can be read. Returns true if it won't say more than it does
    /// now.
    fn is_last_attempt(&mut self, is_sampled: bool, now: Instant) -> bool {
        self.samples += u32::from(is_sampled);
        let since = *self.readable_since.get_or_insert(now);
        self.samples >= LAST_SAMPLE || now - since >= LAST_ATTEMPT
    }
}

/// What follows JVMs, and what it asks.
pub(super) struct JvmFollowers<'a> {
    pub(super) awaited: &'a mut AwaitedJvms,
    pub(super) targets: &'a mut Targets,
    pub(super) symbolizer: &'a Symbolizer,
    pub(super) allocation: Option<&'a mut AllocationProfiler>,
    pub(super) pauses: Option<&'a mut PauseTracker>,
    pub(super) summed_jvms: &'a mut SummedJvms,
}

impl JvmFollowers<'_> {
    /// Follows a JVM where it isn't followed yet and can be; else it is awaited. `start_ns` is the
    /// start of its process, as recorded with its samples; `is_sampled`: a sample causes it.
    pub(super) fn follow(self, process: &Process, start_ns: u64, is_sampled: bool) {
        let key = process.key;
        let reads_sums =
            self.pauses.as_ref().is_none_or(|it| it.is_unseen(key)) && !self.summed_jvms.is_decided(key);
        let allocation = self.allocation.filter(|it| !it.is_decided(key));
        let pauses = self.pauses.filter(|it| it.wants(key));
        if (allocation.is_none() && pauses.is_none() && !reads_sums) || process.has_exited() {
            if !self.awaited.0.is_empty() {
                self.awaited.0.remove(&key);
            }
            return;
        }
        let now = Instant::now();
        let awaited = self.awaited.add(process, now);
        if self.symbolizer.jvm_labels(key).is_none() {
            return;
        }
        let is_last = awaited.is_last_attempt(is_sampled, now);
        if let Some(allocation) = allocation
            && self.targets.is_wanted(key, EventType::Allocation)
        {
            allocation.follow(process, start_ns, self.symbolizer.java_heap(key), is_last);
        }
        if !self.targets.is_wanted(key, EventType::Cpu) {
            return;
        }
        if let Some(pauses) = pauses {
            pauses.follow(process, start_ns, self.symbolizer.pause_variables(key), is_last);
        }
        let now_ns = monotonic_ns();
        if reads_sums && self.summed_jvms.wants(key, now_ns) {
            let counters = self.symbolizer.safepoint_counters(key);
            self.summed_jvms.follow(key, process.pid, counters, now_ns);
        }
    }
}

impl State {
    /// Tries again to follow the JVMs that are awaited, where that is due.
    pub(super) fn follow_awaited_jvms(&mut self) {
        for (key, pid) in self.awaited_jvms.take_due(Instant::now()) {
            let process = self.table.get(pid).filter(|process| process.key == key && !process.has_exited());
            let Some((process, start_ns)) = process.and_then(|it| Some((it, it.start_ns()?))) else {
                self.awaited_jvms.0.remove(&key);
                continue;
            };
            self.symbolizer.refresh(process, monotonic_ns(), false);
            self.targets.update_jvm(process, self.symbolizer.jvm_labels(key));
            JvmFollowers {
                awaited: &mut self.awaited_jvms,
                targets: &mut self.targets,
                symbolizer: &self.symbolizer,
                allocation: self.allocation.as_mut(),
                pauses: self.pauses.as_mut(),
                summed_jvms: &mut self.summed_jvms,
            }
            .follow(process, start_ns, false);
        }
    }

    /// Awaits the JVM of a process that has just mapped it, where more than samples are taken of
    /// it: it may sleep from its start, and have none.
    pub(super) fn await_mapped_jvm(&mut self, pid: u32) {
        if self.allocation.is_none() && self.pauses.is_none() {
            return;
        }
        let Some(start_ns) = self.exec_starts.as_ref().and_then(|starts| starts.get(pid)) else { return };
        if let Some(process) = self.table.process_of_event(pid, start_ns, monotonic_ns()) {
            self.awaited_jvms.add(process, Instant::now());
        }
    }

    /// Counts the JVM of a process that ends, or is replaced, before it was followed.
    pub(super) fn end_awaited_jvm(&mut self, pid: u32) {
        if let Some(process) = self.table.get(pid)
            && self.awaited_jvms.0.remove(&process.key).is_some()
        {
            self.count_unfollowed(process.key);
        }
    }

    /// Counts the JVMs that aren't followed by the end of sampling.
    pub(super) fn end_awaited_jvms(&mut self) {
        for key in std::mem::take(&mut self.awaited_jvms.0).into_keys() {
            self.count_unfollowed(key);
        }
    }

    fn count_unfollowed(&mut self, key: ProcessKey) {
        if let Some(allocation) = &mut self.allocation
            && !allocation.is_decided(key)
            && self.targets.is_wanted(key, EventType::Allocation)
        {
            allocation.count_unseen(NOT_READY);
        }
        if let Some(pauses) = &mut self.pauses
            && pauses.wants(key)
            && self.targets.is_wanted(key, EventType::Cpu)
        {
            pauses.count_unseen(NOT_READY);
        }
    }
}
