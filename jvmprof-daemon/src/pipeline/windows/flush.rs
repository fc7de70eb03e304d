//! The end of a window: its profiles, and what is forgotten then.

use std::collections::{HashMap, HashSet};

use super::WindowProfiles;
use crate::clock::monotonic_ns;
use crate::event_type::EventType;
use crate::pipeline::labels::LabelKey;
use crate::pipeline::{MAX_UNLABELLED_STACKS, Pipeline, off_cpu};
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
        if !state.release {
            state.inspect_waiting();
        }
        // Nothing is known any more of a process that has ended, once the window has.
        let ended = state.table.iter().filter(|process| process.has_exited());
        let ended: Vec<u32> = ended.map(|process| process.pid).collect();
        state.complete_with_jitdumps();
        ended.into_iter().for_each(|pid| state.complete_pending_of(pid));
        let by_key: HashMap<ProcessKey, &Process> =
            state.table.iter_with_replaced().map(|process| (process.key, process)).collect();
        let mut end = state.symbolizer.end_window(|key| by_key.get(&key).copied(), monotonic_ns());
        let targets = &mut state.targets;
        let mut allocation = state.followers.allocation.as_mut();
        if let Some(allocation) = &mut allocation {
            let window = state.windows.aggregator(EventType::Allocation, allocation.options().interval);
            for (key, stack, weight) in allocation.end_window() {
                let label_key = targets.process_label_key(key, EventType::Allocation);
                window.add_unlabelled(label_key, stack, weight);
            }
        }
        if let Some(pauses) = &mut state.followers.pauses {
            let window = state.windows.aggregator(EventType::Pause, PAUSE_PERIOD);
            pauses.end_window(state.release, |key, stack, weight| {
                window.add_unlabelled(targets.process_label_key(key, EventType::Pause), stack, weight);
            });
        }
        let mut flushed = state.windows.flush(
            |label_key, frames| end.finalize_names(label_key.process, frames),
            |label_key, samples| targets.finalize_labels(label_key, samples, state.release),
            |event, label_key, weight| match (event, &mut allocation) {
                (EventType::Allocation, Some(allocation)) => allocation.estimate(label_key.process, weight),
                (EventType::OffCpu | EventType::LockHolder, _) => off_cpu::estimate(weight, rand::random()),
                _ => (weight.count, weight.value),
            },
        );
        for batch in std::iter::once(&mut flushed.batch).chain(&mut flushed.other_batches) {
            match (batch.event, &allocation, &mut state.off_cpu) {
                (EventType::Allocation, Some(allocation), _) => batch.period = allocation.interval(),
                (EventType::OffCpu, _, Some(off_cpu)) => {
                    batch.period = off_cpu.interval();
                    off_cpu.name_causes(batch);
                }
                (EventType::Pause, ..) => continue,
                _ => {}
            }
            state.thread_kinds.label(batch);
            state.jvm_totals.add(batch);
        }
        if let Some(off_cpu) = &mut state.off_cpu {
            off_cpu.add_contentions(&mut flushed.other_batches);
        }
        if let Some(pauses) = &mut state.followers.pauses {
            pauses.add_to(&mut state.jvm_totals);
        }
        state.followers.summed_jvms.read_all(monotonic_ns);
        state.followers.summed_jvms.add_to(&mut state.jvm_totals);
        drop(by_key);
        state.table.remove_exited();
        let live: HashSet<ProcessKey> = state.table.iter().map(|process| process.key).collect();
        state.jvm_totals.retain(&state.table.iter().map(|process| process.pid).collect());
        end.retain(|key| live.contains(&key));
        if let Some(contexts) = &mut state.thread_contexts {
            contexts.begin_window(&live);
        }
        state.followers.awaited.retain(|key| live.contains(&key));
        state
            .followers
            .summed_jvms
            .begin_window(|key| live.contains(&key) && targets.is_wanted(key, EventType::Cpu));
        if let Some(pauses) = &mut state.followers.pauses {
            pauses.begin_window(|key| live.contains(&key) && targets.is_wanted(key, EventType::Cpu));
        }
        if let Some(allocation) = allocation {
            let is_wanted = |key| live.contains(&key) && targets.is_wanted(key, EventType::Allocation);
            allocation.begin_window(is_wanted);
        }
        if let Some(off_cpu) = &mut state.off_cpu {
            off_cpu.begin_window(&live);
        }
        state.targets.retain(&live, &state.windows.unlabelled_keys().collect());
        flushed
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
        if let Some(off_cpu) = &mut state.off_cpu {
            labelled.iter_mut().for_each(|batch| off_cpu.name_causes(batch));
        }
        for batch in labelled.iter_mut().filter(|batch| batch.event != EventType::Pause) {
            state.thread_kinds.label(batch);
            state.jvm_totals.add(batch);
        }
        if let Some(off_cpu) = &mut state.off_cpu {
            off_cpu.add_contentions(&mut labelled);
        }
        labelled
    }
}
