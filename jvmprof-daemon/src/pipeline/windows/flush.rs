//! The end of a window: its profiles, and what is forgotten then.

use std::collections::{HashMap, HashSet};

use super::WindowProfiles;
use crate::clock::monotonic_ns;
use crate::event_type::EventType;
use crate::pipeline::labels::LabelKey;
use crate::pipeline::{MAX_UNLABELLED_STACKS, Pipeline, State, off_cpu};
use crate::process::{Process, ProcessKey};
use crate::profile::aggregate::LabelKeyOfProcess;
use crate::profile::model::Batch;

/// The period of pauses, of which values are multiples: its type is pauses, and each is one.
const PAUSE_PERIOD: u64 = 1;

impl LabelKeyOfProcess for LabelKey {
    fn process_number(self) -> u64 {
        self.process.number()
    }
}

impl Pipeline {
    /// Returns the window's profile; the next window begins.
    pub fn flush(&mut self) -> WindowProfiles {
        let state = &mut self.state;
        state.complete_last_samples();
        state.count_found_by_followers();
        let (mut profiles, live) = state.take_profiles();
        state.set_measured_periods(&mut profiles.other_batches);
        state.label_batch(&mut profiles.batch);
        profiles.other_batches.iter_mut().for_each(|batch| state.label_batch(batch));
        state.add_contentions(&mut profiles.other_batches);
        state.add_pause_totals();
        state.begin_window(&live);
        profiles
    }

    /// Returns all profiles of samples so far: more than one if the frequency has just changed.
    pub fn flush_all(&mut self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = self.flush().into_batches().collect();
        if !self.state.windows.is_empty() {
            batches.extend(self.flush().into_batches());
        }
        batches
    }

    /// Returns batches of earlier windows, made of samples whose labels have become known since, or
    /// were waited for too long.
    pub fn take_labelled(&mut self) -> Vec<Batch> {
        let state = &mut self.state;
        let release = state.release || state.windows.unlabelled_stacks() > MAX_UNLABELLED_STACKS;
        let targets = &mut state.targets;
        let mut labelled = state
            .windows
            .take_labelled(|label_key, samples| targets.finalize_labels(label_key, samples, release));
        labelled.iter_mut().for_each(|batch| state.label_batch(batch));
        state.add_contentions(&mut labelled);
        labelled
    }
}

impl State {
    /// Completes the samples that the window ends with: those of threads that wait and don't come
    /// back, and those of processes that have ended, of which nothing is known after the window.
    fn complete_last_samples(&mut self) {
        if !self.release {
            self.inspect_waiting();
        }
        let ended = self.table.iter().filter(|process| process.has_exited());
        let ended: Vec<u32> = ended.map(|process| process.pid).collect();
        self.complete_with_jitdumps();
        ended.into_iter().for_each(|pid| self.complete_pending_of(pid));
    }

    /// Counts what the followers of JVMs have found beside samples: classes that were counted
    /// without any stack, and pauses.
    fn count_found_by_followers(&mut self) {
        let targets = &mut self.targets;
        if let Some(allocation) = &mut self.followers.allocation {
            let window = self.windows.aggregator(EventType::Allocation, allocation.options().interval);
            for (key, stack, weight) in allocation.end_window() {
                let label_key = targets.process_label_key(key, EventType::Allocation);
                window.add_unlabelled(label_key, stack, weight);
            }
        }
        if let Some(pauses) = &mut self.followers.pauses {
            let window = self.windows.aggregator(EventType::Pause, PAUSE_PERIOD);
            pauses.end_window(self.release, |key, stack, weight| {
                window.add_unlabelled(targets.process_label_key(key, EventType::Pause), stack, weight);
            });
        }
    }

    /// Ends the window with all names that can be had, and forgets the processes that have ended.
    /// Returns the profiles, and the processes that are left.
    fn take_profiles(&mut self) -> (WindowProfiles, HashSet<ProcessKey>) {
        let by_key: HashMap<ProcessKey, &Process> =
            self.table.iter_with_replaced().map(|process| (process.key, process)).collect();
        let mut end = self.symbolizer.end_window(|key| by_key.get(&key).copied(), monotonic_ns());
        let targets = &mut self.targets;
        let allocation = &mut self.followers.allocation;
        let profiles = self.windows.flush(
            |label_key, frames| end.finalize_names(label_key.process, frames),
            |label_key, samples| targets.finalize_labels(label_key, samples, self.release),
            |event, label_key, weight| match (event, &mut *allocation) {
                (EventType::Allocation, Some(allocation)) => allocation.estimate(label_key.process, weight),
                (EventType::OffCpu | EventType::LockHolder, _) => off_cpu::estimate(weight, rand::random()),
                _ => (weight.count, weight.value),
            },
        );
        drop(by_key);
        self.table.remove_exited();
        let live: HashSet<ProcessKey> = self.table.iter().map(|process| process.key).collect();
        end.retain(|key| live.contains(&key));
        (profiles, live)
    }

    /// Sets the periods of profiles whose events are kept by chance: the mean distance of kept
    /// events as it is by now.
    fn set_measured_periods(&self, batches: &mut [Batch]) {
        for batch in batches {
            match (batch.event, &self.followers.allocation, &self.off_cpu) {
                (EventType::Allocation, Some(allocation), _) => batch.period = allocation.interval(),
                (EventType::OffCpu, _, Some(off_cpu)) => batch.period = off_cpu.interval(),
                _ => {}
            }
        }
    }

    /// Names the causes of waits and the kinds of threads in a profile, and adds it to the totals
    /// of its JVMs.
    fn label_batch(&mut self, batch: &mut Batch) {
        if batch.event == EventType::Pause {
            return;
        }
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.name_causes(batch);
        }
        self.thread_kinds.label(batch);
        self.jvm_totals.add(batch);
    }

    /// Adds the contentions among the waits of these profiles.
    fn add_contentions(&mut self, batches: &mut Vec<Batch>) {
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.add_contentions(batches);
        }
    }

    /// Adds the window's pauses to the totals of their JVMs.
    fn add_pause_totals(&mut self) {
        if let Some(pauses) = &mut self.followers.pauses {
            pauses.add_to(&mut self.jvm_totals);
        }
        self.followers.summed_jvms.read_all(monotonic_ns);
        self.followers.summed_jvms.add_to(&mut self.jvm_totals);
    }

    /// Begins the next window: what is known of processes that have ended, or that no rule wants
    /// any more, is forgotten.
    fn begin_window(&mut self, live: &HashSet<ProcessKey>) {
        self.jvm_totals.retain(&self.table.iter().map(|process| process.pid).collect());
        if let Some(contexts) = &mut self.thread_contexts {
            contexts.begin_window(live);
        }
        let targets = &mut self.targets;
        let is_wanted = |key: ProcessKey, event| live.contains(&key) && targets.is_wanted(key, event);
        self.followers.begin_window(live, is_wanted);
        if let Some(off_cpu) = &mut self.off_cpu {
            off_cpu.begin_window(live);
        }
        self.targets.retain(live, &self.windows.unlabelled_keys().collect());
    }
}
