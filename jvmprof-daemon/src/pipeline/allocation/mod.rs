//! Allocation: which JVMs are followed, what their events and censuses say, and what a window's
//! stacks come to.
//!
//! | file | what |
//! |---|---|
//! | `allocating_jvm` | one JVM: its classes, censuses and totals |
//! | `class_frames` | where the class of an object stands in its stack |
//! | `class_errors` | how well the bytes of each class are known |
//! | `estimate` | from kept events and censuses to objects and bytes by stack |
//! | `allocation_intervals` | how often events are kept and buffers chosen for a census |
//! | `second_phase` | which of the chosen buffers are counted |
//!
//! `docs/allocation.md` explains why the estimate is right.

mod allocating_jvm;
mod allocation_intervals;
mod class_errors;
mod class_frames;
mod estimate;
mod second_phase;
#[cfg(test)]
mod xorshift;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jvmprof_common::allocation::{AllocationRecord, TlabRecord};
use nix::time::{ClockId, clock_gettime};

use super::probed_files::{NoProbes, ProbeSet, ProbedFiles, REFUSED};
use crate::hotspot::LiveMemory;
use crate::hotspot::java_heap::HeapLayout;
use crate::hotspot::probed_functions::find_allocation_functions;
use crate::native::debuginfod::Debuginfod;
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::{NamedStack, SampleWeight};
use crate::profile::model::{Frame, SampleLabels};
use crate::sampler::{AllocationFunctions, AllocationMaps, BackgroundSampler, ProbedFunctions};
use allocating_jvm::{AllocatingJvm, ChosenBuffer};
use allocation_intervals::AllocationIntervals;
pub use class_errors::{ClassError, ClassErrors};
use class_frames::{ClassFrames, marker};
use estimate::{StratumTable, event_bytes};

/// The settings of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationOptions {
    /// The mean distance of the events that are kept, in bytes that a thread allocates.
    pub interval: u64,
    /// Kept events a second of one JVM, at most, and a quarter of those of all JVMs together:
    /// beyond, the distance grows.
    pub max_events: u32,
    /// The time that censuses may take, in millionths of one CPU's.
    pub census_cpu_ppm: u32,
    /// Where the class of the object stands.
    pub class: ClassPlace,
}

/// The place of the object's class in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassPlace {
    /// It is the stack's leaf.
    Leaf,
    /// It is the sample's label [`CLASS_LABEL`].
    Label,
    /// Nowhere.
    Off,
}

/// The label of a sample with the class of its objects.
pub const CLASS_LABEL: &str = "class";

impl Default for AllocationOptions {
    fn default() -> Self {
        Self { interval: 512 << 10, max_events: 250, census_cpu_ppm: 20_000, class: ClassPlace::Leaf }
    }
}

/// Counts of allocation since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationCounts {
    /// JVMs whose allocations can't be seen, by reason.
    pub unfollowed_jvms: BTreeMap<&'static str, u64>,
    /// JVMs, or libjvm files, in which ends of threads can't be seen, by reason: what threads have
    /// allocated last isn't counted.
    pub unseen_thread_ends: BTreeMap<&'static str, u64>,
    /// Events whose class is unknown.
    pub unknown_classes: u64,
    /// Events of JVMs that aren't followed any more.
    pub unfollowed: u64,
    /// Events of threads that the kernel program could not follow.
    pub unfollowed_threads: u64,
    /// Bytes that the kept events stand for, summed up, and their squares.
    pub event_bytes: u128,
    pub event_bytes_squared: u128,
    /// Buffers that were counted, those that were screened only, and those that could not be
    /// counted or screened, by reason.
    pub censuses: u64,
    pub screened_buffers: u64,
    pub failed_censuses: BTreeMap<&'static str, u64>,
    /// Buffers that were chosen, and not counted since that would have taken too much time, or the
    /// profile has ended.
    pub skipped_censuses: u64,
    /// Bytes that JVMs say they have allocated.
    pub bytes: u64,
    /// Those of them that are in no total by class, since there were too many classes.
    pub unclassified_bytes: u64,
    /// Those of them whose classes are estimated by those of other buffers, since a collection cut
    /// theirs, or by events, since there was no census.
    pub bytes_without_census: u64,
}

impl AllocationCounts {
    /// Returns how many events of equal weight would say as much as those that were kept (Kish's
    /// effective sample size).
    pub fn effective_events(&self) -> u64 {
        let squared = self.event_bytes as f64 * self.event_bytes as f64;
        (squared / (self.event_bytes_squared as f64).max(1.0)) as u64
    }
}

/// Follows the allocations of JVMs.
#[derive(Debug)]
pub(super) struct AllocationProfiler {
    options: AllocationOptions,
    maps: AllocationMaps,
    files: ProbedFiles<AllocationFunctions>,
    jvms: HashMap<ProcessKey, AllocatingJvm>,
    by_pid: HashMap<u32, ProcessKey>,
    strata: StratumTable,
    /// What was counted in this window of classes without any stack.
    without_stack: Vec<WithoutStack>,
    /// How well classes are known, of JVMs whose window has ended, and of the last whole window.
    open_errors: ClassErrors,
    errors: ClassErrors,
    classes: ClassFrames,
    not_sampled: Arc<Frame>,
    intervals: AllocationIntervals,
    counts: AllocationCounts,
    /// When it began, in ns of `CLOCK_BOOTTIME`.
    since_ns: u64,
}

const PROBES: ProbeSet<AllocationFunctions> = ProbeSet {
    of: "allocations",
    find: find_allocation_functions,
    functions: |functions| ProbedFunctions::from(*functions),
};

/// Objects of which no event was kept: whose they are, their class, and their weight.
type WithoutStack = (ProcessKey, NamedStack, SampleWeight);

impl AllocationProfiler {
    pub(super) fn new(
        options: AllocationOptions,
        maps: AllocationMaps,
        debuginfod: Option<Arc<Debuginfod>>,
    ) -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        Self {
            options,
            maps,
            files: ProbedFiles::new(PROBES, debuginfod),
            jvms: HashMap::new(),
            by_pid: HashMap::new(),
            strata: StratumTable::default(),
            without_stack: Vec::new(),
            open_errors: ClassErrors::default(),
            errors: ClassErrors::default(),
            classes: ClassFrames::new(options.class),
            not_sampled: marker("[no allocation site sampled]"),
            intervals: AllocationIntervals::new(&options),
            counts: AllocationCounts::default(),
            since_ns: now.as_nanos() as u64,
        }
    }

    pub(super) const fn options(&self) -> &AllocationOptions {
        &self.options
    }

    pub(super) fn counts(&self) -> AllocationCounts {
        self.counts.clone()
    }

    /// Returns how well the classes of the last window are known.
    pub(super) const fn errors(&self) -> &ClassErrors {
        &self.errors
    }

    /// Returns true if a JVM is followed, or it is known that it can't be.
    pub(super) fn is_decided(&self, key: ProcessKey) -> bool {
        self.jvms.contains_key(&key)
    }

    pub(super) fn count_unfollowed(&mut self, reason: &'static str) {
        *self.counts.unfollowed_jvms.entry(reason).or_default() += 1;
    }

    /// Begins to follow a JVM, if it can be by now. `heap`: how its objects look; `None` if it
    /// doesn't say. `is_last`: it won't say more than it does.
    pub(super) fn follow(
        &mut self,
        process: &Process,
        start_ns: u64,
        heap: Option<(HeapLayout, LiveMemory)>,
        is_last: bool,
    ) {
        if heap.is_none() && !is_last {
            return;
        }
        let probed = match heap.as_ref().map(|_| self.files.request(process)) {
            Some(Ok((file, functions))) => {
                if functions.thread_end.is_none() {
                    *self.counts.unseen_thread_ends.entry("no symbol").or_default() += 1;
                }
                Ok(file)
            }
            Some(Err(NoProbes::Pending)) => return,
            Some(Err(NoProbes::Impossible(reason))) => Err(reason),
            None => Err("no heap layout"),
        };
        // The program before an exec, or an earlier process: what it has allocated counts.
        if let Some(earlier) = self.by_pid.get(&process.pid).copied() {
            self.close(earlier);
            self.forget(earlier);
        }
        self.by_pid.insert(process.pid, process.key);
        let mut jvm = AllocatingJvm::new(process.pid, start_ns, self.since_ns);
        if let Some((layout, memory)) = heap {
            jvm.set_heap(layout, memory);
        }
        match probed {
            Ok(file) => {
                jvm.file = Some(file);
                if let Err(error) = jvm.set_target(&mut self.maps, &self.intervals) {
                    tracing::warn!(pid = process.pid, %error, "a JVM's allocations aren't followed");
                    self.count_unfollowed("too many JVMs");
                }
            }
            Err(reason) => {
                tracing::warn!(pid = process.pid, reason, "a JVM's allocations can't be seen");
                self.count_unfollowed(reason);
            }
        }
        self.jvms.insert(process.key, jvm);
    }

    /// Attaches what is needed, detaches what isn't any more, and adjusts how much is kept. To be
    /// called some times a second.
    pub(super) fn maintain(&mut self, sampler: &BackgroundSampler) {
        for reason in self.files.attach_and_detach(sampler) {
            *self.counts.unseen_thread_ends.entry(reason).or_default() += 1;
        }
        for jvm in self.jvms.values_mut() {
            if let Some(file) = jvm.file.take_if(|file| self.files.is_refused(*file)) {
                self.files.release(file);
                self.maps.remove_target(jvm.pid, jvm.start_ns);
                *self.counts.unfollowed_jvms.entry(REFUSED).or_default() += 1;
            }
        }
        if let Some(elapsed) = self.intervals.due(Instant::now()) {
            let counted = self.maps.counted().collect::<Vec<_>>();
            self.intervals.divide(self.jvms.values().map(AllocatingJvm::kept), &self.options);
            let mut given_up = 0;
            for jvm in self.jvms.values_mut() {
                jvm.read_counted_classes(&counted);
                jvm.add_given_up(&self.maps);
                given_up += jvm.take_given_up();
            }
            self.intervals.adjust_census(elapsed, given_up);
            for jvm in self.jvms.values_mut() {
                jvm.adjust(&mut self.maps, &self.intervals, &self.options);
            }
        }
    }

    /// Ends the events of all JVMs, before the last ones are read: uprobes stay until the kernel
    /// has taken them away, and what they emitted then would be in no profile.
    pub(super) fn end_events(&mut self) {
        for pid in self.by_pid.keys() {
            self.maps.end_events(*pid);
        }
    }

    /// Forgets a thread that has ended.
    pub(super) fn thread_ended(&mut self, pid: u32, tid: u32) {
        if self.by_pid.contains_key(&pid) {
            self.maps.remove_thread(tid);
        }
    }

    /// Counts the objects in a buffer that was given up.
    pub(super) fn count_tlab(&mut self, tlab: &TlabRecord) {
        let key = self.by_pid.get(&tlab.pid);
        let jvm = key.and_then(|key| self.jvms.get_mut(key)).filter(|jvm| jvm.start_ns == tlab.start_ns);
        let Some(jvm) = jvm else {
            *self.counts.failed_censuses.entry("not followed").or_default() += 1;
            return;
        };
        if self.intervals.is_exhausted() {
            self.counts.skipped_censuses += 1;
            return;
        }
        let began = thread_cpu_time();
        let chosen = jvm.count_tlab(tlab, &mut self.strata);
        match chosen {
            Ok(ChosenBuffer::Counted) => self.counts.censuses += 1,
            Ok(ChosenBuffer::Screened) => self.counts.screened_buffers += 1,
            Err(reason) => *self.counts.failed_censuses.entry(reason.as_str()).or_default() += 1,
        }
        let took = thread_cpu_time().saturating_sub(began);
        tracing::trace!(?took, used = tlab.used, ?chosen, "a census");
        self.intervals.charge(took, tlab.uncounted());
    }

    /// Counts buffers that were chosen and are not counted, since the profile has ended.
    pub(super) fn count_shed(&mut self, tlabs: u64) {
        self.counts.skipped_censuses += tlabs;
    }

    /// Turns the stack of an event into that of its object, and says what it counts for: once, or
    /// twice.
    pub(super) fn weigh(
        &mut self,
        key: ProcessKey,
        record: &AllocationRecord,
        stack: NamedStack,
    ) -> ((NamedStack, SampleWeight), Option<(NamedStack, SampleWeight)>) {
        let jvm = self.jvms.get_mut(&key);
        self.counts.unfollowed += u64::from(jvm.is_none());
        let class = jvm.and_then(|jvm| jvm.class_of(record));
        self.counts.unknown_classes += u64::from(class.is_none());
        let (weight, second) = self.strata.weigh(key, class.as_deref().map(|class| &class.name), record);
        let bytes = u128::from(event_bytes(record));
        self.counts.event_bytes += bytes;
        self.counts.event_bytes_squared += bytes * bytes;
        let stack = self.classes.place(class.as_deref(), java_stack(stack));
        let second = second.map(|weight| (stack.clone(), weight));
        ((stack, weight), second)
    }

    /// Ends the window: takes what JVMs have allocated, and returns what was counted of classes
    /// without any stack.
    pub(super) fn end_window(&mut self) -> Vec<WithoutStack> {
        let keys: Vec<ProcessKey> = self.jvms.keys().copied().collect();
        keys.into_iter().for_each(|key| self.close(key));
        self.errors = std::mem::take(&mut self.open_errors);
        std::mem::take(&mut self.without_stack)
    }

    /// Estimates what a JVM has allocated in this window.
    fn close(&mut self, key: ProcessKey) {
        let Some(jvm) = self.jvms.get_mut(&key) else { return };
        let counted = self.maps.counted().collect::<Vec<_>>();
        let totals = jvm.take_totals(&self.maps, &counted, &mut self.strata, key);
        self.counts.bytes += totals.inside + totals.outside;
        self.counts.unfollowed_threads += totals.unfollowed_events;
        self.counts.unclassified_bytes += totals.unclassified;
        let estimated = self.strata.estimate(key, &totals, jvm.take_census(&self.maps));
        self.counts.bytes_without_census += estimated.bytes_without_census;
        for (class, error) in estimated.errors {
            self.open_errors.add(class, error);
        }
        for (name, weight) in estimated.without_stack {
            let frames = Arc::from([Arc::clone(&self.not_sampled)]);
            let stack = NamedStack { frames, labels: SampleLabels::default(), pending: false };
            self.without_stack.push((key, self.classes.place_named(&name, stack), weight));
        }
    }

    /// Returns the objects and bytes that a stack's events stand for.
    pub(super) fn estimate(&mut self, key: ProcessKey, weight: SampleWeight) -> (u64, u64) {
        self.strata.share(key, weight)
    }

    /// Begins the next window, and forgets JVMs that have ended, or aren't wanted any more.
    pub(super) fn begin_window(&mut self, mut is_wanted: impl FnMut(ProcessKey) -> bool) {
        self.strata.clear();
        self.classes.limit();
        let unwanted: Vec<ProcessKey> = self.jvms.keys().copied().filter(|key| !is_wanted(*key)).collect();
        for key in unwanted {
            self.forget(key);
        }
    }

    /// The mean distance of kept events now, the largest of all JVMs.
    pub(super) fn interval(&self) -> u64 {
        self.jvms.values().map(AllocatingJvm::interval).max().unwrap_or(self.options.interval)
    }

    fn forget(&mut self, key: ProcessKey) {
        let Some(jvm) = self.jvms.remove(&key) else { return };
        if self.by_pid.get(&jvm.pid) == Some(&key) {
            self.by_pid.remove(&jvm.pid);
            self.maps.remove_target(jvm.pid, jvm.start_ns);
        }
        if let Some(file) = jvm.file {
            self.files.release(file);
        }
    }
}

fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Returns the stack from its first Java method on: what the JVM does to allocate is left out. A
/// stack without one stays as it is.
fn java_stack(stack: NamedStack) -> NamedStack {
    let is_method = |frame: &Arc<Frame>| frame.lines.iter().any(|line| line.mode.is_some());
    match stack.frames.iter().position(is_method) {
        None | Some(0) => stack,
        Some(first) => NamedStack { frames: stack.frames[first..].into(), ..stack },
    }
}
