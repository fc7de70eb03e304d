//! Activities that samples were taken in ([`SampledActivity`]), by the node in which their stacks
//! end.

use std::collections::{BTreeMap, HashMap};

use super::{CallStep, NodeKind, Processes, TreeBuilder};
use crate::profile::jvm_activity::{
    FrameRole, JVM_ACTIVITIES, JvmActivity, JvmThread, LeafCode, SampledActivity, ThreadKind, activity_of,
};
use crate::types::FastHasher;

/// Samples by activity, in the order of [`JvmActivity`].
pub type ActivitySamples = [u64; JVM_ACTIVITIES];

/// Counts of activities while a tree is built.
#[derive(Debug, Default)]
pub(super) struct Activities {
    /// True for CPU time and waits.
    pub(super) is_counted: bool,
    /// Those that samples are counted by; none if they aren't.
    pub(super) processes: Processes,
    /// By function.
    roles: Vec<FrameRole>,
    /// Samples of the tree and of its base, by the node in which they end.
    ends: HashMap<(u32, SampledActivity), [u64; 2], FastHasher>,
    /// Samples of the tree since they were last taken.
    totals: ActivitySamples,
    /// Samples of the tree and of its base with those that the builder's filter doesn't take for
    /// what they were taken in; nothing without such a filter.
    unfiltered: BTreeMap<SampledActivity, [u64; 2]>,
}

/// The activities of the samples that end in each node, and in each node of the base.
#[derive(Debug, Default)]
pub(super) struct EndColumns {
    pub(super) activity: Vec<Vec<u64>>,
    pub(super) base_activity: Vec<Vec<u64>>,
    /// Of which process they are, where nothing else is known of them.
    pub(super) process: Vec<Vec<u64>>,
}

impl Activities {
    pub(super) fn add_function(&mut self, name: &str) {
        self.roles.push(FrameRole::of_function(name));
    }

    pub(super) fn add(&mut self, node: u32, sampled_in: SampledActivity, count: u64, is_base: bool) {
        self.ends.entry((node, sampled_in)).or_default()[usize::from(is_base)] += count;
        if !is_base {
            self.totals[sampled_in.activity as usize] += count;
        }
    }

    pub(super) fn add_unfiltered(&mut self, sampled_in: SampledActivity, counts: [u64; 2]) {
        let sums = self.unfiltered.entry(sampled_in).or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    pub(super) fn take_unfiltered(&mut self) -> BTreeMap<SampledActivity, [u64; 2]> {
        std::mem::take(&mut self.unfiltered)
    }

    /// Adds samples of a tree and its base that were counted elsewhere. They aren't among those
    /// that [`TreeBuilder::take_activity_totals`] returns.
    pub(super) fn add_counts(&mut self, node: u32, sampled_in: SampledActivity, counts: [u64; 2]) {
        let sums = self.ends.entry((node, sampled_in)).or_default();
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the samples of the tree and of its base by the node in which they end, in any order.
    pub(super) fn into_ends(self) -> Vec<(u32, SampledActivity, [u64; 2])> {
        self.ends.into_iter().map(|((node, sampled_in), counts)| (node, sampled_in, counts)).collect()
    }

    /// Takes over that the tree was cut: `places` says where stacks end now that ended in a node.
    pub(super) fn moved(&mut self, places: &[u32]) {
        for ((node, sampled_in), counts) in std::mem::take(&mut self.ends) {
            self.add_counts(places[node as usize], sampled_in, counts);
        }
    }

    /// Returns the columns of the tree and of its base, with a row for each of `nodes`: number of
    /// [`SampledActivity`], samples, number, samples, ...; or the number alone where it is that of
    /// all samples that end in the node. No columns where nothing was seen of a JVM, and processes
    /// aren't distinguished.
    pub(super) fn columns(&self, nodes: usize) -> EndColumns {
        let is_jvm =
            |(_, sampled_in): &(u32, SampledActivity)| sampled_in.activity != JvmActivity::OtherProcess;
        let has_jvm = self.ends.keys().any(is_jvm);
        if !has_jvm && !self.processes.are_distinguished() {
            return EndColumns::default();
        }
        let mut columns = [vec![Vec::new(); nodes], vec![Vec::new(); nodes]];
        let mut ends: Vec<_> = self.ends.iter().collect();
        ends.sort_unstable();
        for ((node, sampled_in), counts) in ends {
            for (column, count) in columns.iter_mut().zip(counts).filter(|(_, count)| **count > 0) {
                column[*node as usize].extend([sampled_in.number(), *count]);
            }
        }
        for row in columns.iter_mut().flatten().filter(|row| row.len() == 2) {
            row.pop();
        }
        let [main, base] = columns;
        if has_jvm {
            EndColumns { activity: main, base_activity: base, ..EndColumns::default() }
        } else {
            EndColumns { process: main, ..EndColumns::default() }
        }
    }
}

impl TreeBuilder {
    /// Makes the builder say what samples were taken in. Of waits that means the kinds of threads
    /// alone: their leaves are no code.
    pub fn count_activities(&mut self) {
        self.activities.is_counted = true;
    }

    /// Returns the samples by what they were taken in that were counted since the last call.
    pub fn take_activity_totals(&mut self) -> ActivitySamples {
        std::mem::take(&mut self.activities.totals)
    }

    /// Returns true if the filter takes samples for what they were taken in, if that is known.
    pub(super) fn takes_samples(&mut self, sampled_in: Option<SampledActivity>, count: u64) -> bool {
        let Some(sampled_in) = sampled_in.filter(|_| self.filter.is_of_samples()) else { return true };
        let counts = if self.is_base { [0, count] } else { [count, 0] };
        self.activities.add_unfiltered(sampled_in, counts);
        self.filter.takes_sampled_in(sampled_in)
    }

    /// Returns what a sample with this stack was taken in, if that or its process is to be counted.
    pub(super) fn sampled_in(
        &self,
        path: &[CallStep],
        thread: JvmThread<'_>,
        process: u16,
    ) -> Option<SampledActivity> {
        let counted = &self.activities;
        if !counted.is_counted {
            let (activity, thread) = (JvmActivity::OtherProcess, ThreadKind::Unknown);
            let of_process = SampledActivity { activity, thread, process };
            return counted.processes.are_distinguished().then_some(of_process);
        }
        let roles = path.iter().rev().map(|step| self.activities.roles[step.function.0 as usize]);
        let leaf = path.last().map(|step| self.functions[step.function.0 as usize].kind);
        let leaf = match leaf {
            Some(NodeKind::Java | NodeKind::Jit | NodeKind::Stub) => LeafCode::Java,
            Some(NodeKind::Kernel) => LeafCode::Kernel,
            Some(NodeKind::Native) => LeafCode::Native,
            _ => LeafCode::Unknown,
        };
        let activity = activity_of(thread, roles, leaf);
        Some(SampledActivity { activity, thread: thread.kind(), process })
    }
}
