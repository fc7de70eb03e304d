//! The time of each sample, and where its stack ends in a tree: compact enough for a page.

use std::cmp::Reverse;
use std::collections::HashMap;

use prost::encoding::encode_varint;
use serde::{Serialize, Serializer};

use super::{CallStep, ROOT, TreeBuilder};
use crate::profile::jvm_activity::SampledActivity;
use crate::profile::model::{Batch, LabelSet};
use crate::types::FastHasher;

/// The times of samples, as columns. The names in JSON are what the page's `times.js` reads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SampleTimes {
    /// Nodes in which stacks end: those with most samples first. In JSON by how much each is above
    /// the one before it, which packs better.
    #[serde(serialize_with = "as_differences")]
    nodes: Vec<u32>,
    /// The line of each one's nearest Java caller, 0 if unknown. A node has as many entries as
    /// there are lines, activities, kinds of threads and processes.
    lines: Vec<u32>,
    /// What each one's samples were taken in; empty if that isn't counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    activities: Vec<SampledActivity>,
    /// Of which process each one's samples are, where nothing else is counted of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<SampledActivity>,
    /// For each sample, oldest first, milliseconds since the one before: as LEB128.
    #[serde(serialize_with = "as_base64")]
    steps: Vec<u8>,
    /// The entry of `nodes` of each of these samples: as LEB128.
    #[serde(serialize_with = "as_base64")]
    entries: Vec<u8>,
    /// Samples of the tree whose time isn't known; of a recording they aren't counted.
    #[serde(skip_serializing_if = "is_zero")]
    untimed: u64,
}

impl SampleTimes {
    /// Returns true if no sample's time is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// The end of a stack in a tree: the node, the line of its nearest Java caller, and what its
/// samples were taken in.
type TimedEnd = (u32, u32, Option<SampledActivity>);

/// The times of samples by where their stacks end, while the tree is built.
#[derive(Clone, Debug, Default)]
pub(super) struct EndTimes {
    times: HashMap<TimedEnd, Vec<u32>, FastHasher>,
    /// Samples whose time isn't known.
    untimed: u64,
}

impl EndTimes {
    /// Adds `count` samples, of which these times are known.
    pub(super) fn add(&mut self, end: TimedEnd, times: &[u32], count: u64) {
        self.untimed += count.saturating_sub(times.len() as u64);
        if !times.is_empty() {
            self.times.entry(end).or_default().extend_from_slice(times);
        }
    }

    /// Takes over that the tree was cut: `places` says where stacks end now that ended in a node.
    pub(super) fn moved(&mut self, places: &[u32]) {
        let before = std::mem::take(self);
        self.add_all(before, places);
    }

    /// Adds those of another tree, whose nodes have these places in this one.
    pub(super) fn add_all(&mut self, other: Self, places: &[u32]) {
        self.untimed += other.untimed;
        for ((node, line, sampled_in), times) in other.times {
            let end = (places[node as usize], line, sampled_in);
            self.times.entry(end).or_default().extend_from_slice(&times);
        }
    }

    fn into_columns(self) -> SampleTimes {
        let mut ends: Vec<_> = self.times.into_iter().collect();
        ends.sort_unstable_by_key(|(end, times)| (Reverse(times.len()), *end));
        let mut samples: Vec<(u32, u32)> = Vec::new();
        for (entry, (_, times)) in (0..).zip(&ends) {
            samples.extend(times.iter().map(|time| (*time, entry)));
        }
        samples.sort_unstable();
        let mut result = SampleTimes { untimed: self.untimed, ..SampleTimes::default() };
        for ((node, line, sampled_in), _) in ends {
            result.nodes.push(node);
            result.lines.push(line);
            result.activities.extend(sampled_in);
        }
        let mut before = 0;
        for (time, entry) in samples {
            encode_varint(u64::from(time - before), &mut result.steps);
            encode_varint(u64::from(entry), &mut result.entries);
            before = time;
        }
        result
    }
}

impl TreeBuilder {
    /// Cuts the tree to `max_nodes`, and returns the times of the batch's samples, which it was
    /// made of. `group` is that of [`TreeBuilder::add_batch`].
    pub fn sample_times(
        &mut self,
        batch: &Batch,
        group: impl Fn(&LabelSet) -> Option<String>,
        max_nodes: usize,
    ) -> SampleTimes {
        self.cut(max_nodes);
        let mut ends = EndTimes::default();
        self.each_path(batch, group, |builder, path, sample, sampled_in| {
            if !sample.times.is_empty() {
                let end = (builder.end_of(path), builder.attributed_line(path), sampled_in);
                // A recording begins when the first sample can be taken.
                let times: Vec<u32> = sample.times.iter().map(|ms| (*ms).max(0).unsigned_abs()).collect();
                ends.add(end, &times, times.len() as u64);
            }
        });
        let mut times = ends.into_columns();
        if !self.activities.is_counted {
            times.processes = std::mem::take(&mut times.activities);
        }
        times
    }

    /// Cuts the tree to `max_nodes`, and returns the times of the samples that came with some
    /// ([`PprofSeries::times`](super::PprofSeries)).
    pub fn take_times(&mut self, max_nodes: usize) -> SampleTimes {
        self.cut(max_nodes);
        std::mem::take(&mut self.times).into_columns()
    }

    /// The node of the tree in which a path ends: a `[pruned]` one if the tree was cut above it.
    fn end_of(&self, path: &[CallStep]) -> u32 {
        let mut at = ROOT;
        for step in path {
            match self.children.get(&(at, step.function.0)) {
                Some(&child) => at = child,
                None => return self.children.get(&(at, self.pruned)).copied().unwrap_or(at),
            }
        }
        at
    }

    pub(super) fn attributed_line(&self, path: &[CallStep]) -> u32 {
        path.iter().rev().find(|step| self.takes_callees(step)).map_or(0, |step| step.line)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn as_differences<S: Serializer>(numbers: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    let before = std::iter::once(0).chain(numbers.iter().copied());
    let differences =
        numbers.iter().zip(before).map(|(number, before)| i64::from(*number) - i64::from(before));
    serializer.collect_seq(differences)
}

fn as_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    use base64::Engine as _;
    serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
}
