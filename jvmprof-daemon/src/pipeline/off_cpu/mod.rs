//! Time off the CPU: what kept waits count for, and what their threads waited for.
//!
//! | file | what |
//! |---|---|
//! | `blockers` | the monitors and blockers that threads of JVMs wait for |
//! | `cause_classifier` | the cause of a wait, by the rules of `cause_rules` |
//! | `contentions` | the waits that are for locks |
//! | `holder_leaves` | what the stacks of `holder_stacks` look like in a profile |
//! | `holder_stacks` | where threads were that had a monitor for which others waited |
//! | `idle_waits` | which waits are idle, by the rules of `idle_rules.toml` and of users |
//! | `monitor_holders` | who has a monitor |
//! | `wait_interval` | how often waits are kept |
//! | `ongoing_waits` | waits that go on when a window ends |
//! | `virtual_threads` | what virtual threads wait for that aren't mounted |
//! | `wait_labels` | stacks and labels that name the cause |
//! | `weights` | what kept waits stand for |
//! | `total_wait_times` | how long each thread has waited in all, and the times of ended ones |
//!
//! A wait's cause is named when its window ends: only then the functions of its stack have their
//! names. `docs/offcpu.md` explains why the sums are right.

mod blockers;
mod cause;
mod cause_classifier;
mod cause_rules;
mod contentions;
mod holder_leaves;
mod holder_stacks;
mod idle_waits;
mod monitor_holders;
mod ongoing_waits;
mod total_wait_times;
mod virtual_threads;
mod wait_interval;
mod wait_labels;
mod weights;

use std::collections::HashSet;
use std::time::Instant;

use jvmprof_common::blocker::BlockerKind;
use jvmprof_common::off_cpu::{
    EndedThread, OffCpuSettings, WaitRecord, WaitTotals, WaitingThread, is_runnable,
};

use crate::clock::monotonic_ns;
use crate::event_type::EventType;
use crate::hotspot::JvmBlockers;
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::{NamedStack, SampleWeight};
use crate::profile::model::Batch;
use crate::sampler::{OffCpuMaps, SamplerError, StackSample};
use blockers::{Blockers, NamedBlocker};
pub use cause::Cause;
use cause_classifier::{Evidence, evidence};
pub(super) use contentions::CONTENTION_PERIOD;
use holder_leaves::HolderLeaves;
use holder_stacks::TimeSpan;
pub use idle_waits::IdleRule;
use idle_waits::IdleRules;
use ongoing_waits::{FirstSwitch, OngoingWaits};
pub use total_wait_times::TotalWaitTime;
pub use virtual_threads::{VirtualThreadCensus, virtual_wait};
use wait_interval::WaitInterval;
use wait_labels::WaitLabels;
pub use wait_labels::{WAIT_LABEL, blocker_of, holder_method_of, holder_of, is_idle, wait_of};
pub(super) use weights::estimate;
use weights::{WaitWeight, probability};

/// The settings of waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCpuOptions {
    /// Shorter waits aren't profiled, ns.
    pub least_ns: u64,
    /// The mean distance of the points in waiting time that keep a wait, ns.
    pub interval: u64,
    /// Kept waits a second: beyond, the distance grows.
    pub max_events: u32,
    /// Threads that still wait when a window ends whose stacks are taken then, about and at most,
    /// if they have waited equally long.
    pub max_inspections: u64,
    /// Contentions of locks are a profile of their own, too.
    pub locks: bool,
    /// Rules of users for idle waits.
    pub idle: Vec<IdleRule>,
}

impl Default for OffCpuOptions {
    fn default() -> Self {
        Self {
            least_ns: 1_000_000,
            interval: 10_000_000,
            max_events: 1000,
            max_inspections: 200,
            locks: false,
            idle: Vec::new(),
        }
    }
}

/// Counts of waits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCpuCounts {
    /// Waits that have ended, kept or not, and their time.
    pub waits: u64,
    pub waited_ns: u64,
    /// Those of them that were too short for a profile.
    pub short_waits: u64,
    pub short_ns: u64,
    /// Switches of threads that could not be followed, since too many are.
    pub unfollowed_switches: u64,
    /// Kept waits whose stacks could not be taken, and waits whose ends weren't seen.
    pub lost_waits: u64,
    /// Parts of waits that go on, of threads that can't be inspected or are too many.
    pub unreported_parts: u64,
    /// Waits of a JVM's threads for a monitor or blocker whose class isn't known.
    pub unnamed_blockers: u64,
    /// Samples of waits that contentions were made of.
    pub contended: u64,
    /// Stacks of holders of monitors to which waits were attributed.
    pub holder_samples: u64,
    /// JVMs that don't say what their threads wait for.
    pub jvms_without_blockers: u64,
}

/// Profiles waits.
#[derive(Debug)]
pub(super) struct OffCpuProfiler {
    options: OffCpuOptions,
    maps: OffCpuMaps,
    wait_interval: WaitInterval,
    frames: WaitLabels,
    idle: IdleRules,
    blockers: Blockers,
    ongoing_waits: OngoingWaits,
    /// Samples that were taken of threads that waited on.
    inspected: u64,
    /// Samples that contentions were made of.
    contended: u64,
    holder_leaves: HolderLeaves,
    /// Stacks of holders to which waits were attributed.
    holder_samples: u64,
    /// Threads that have ended, where their times are wanted.
    ended_threads: Vec<EndedThread>,
    first_switch: FirstSwitch,
}

/// A stack with what it counts for.
pub(super) type WeighedStack = (NamedStack, SampleWeight);

/// A wait with its weight.
#[derive(Debug)]
pub(super) struct WeighedWait {
    /// The time in which the thread waited for something, or, if it could run, for a CPU.
    pub(super) own: WeighedStack,
    /// The time in which it could run and didn't, where that is a part and long enough.
    pub(super) runnable: Option<WeighedStack>,
    /// The time of `own` by the stack of the thread that had the monitor which this one waited for,
    /// if it is known: a sample of [`EventType::LockHolder`].
    pub(super) holder: Option<WeighedStack>,
}

impl OffCpuProfiler {
    /// Begins to keep waits.
    ///
    /// # Errors
    /// The kernel refused the settings.
    pub(super) fn start(options: OffCpuOptions, maps: OffCpuMaps) -> Result<Self, SamplerError> {
        let (wait_interval, locks) = (WaitInterval::new(&options), options.locks);
        let idle = IdleRules::with(&options.idle);
        let mut profiler = Self {
            options,
            maps,
            wait_interval,
            frames: WaitLabels::default(),
            idle,
            blockers: Blockers::new(locks),
            ongoing_waits: OngoingWaits::default(),
            inspected: 0,
            contended: 0,
            holder_leaves: HolderLeaves::default(),
            holder_samples: 0,
            ended_threads: Vec::new(),
            first_switch: FirstSwitch::now(),
        };
        profiler.set_interval(profiler.wait_interval.interval())?;
        Ok(profiler)
    }

    pub(super) const fn options(&self) -> &OffCpuOptions {
        &self.options
    }

    /// Returns the mean distance of points now, ns.
    pub(super) const fn interval(&self) -> u64 {
        self.wait_interval.interval()
    }

    fn set_interval(&mut self, interval: u64) -> Result<(), SamplerError> {
        self.maps.set(OffCpuSettings { least_ns: self.options.least_ns, interval })
    }

    /// Switches are seen from now on.
    pub(super) fn begin(&mut self) {
        self.first_switch = FirstSwitch::now();
    }

    /// Adjusts how much is kept. To be called some times a second.
    pub(super) fn maintain(&mut self) {
        if self.first_switch.is_recent() {
            self.ongoing_waits.adopt(&mut self.maps, self.first_switch);
        }
        self.read_ended_threads();
        if let Some(interval) = self.wait_interval.adjust(Instant::now())
            && let Err(error) = self.set_interval(interval)
        {
            tracing::warn!(%error, "the distance of kept waits stays as it is");
        }
    }

    /// Chooses among the threads that wait now those whose samples [`Self::next_waiting`] takes.
    pub(super) fn begin_inspection(&mut self) {
        let is_chosen = |part_ns: u64, interval: u64| rand::random::<f64>() < probability(part_ns, interval);
        let limits = [self.wait_interval.interval(), self.options.max_inspections];
        let now = monotonic_ns();
        self.ongoing_waits.begin_inspection(&mut self.maps, limits, self.first_switch, now, is_chosen);
    }

    /// Returns the sample of the next thread that still waits. `read_context` reads the context
    /// that such a thread has published.
    pub(super) fn next_waiting(
        &mut self,
        read_context: impl Fn(&WaitingThread) -> Vec<u64>,
    ) -> Option<StackSample> {
        let sample = self.ongoing_waits.next_sample(&mut self.maps, &mut self.blockers, read_context);
        self.inspected += u64::from(sample.is_some());
        sample
    }

    /// Returns how many samples [`Self::next_waiting`] has taken.
    pub(super) const fn inspected(&self) -> u64 {
        self.inspected
    }

    /// Returns what a wait of this thread counts for. `reported_ns`: the time of the sample.
    pub(super) fn weigh(
        &mut self,
        key: ProcessKey,
        tid: u32,
        record: &WaitRecord,
        reported_ns: u64,
        stack: NamedStack,
    ) -> WeighedWait {
        self.wait_interval.count();
        let weighed = WaitWeight::of(record);
        let ((own, part), runnable) = parts(record, self.options.least_ns);
        let runnable = runnable.map(|(evidence, part)| {
            // The wait is counted once.
            let weight = SampleWeight { stratum: 0, events: 0, count: 0, value: weighed.value(part) };
            (self.frames.mark(evidence, NamedBlocker::default(), stack.clone()), weight)
        });
        let (count, value) = (weighed.count(), weighed.value(part));
        let weight = SampleWeight { stratum: 0, events: 1, count, value };
        let span = TimeSpan::of_wait(record, reported_ns);
        let began_ns = self.ongoing_waits.began_ns(tid, record, span.from_ns);
        let (blocker, holder) = self.blockers.name(key, record, span, began_ns, monotonic_ns());
        let is_contention = blocker.kind == BlockerKind::Entered as u64 && !own.is_runnable();
        let holder = holder.filter(|_| self.options.locks && is_contention);
        let holder = holder.map(|stack| (self.holder_leaves.named(&stack, &blocker), weight));
        WeighedWait { own: (self.frames.mark(own, blocker, stack), weight), runnable, holder }
    }

    /// Counts a stack of a holder that has gone into its window.
    pub(super) const fn count_holder(&mut self) {
        self.holder_samples += 1;
    }

    /// Returns how many stacks of holders there were.
    pub(super) const fn holder_samples(&self) -> u64 {
        self.holder_samples
    }

    /// Keeps the whole stack of a sample whose thread has a monitor for which another one waits.
    pub(super) fn keep_holder(&mut self, key: ProcessKey, sample: &StackSample, stack: &NamedStack) {
        self.blockers.keep_holder(key, sample, stack);
    }

    /// Has what a JVM's threads wait for read from now on, if the JVM says where that is: `find`
    /// asks it.
    pub(super) fn follow_blockers(
        &mut self,
        process: &Process,
        start_ns: u64,
        now_ns: u64,
        find: impl FnOnce(ProcessKey) -> Option<JvmBlockers>,
    ) {
        if self.blockers.wants(process.key, now_ns) {
            self.blockers.follow(process, start_ns, find(process.key), &mut self.maps, now_ns);
        }
    }

    /// Adds the contentions among the waits of a window's profiles, where they are wanted.
    pub(super) fn add_contentions(&mut self, batches: &mut Vec<Batch>) {
        let is_of_waits = |batch: &&Batch| self.options.locks && batch.event == EventType::OffCpu;
        let found: Vec<Batch> = batches.iter().filter(is_of_waits).map(contentions::contentions).collect();
        self.contended += found.iter().map(Batch::samples).sum::<u64>();
        batches.extend(found);
    }

    /// Returns of how many samples [`Self::add_contentions`] made contentions.
    pub(super) const fn contended(&self) -> u64 {
        self.contended
    }

    /// Forgets what was known of a process that has replaced its program.
    pub(super) fn exec(&mut self, pid: u32) {
        self.blockers.exec(pid, &mut self.maps);
    }

    /// Forgets processes that have ended, and the labels of the last window.
    pub(super) fn begin_window(&mut self, live: &HashSet<ProcessKey>) {
        self.blockers.begin_window(live, &mut self.maps, monotonic_ns());
        self.frames = WaitLabels::default();
        self.holder_leaves = HolderLeaves::default();
    }

    /// Names the causes of a window's waits, in frames and labels.
    pub(super) fn name_causes(&mut self, batch: &mut Batch) {
        self.frames.name_causes(batch, &self.idle);
    }

    pub(super) fn counts(&self) -> OffCpuCounts {
        let WaitTotals { long_waits, long_ns, short_waits, short_ns, unfollowed_switches, lost_waits } =
            self.maps.totals();
        OffCpuCounts {
            waits: long_waits + short_waits,
            waited_ns: long_ns + short_ns,
            short_waits,
            short_ns,
            unfollowed_switches,
            lost_waits,
            unreported_parts: self.ongoing_waits.unreported(),
            unnamed_blockers: self.blockers.unnamed(),
            contended: self.contended,
            holder_samples: self.holder_samples,
            jvms_without_blockers: self.blockers.silent_jvms(),
        }
    }
}

/// A part of a wait: why, and for how long, ns.
type WaitPart = (Evidence, u64);

/// Divides a wait into its parts. Of a thread that waited for something, the time at its end in
/// which it could run and didn't is one, if it is long enough. Of one that could run all the time
/// it is the time in which its control group was out of quota.
fn parts(record: &WaitRecord, least_ns: u64) -> (WaitPart, Option<WaitPart>) {
    let (waited, least_ns) = (record.waited_ns.max(1), least_ns.max(1));
    if !is_runnable(record.state as u32) {
        let queued = Some(record.queued_ns).filter(|queued| (least_ns..waited).contains(queued));
        let own = waited - queued.unwrap_or(0);
        return ((evidence(record), own), queued.map(|queued| (Evidence::Runnable, queued)));
    }
    let throttled = record.throttled_ns.min(waited);
    if throttled < least_ns {
        return ((Evidence::Runnable, waited), None);
    }
    let rest = Some(waited - throttled).filter(|rest| *rest > 0);
    ((Evidence::OutOfQuota, throttled), rest.map(|rest| (Evidence::Runnable, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_divided_into_what_came_first_and_the_time_for_a_cpu() {
        let woken = |queued_ns| WaitRecord {
            waited_ns: 100,
            queued_ns,
            state: 1,
            system_call: 7,
            ..WaitRecord::default()
        };
        let own = |ns| (Evidence::SystemCall(7), ns);
        assert_eq!(parts(&woken(9), 10), (own(100), None));
        assert_eq!(parts(&woken(10), 10), (own(90), Some((Evidence::Runnable, 10))));
        assert_eq!(parts(&woken(100), 10), (own(100), None));
        assert_eq!(parts(&woken(0), 0), (own(100), None));
    }

    #[test]
    fn a_wait_for_a_cpu_is_divided_by_the_quota_of_the_control_group() {
        let preempted = |throttled_ns| WaitRecord { waited_ns: 100, throttled_ns, ..WaitRecord::default() };
        let quota = |ns| (Evidence::OutOfQuota, ns);
        assert_eq!(parts(&preempted(0), 0), ((Evidence::Runnable, 100), None));
        assert_eq!(parts(&preempted(9), 10), ((Evidence::Runnable, 100), None));
        assert_eq!(parts(&preempted(99), 10), (quota(99), Some((Evidence::Runnable, 1))));
        assert_eq!(parts(&preempted(120), 10), (quota(100), None));
    }
}
