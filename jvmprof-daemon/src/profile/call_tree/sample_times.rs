//! When each sample was taken, and where its stack ends in a tree: compact enough for a page.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Serialize, Serializer};

use super::{CallStep, ROOT, TreeBuilder};
use crate::profile::jvm_activity::SampledIn;
use crate::profile::model::{Batch, LabelSet};

/// The times of samples, as columns. The names in JSON are what the page's `times.js` reads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SampleTimes {
    /// Nodes in which stacks end: those with most samples first.
    nodes: Vec<u32>,
    /// The line of each one's nearest Java caller, 0 if unknown. A node has as many entries as
    /// there are lines, activities and kinds of threads.
    lines: Vec<u32>,
    /// What each one's samples were taken in; empty if that isn't counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    activities: Vec<SampledIn>,
    /// For each sample, oldest first: milliseconds since the one before, and the entry of `nodes`;
    /// both as LEB128.
    #[serde(serialize_with = "as_base64")]
    samples: Vec<u8>,
}

impl SampleTimes {
    /// Returns true if no sample's time is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
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
        let mut times: HashMap<(u32, u32, Option<SampledIn>), Vec<u32>> = HashMap::new();
        self.each_path(batch, group, |builder, path, sample, sampled_in| {
            if !sample.times.is_empty() {
                let end = (builder.end_of(path), builder.attributed_line(path), sampled_in);
                times.entry(end).or_default().extend(&sample.times);
            }
        });
        let mut ends: Vec<_> = times.into_iter().collect();
        ends.sort_unstable_by_key(|(end, times)| (Reverse(times.len()), *end));
        let mut samples: Vec<(u32, u32)> = Vec::new();
        for (entry, (_, times)) in (0..).zip(&ends) {
            samples.extend(times.iter().map(|time| (*time, entry)));
        }
        samples.sort_unstable();
        let mut result = SampleTimes::default();
        for ((node, line, sampled_in), _) in ends {
            result.nodes.push(node);
            result.lines.push(line);
            result.activities.extend(sampled_in);
        }
        let mut before = 0;
        for (time, entry) in samples {
            leb128(time - before, &mut result.samples);
            leb128(entry, &mut result.samples);
            before = time;
        }
        result
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

    fn attributed_line(&self, path: &[CallStep]) -> u32 {
        path.iter().rev().find(|step| self.takes_callees(step)).map_or(0, |step| step.line)
    }
}

fn leb128(mut number: u32, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn as_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    use base64::Engine as _;
    serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
}
