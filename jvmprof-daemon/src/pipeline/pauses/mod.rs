//! Pauses of JVMs: which JVMs are followed, each of their pauses, and the samples that fall in one.
//!
//! | file | what |
//! |---|---|
//! | `pausing_jvm` | one JVM: its pauses and their sums |
//! | `stopped_label` | the label of samples that fall in a pause |
//! | `summed_jvms` | JVMs whose pauses aren't followed: the sums that they keep themselves |
//! | `window_pauses` | the pauses of one JVM in the open window, for its profile |
//!
//! `docs/pauses.md` explains what counts as a pause.

mod pausing_jvm;
mod stopped_label;
mod summed_jvms;
#[cfg(test)]
mod tests;
mod window_pauses;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jvmprof_common::pause::{JvmPauseState, PauseRecord};

use super::jvm_totals::AllJvmTotals;
use super::probed_files::{NoProbes, ProbeSet, ProbedFiles, REFUSED};
use crate::clock::monotonic_ns;
use crate::hotspot::{PauseSymbols, PauseVariables, find_pause_symbols};
use crate::native::debuginfod::Debuginfod;
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::{NamedStack, SampleWeight};
use crate::profile::model::{ExecutionMode, Frame, FrameKind, LabelSet};
use crate::sampler::{BackgroundSampler, PauseMap, ProbedFunctions, SamplerError};
use pausing_jvm::PausingJvm;
pub use pausing_jvm::{JvmPauses, Pause};
pub use stopped_label::STOPPED_LABEL;
use stopped_label::StoppedLabels;
pub use summed_jvms::JvmStops;
pub(super) use summed_jvms::SummedJvms;
use window_pauses::{UnixClock, WindowPauses};

/// JVMs whose pauses are kept for a recording, at most.
const MAX_ENDED: usize = 1024;
/// Time after a JVM's end in which samples of it may still come, ns.
const LATE_SAMPLES_NS: u64 = 10_000_000_000;
/// Pauses that are kept for a recording, or for the open window, at most; further ones are in the
/// sums only.
const MAX_KEPT: usize = 20_000;
/// The reason why the pauses of a JVM can't be seen, or are left out, beyond these.
const TOO_MANY: &str = "too many JVMs";

const PROBES: ProbeSet<PauseSymbols> = ProbeSet {
    of: "pauses",
    find: find_pause_symbols,
    functions: |symbols| ProbedFunctions::from(symbols.functions),
};

/// Counts of pauses since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseCounts {
    /// JVMs whose pauses can't be seen, by reason.
    pub unfollowed_jvms: BTreeMap<&'static str, u64>,
    /// JVMs whose pauses aren't followed and of which it isn't known how long they stop, by reason.
    pub unknown_sums: BTreeMap<&'static str, u64>,
    /// Pauses of which the kernel program said nothing, since the ring buffer was full, or whose
    /// record was dropped on its way.
    pub lost: u64,
    /// Pauses that are in the profiles of windows.
    pub taken: u64,
    /// Pauses whose operation isn't known.
    pub unnamed: u64,
}

/// The JVMs that the kernel programs follow, by their process ids.
pub(super) trait PausedJvms {
    fn insert(&mut self, pid: u32, jvm: JvmPauseState) -> Result<(), SamplerError>;
    fn get(&self, pid: u32) -> Option<JvmPauseState>;
    fn remove(&mut self, pid: u32);
}

impl PausedJvms for PauseMap {
    fn insert(&mut self, pid: u32, jvm: JvmPauseState) -> Result<(), SamplerError> {
        Self::insert(self, pid, jvm)
    }

    fn get(&self, pid: u32) -> Option<JvmPauseState> {
        Self::get(self, pid)
    }

    fn remove(&mut self, pid: u32) {
        Self::remove(self, pid);
    }
}

/// Follows the pauses of JVMs.
#[derive(Debug)]
pub(super) struct PauseTracker<M = PauseMap> {
    map: M,
    files: ProbedFiles<PauseSymbols>,
    jvms: HashMap<ProcessKey, PausingJvm>,
    /// Of JVMs that can't be followed: they aren't tried again.
    unfollowed: HashSet<ProcessKey>,
    labels: StoppedLabels,
    /// Pauses that a recording may still keep; `None`: they go into the profiles of windows.
    to_keep: Option<usize>,
    /// The pauses of the open window, for its profiles.
    window: HashMap<ProcessKey, WindowPauses>,
    /// Those of them that are kept one by one.
    apart: usize,
    ended: Vec<JvmPauses>,
    counts: PauseCounts,
}

impl<M: PausedJvms> PauseTracker<M> {
    pub(super) fn new(map: M, debuginfod: Option<Arc<Debuginfod>>) -> Self {
        Self {
            map,
            files: ProbedFiles::new(PROBES, debuginfod),
            jvms: HashMap::new(),
            unfollowed: HashSet::new(),
            labels: StoppedLabels::default(),
            to_keep: None,
            window: HashMap::new(),
            apart: 0,
            ended: Vec::new(),
            counts: PauseCounts::default(),
        }
    }

    /// Keeps the pauses of each JVM from now on for [`Self::take`]: no profiles have them.
    pub(super) fn keep_pauses(&mut self) {
        self.to_keep = Some(MAX_KEPT);
    }

    pub(super) fn counts(&self) -> PauseCounts {
        let known = |jvm: &PausingJvm| jvm.last().copied().or_else(|| state_of(&self.map, jvm));
        let lost: u64 = self.jvms.values().filter_map(|jvm| Some(known(jvm)?.lost)).sum();
        PauseCounts { lost: self.counts.lost + lost, ..self.counts.clone() }
    }

    /// Returns true if it is worth asking a JVM where it says why it stops.
    pub(super) fn wants(&self, key: ProcessKey) -> bool {
        !self.jvms.contains_key(&key) && !self.unfollowed.contains(&key)
    }

    /// Returns true if the pauses of this JVM can't be seen.
    pub(super) fn is_unfollowed(&self, key: ProcessKey) -> bool {
        self.unfollowed.contains(&key)
    }

    /// Begins to follow a JVM, if it can be by now. `is_last`: it won't say more than it does.
    pub(super) fn follow(
        &mut self,
        process: &Process,
        start_ns: u64,
        variables: Option<PauseVariables>,
        is_last: bool,
    ) {
        let is_whole =
            |it: &PauseVariables| it.operation.is_some() && it.collections.is_some() && it.causes.is_some();
        let Some(variables) = variables.filter(|it| is_last || is_whole(it)) else { return };
        let (file, symbols) = match self.files.request(process) {
            Ok(found) => found,
            Err(NoProbes::Pending) => return,
            Err(NoProbes::Impossible(reason)) => return self.give_up(process.key, reason),
        };
        let address = |at: Option<crate::types::Avma>| at.map_or(0, |at| at.0);
        let times = symbols.times.map(|times| times.addresses(variables.image));
        let [reached_time_at, end_time_at] = times.unwrap_or_default();
        let target = JvmPauseState {
            start_ns,
            operation_at: address(variables.operation),
            collections_at: address(variables.collections.filter(|_| variables.causes.is_some())),
            cause_at: address(variables.causes.map(|causes| causes.now)),
            last_cause_at: address(variables.causes.map(|causes| causes.last)),
            has_duration: u64::from(symbols.functions.begin.is_none()),
            reached_time_at,
            end_time_at,
            ..JvmPauseState::default()
        };
        // Its exec, or the end of an earlier process, may not have been seen.
        self.exec(process.pid, monotonic_ns());
        if let Err(error) = self.map.insert(process.pid, target) {
            tracing::warn!(pid = process.pid, %error, "a JVM's pauses aren't followed");
            self.files.release(file);
            return self.give_up(process.key, TOO_MANY);
        }
        let jvm = PausingJvm::new(process.pid, start_ns, file, symbols.operations, variables.image);
        self.jvms.insert(process.key, jvm);
    }

    fn give_up(&mut self, key: ProcessKey, reason: &'static str) {
        self.unfollowed.insert(key);
        self.count_unfollowed(reason);
    }

    pub(super) fn count_unfollowed(&mut self, reason: &'static str) {
        *self.counts.unfollowed_jvms.entry(reason).or_default() += 1;
    }

    /// Attaches what is needed, and detaches what isn't any more. To be called some times a second.
    pub(super) fn maintain(&mut self, sampler: &BackgroundSampler) {
        for reason in self.files.attach_and_detach(sampler) {
            *self.counts.unfollowed_jvms.entry(reason).or_default() += 1;
        }
        self.remove_refused();
        self.check_stops();
        let (files, now) = (&self.files, monotonic_ns());
        for jvm in self.jvms.values_mut().filter(|jvm| jvm.since_ns.is_none()) {
            jvm.since_ns = files.is_attached(jvm.file).then_some(now);
        }
    }

    /// Ends following the JVMs of files in which the kernel has refused uprobes: the sums that they
    /// keep themselves may be read instead.
    fn remove_refused(&mut self) {
        let is_refused = |jvm: &PausingJvm| self.files.is_refused(jvm.file);
        let refused: Vec<_> = self.jvms.extract_if(|_, jvm| is_refused(jvm)).collect();
        for (key, mut jvm) in refused {
            end_events_of(&mut self.map, &mut jvm);
            self.files.release(jvm.file);
            self.give_up(key, REFUSED);
        }
    }

    /// Ends stops whose ends the kernel programs have seen: their records may be lost.
    fn check_stops(&mut self) {
        for jvm in self.jvms.values_mut().filter(|jvm| jvm.has_events() && jvm.is_stopped()) {
            let state = state_of(&self.map, jvm);
            jvm.check_stop(state.as_ref(), monotonic_ns());
        }
    }

    /// Takes what the kernel programs say of a pause.
    pub(super) fn record(&mut self, record: &PauseRecord) {
        // Of the programs of one process an earlier one has ended.
        let may_be = self.jvms.iter_mut().filter(|(_, jvm)| jvm.has(record));
        let Some((key, jvm)) = may_be.min_by_key(|(_, jvm)| jvm.until_ns.unwrap_or(u64::MAX)) else {
            // Without one its JVM has been forgotten, and the pause is counted as lost.
            let before = self.jvms.values_mut().filter(|jvm| jvm.precedes(record));
            if let Some(jvm) = before.max_by_key(|jvm| jvm.until_ns) {
                jvm.record_later(record);
            }
            return;
        };
        let Some(pause) = jvm.record(record) else { return };
        self.counts.unnamed += u64::from(pause.operation.is_none());
        match &mut self.to_keep {
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                jvm.events.push(pause);
            }
            None => {
                let key = *key;
                self.add_to_window(key, pause);
            }
        }
    }

    fn add_to_window(&mut self, key: ProcessKey, pause: Pause) {
        let pauses = self.window.entry(key).or_default();
        let before = pauses.apart();
        pauses.add(pause, self.apart < MAX_KEPT);
        self.apart = self.apart + pauses.apart() - before;
    }

    /// Ends a window: hands the stacks of its pauses to `add`. `is_end`: nothing comes after it.
    pub(super) fn end_window(
        &mut self,
        is_end: bool,
        mut add: impl FnMut(ProcessKey, NamedStack, SampleWeight),
    ) {
        if self.to_keep.is_some() {
            return;
        }
        let ended = self.jvms.iter_mut().filter(|(_, jvm)| is_end || jvm.until_ns.is_some());
        let last: Vec<_> = ended.filter_map(|(key, jvm)| Some((*key, jvm.take_last()?))).collect();
        last.into_iter().for_each(|(key, pause)| self.add_to_window(key, pause));
        self.apart = 0;
        let clock = UnixClock::now();
        for (key, mut pauses) in self.window.drain() {
            self.counts.taken += pauses.take(&clock, |stack, weight| add(key, stack, weight));
        }
    }

    /// Returns the number of pauses that are in the profiles of windows.
    pub(super) const fn taken(&self) -> u64 {
        self.counts.taken
    }

    /// Labels the stack of a sample of CPU time if it falls in a pause.
    pub(super) fn label(&mut self, key: ProcessKey, time_ns: u64, stack: &mut NamedStack) {
        let operation = self.jvms.get(&key).and_then(|jvm| jvm.stopped_for(time_ns));
        if let Some(operation) = operation.filter(|_| may_run_in_pause(&stack.frames)) {
            self.labels.add(operation, &mut stack.labels);
        }
    }

    /// Notes what the series of a JVM are called.
    pub(super) fn set_name(&mut self, key: ProcessKey, labels: &LabelSet) {
        if let Some(jvm) = self.jvms.get_mut(&key) {
            jvm.name.update(labels);
        }
    }

    /// Notes that a process has ended.
    pub(super) fn exited(&mut self, pid: u32, time_ns: u64) {
        for jvm in self.jvms.values_mut().filter(|jvm| jvm.pid == pid) {
            jvm.exited(time_ns);
            end_events_of(&mut self.map, jvm);
        }
        self.close_ended_before(time_ns.saturating_sub(LATE_SAMPLES_NS));
    }

    /// Notes that a process has begun another program: a process of its own here, which has the id
    /// and the start time of the one before.
    pub(super) fn exec(&mut self, pid: u32, time_ns: u64) {
        for jvm in self.jvms.values_mut().filter(|jvm| jvm.pid == pid) {
            jvm.replaced(time_ns);
            end_events_of(&mut self.map, jvm);
        }
    }

    /// Closes JVMs that have ended long ago, in a recording, whose only window is all of it.
    fn close_ended_before(&mut self, time_ns: u64) {
        if self.to_keep.is_none() {
            return;
        }
        let is_old = |jvm: &PausingJvm| jvm.until_ns.is_some_and(|until_ns| until_ns < time_ns);
        let old: Vec<(ProcessKey, PausingJvm)> = self.jvms.extract_if(|_, jvm| is_old(jvm)).collect();
        for (key, jvm) in old {
            self.unfollowed.insert(key);
            self.close(jvm);
        }
    }

    /// Ends a window: adds what is new to the totals of the JVMs.
    pub(super) fn add_to(&mut self, totals: &mut AllJvmTotals) {
        for jvm in self.jvms.values_mut() {
            if let Some(name) = jvm.name.get().cloned()
                && jvm.since_ns.is_some()
            {
                totals.add_pauses(name, jvm.take_unreported());
            }
        }
    }

    /// Begins the next window, and forgets JVMs that have ended, or aren't wanted any more.
    pub(super) fn begin_window(&mut self, mut is_wanted: impl FnMut(ProcessKey) -> bool) {
        self.labels.clear();
        self.unfollowed.retain(|key| is_wanted(*key));
        let ended: Vec<PausingJvm> =
            self.jvms.extract_if(|key, _| !is_wanted(*key)).map(|(_, jvm)| jvm).collect();
        ended.into_iter().for_each(|jvm| self.close(jvm));
    }

    /// Ends the events of all JVMs, before the last ones are read: uprobes stay until the kernel
    /// has taken them away, and what they emitted then would be lost.
    pub(super) fn end_events(&mut self) {
        for jvm in self.jvms.values_mut() {
            end_events_of(&mut self.map, jvm);
        }
    }

    fn close(&mut self, mut jvm: PausingJvm) {
        end_events_of(&mut self.map, &mut jvm);
        self.files.release(jvm.file);
        self.counts.lost += jvm.lost();
        let Some(pauses) = jvm.close(monotonic_ns()).filter(|_| self.to_keep.is_some()) else { return };
        if self.ended.len() < MAX_ENDED {
            self.ended.push(pauses);
        } else {
            *self.counts.unfollowed_jvms.entry(TOO_MANY).or_default() += 1;
        }
    }

    /// Ends following all JVMs, and returns their pauses.
    pub(super) fn take(&mut self) -> Vec<JvmPauses> {
        let jvms: Vec<PausingJvm> = self.jvms.drain().map(|(_, jvm)| jvm).collect();
        jvms.into_iter().for_each(|jvm| self.close(jvm));
        std::mem::take(&mut self.ended)
    }
}

/// Returns true if the thread of a stack may run while all Java threads are stopped: it has no Java
/// frames, or is in a native method. One in Java code, or in what that has called in the JVM, goes
/// on already: the VM thread wakes the others before it reads the clock for the pause's end, and
/// then waits for a CPU itself where these are busy (openjdk runtime/safepoint.cpp,
/// `SafepointSynchronize::end`).
fn may_run_in_pause(frames: &[Arc<Frame>]) -> bool {
    let innermost = frames.iter().find(|frame| frame.kind == FrameKind::Java);
    let mode = innermost.and_then(|frame| frame.lines.first()).and_then(|line| line.mode);
    mode.is_none_or(|mode| mode == ExecutionMode::Native)
}

/// Has the kernel programs follow a JVM no longer.
fn end_events_of(map: &mut impl PausedJvms, jvm: &mut PausingJvm) {
    // What is at its process id after that is another one's.
    if jvm.has_events() {
        let last = state_of(map, jvm);
        if last.is_some() {
            map.remove(jvm.pid);
        }
        jvm.end_events(last, monotonic_ns());
    }
}

/// Returns what the kernel programs know of a JVM that they follow.
fn state_of(map: &impl PausedJvms, jvm: &PausingJvm) -> Option<JvmPauseState> {
    // A later process may have the id.
    map.get(jvm.pid).filter(|known| known.start_ns == jvm.start_ns)
}
