//! Counts of one builder, to be added to another: trees that several threads have built become one,
//! as do those that were built of the periods of a long time.

use std::collections::BTreeMap;

use super::function_samples::{ComparedCounts, FunctionSamples};
use super::{CallNode, CallStep, EndTimes, ROOT, TreeBuilder, TreeFunction, count_line};
use crate::profile::jvm_activity::SampledActivity;

/// The counts of a builder.
#[derive(Clone, Debug, Default)]
pub struct TreeCounts {
    pub(super) strings: StringList,
    /// Strings are those of `strings`.
    pub(super) functions: Vec<TreeFunction>,
    /// By function.
    pub(super) samples: Vec<FunctionSamples>,
    /// Parents stand before their children, the root before all.
    pub(super) nodes: Vec<CallNode>,
    /// Samples of the tree and of its base that end in a node, in any order.
    pub(super) ends: Vec<(u32, SampledActivity, [u64; 2])>,
    /// The same samples in all, with those that a filter didn't take for what they were taken in.
    pub(super) unfiltered: BTreeMap<SampledActivity, [u64; 2]>,
    /// When they were taken, where that is known.
    pub(super) times: EndTimes,
    /// Samples of stacks that aren't whole, by the string of their marker.
    pub(super) truncated: Vec<(u32, u64)>,
    pub(super) pruned_nodes: usize,
    pub(super) most_lacking: u64,
}

/// Strings one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct StringList {
    pub(super) text: String,
    pub(super) ends: Vec<u32>,
}

impl StringList {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
    }

    /// Returns a string by its index; `""` if there is none.
    fn get(&self, index: u32) -> &str {
        let index = index as usize;
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let range = self.ends.get(index).map(|end| start as usize..*end as usize);
        range.and_then(|range| self.text.get(range)).unwrap_or("")
    }
}

impl TreeCounts {
    /// Returns the most samples that a node may lack because it was given up, in between or at
    /// last.
    pub fn most_lacking(&self) -> u64 {
        self.most_lacking
    }

    /// Says that a node may lack so many samples more, because of what was counted here.
    pub fn add_lacking(&mut self, samples: u64) {
        self.most_lacking = self.most_lacking.saturating_add(samples);
    }

    /// Returns true if no node was given up.
    pub fn is_whole(&self) -> bool {
        self.pruned_nodes == 0
    }
}

impl TreeBuilder {
    /// Returns the most samples that a node may lack because it was given up in between.
    pub fn most_lacking(&self) -> u64 {
        self.most_lacking
    }

    /// Returns what was counted, with at most `max_nodes` nodes.
    pub fn into_counts(mut self, max_nodes: usize) -> TreeCounts {
        self.cut(max_nodes);
        let mut strings = StringList::default();
        self.strings.iter().for_each(|text| strings.push(text));
        TreeCounts {
            strings,
            functions: self.functions,
            samples: self.samples,
            nodes: self.nodes,
            unfiltered: self.activities.take_unfiltered(),
            ends: self.activities.into_ends(),
            times: self.times,
            truncated: self.truncated.into_iter().collect(),
            pruned_nodes: self.pruned_nodes,
            most_lacking: self.most_lacking,
        }
    }

    /// Counts what another builder has counted, below a node with the group's name if there is one:
    /// as the base, while that is counted.
    ///
    /// The tree may have as many nodes as both have until this returns.
    pub fn add_counts(&mut self, other: TreeCounts, group: Option<&str>) {
        let TreeCounts { strings, functions, samples, nodes, ends, times, truncated, pruned_nodes, .. } =
            other;
        let text = |index| strings.get(index);
        let functions: Vec<u32> = functions
            .iter()
            .map(|it| self.function(it.kind, text(it.name), text(it.file), text(it.module)).0)
            .collect();
        for (function, samples) in functions.iter().zip(samples) {
            self.samples[*function as usize].add_all(samples, self.is_base);
        }
        self.pruned_nodes += pruned_nodes;
        if !self.is_base {
            for (name, samples) in truncated {
                let name = self.intern(strings.get(name));
                *self.truncated.entry(name).or_default() += samples;
            }
        }
        let places = self.add_nodes(&functions, nodes, group);
        let ends = if self.activities.is_counted { ends } else { Vec::new() };
        for (node, sampled_in, counts) in ends {
            self.activities.add_counts(places[node as usize], sampled_in, self.placed(counts));
        }
        for (sampled_in, counts) in other.unfiltered {
            self.activities.add_unfiltered(sampled_in, self.placed(counts));
        }
        self.times.add_all(times, &places);
        if self.nodes.len() > self.max_nodes {
            self.prune(self.max_nodes / 2);
        }
    }

    /// Returns the places of the nodes.
    fn add_nodes(&mut self, functions: &[u32], nodes: Vec<CallNode>, group: Option<&str>) -> Vec<u32> {
        let mut places: Vec<u32> = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.into_iter().enumerate() {
            let place = match (index, group) {
                (0, None) => ROOT,
                (0, Some(group)) => {
                    let CallStep { function, .. } = self.label(group);
                    let counts = self.placed([node.total, node.base]);
                    self.nodes[ROOT as usize].add(counts);
                    self.child(ROOT, function.0)
                }
                _ => self.child(places[node.parent as usize], functions[node.function as usize]),
            };
            places.push(place);
            self.add_node(place, node);
        }
        places
    }

    /// Adds the counts of a node to that at a place, with those by line and by mode.
    fn add_node(&mut self, place: u32, node: CallNode) {
        let counts = self.placed([node.total, node.base]);
        let into = &mut self.nodes[place as usize];
        into.add(counts);
        if self.is_base {
            return;
        }
        if into.lines.is_empty() {
            into.lines = node.lines;
        } else {
            node.lines.iter().for_each(|&(line, count)| count_line(&mut into.lines, line, count));
        }
        for (sum, count) in into.how.iter_mut().zip(node.how) {
            *sum = sum.saturating_add(count);
        }
    }

    /// Returns counts of a tree and its base as those of what is counted now.
    fn placed(&self, [main, base]: [u64; 2]) -> [u64; 2] {
        if self.is_base { [0, main] } else { [main, base] }
    }
}

impl CallNode {
    fn add(&mut self, [total, base]: [u64; 2]) {
        self.total = self.total.saturating_add(total);
        self.base = self.base.saturating_add(base);
    }
}

impl FunctionSamples {
    /// Adds what was counted of the same function elsewhere.
    fn add_all(&mut self, other: Self, is_base: bool) {
        let placed = |counts: ComparedCounts| {
            if is_base { ComparedCounts { base: counts.main, ..ComparedCounts::default() } } else { counts }
        };
        self.counts.add_all(placed(other.counts));
        if !is_base {
            for (sum, count) in self.how.iter_mut().zip(other.how) {
                *sum += count;
            }
        }
        for (line, counts) in other.lines {
            self.add_line(line, placed(counts));
        }
    }
}
