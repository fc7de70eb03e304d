//! The finished tree, in the form that the page reads.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::Serialize;

use super::function_samples::{FunctionSamples, SampleCounts};
use super::{CallNode, NodeKind, ROOT, TreeBuilder, TreeFunction};
use crate::profile::jvm_activity::SampledActivity;

/// Functions in the table. Nobody reads further; the page says how many there are.
const TOP_FUNCTIONS: usize = 1_000;

/// Lines listed for one node.
const TOP_LINES: usize = 3;

/// Lines listed for one function of the table.
const TOP_FUNCTION_LINES: usize = 10;

/// A tree within a bound, as columns: row `i` of every column of `nodes` speaks of the same node.
/// The names in JSON are what the page's `tree.js` reads.
#[derive(Clone, Debug, Serialize)]
pub struct CallTree {
    pub(super) strings: Vec<Arc<str>>,
    pub(super) functions: FunctionColumns,
    pub(super) nodes: NodeColumns,
    pub(super) top: TopFunctionColumns,
    /// Samples in all stacks.
    pub(super) total: u64,
    /// Samples in all stacks of the base, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<u64>,
    /// Samples of stacks that aren't whole, by the marker that says why.
    pub(super) truncated: Vec<(Arc<str>, u64)>,
    pub(super) pruned: PruneCounts,
    /// Of a tree of chosen activities or kinds of threads: what was taken in each, of the tree and
    /// of its base, had these not been chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unfiltered: Option<Vec<(SampledActivity, [u64; 2])>>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct FunctionColumns {
    pub(super) kind: Vec<NodeKind>,
    pub(super) name: Vec<u32>,
    pub(super) file: Vec<u32>,
    pub(super) module: Vec<u32>,
}

/// Parents stand before their children; node 0 is the root and its own parent.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct NodeColumns {
    pub(super) parent: Vec<u32>,
    pub(super) function: Vec<u32>,
    pub(super) total: Vec<u64>,
    /// Samples of the base; empty without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) base: Vec<u64>,
    /// The lines with most samples: line, samples, line, samples, ...
    pub(super) lines: Vec<Vec<u64>>,
    /// Execution modes of a Java method, by number in the order of `HOW_NAMES` in `tree.js`: how,
    /// samples, how, samples, ...
    pub(super) how: Vec<Vec<u64>>,
    /// What the samples were taken in that end in the node, see `Activities::columns`; empty if
    /// that isn't counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) activity: Vec<Vec<u64>>,
    /// The same of the base.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) base_activity: Vec<Vec<u64>>,
    /// The same, where of the samples only their processes are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) process: Vec<Vec<u64>>,
}

/// The functions with most samples, their own or with callees: columns again.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TopFunctionColumns {
    pub(super) function: Vec<u32>,
    #[serde(rename = "self")]
    pub(super) own: Vec<u64>,
    /// With the kernel's, the JVM's and native code's on the function's behalf.
    pub(super) attributed: Vec<u64>,
    pub(super) total: Vec<u64>,
    /// The lines with most samples: line, self, attributed, total, and where there is a base the
    /// same three of that; then the next line.
    pub(super) lines: Vec<Vec<u64>>,
    /// Execution modes of a Java method: how, samples, how, samples, ...
    pub(super) how: Vec<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<BaseColumns>,
    /// Functions that were seen, in the table or not.
    pub(super) seen: usize,
}

/// Samples of the table's functions in the base that the tree is compared with.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct BaseColumns {
    #[serde(rename = "self")]
    pub(super) own: Vec<u64>,
    pub(super) attributed: Vec<u64>,
    pub(super) total: Vec<u64>,
}

/// Counts of what the tree lost to its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneCounts {
    /// Nodes that aren't there by themselves. One that was given up and came back counts
    /// again.
    pub nodes: usize,
    /// Samples whose stacks end in a `[pruned]` node.
    pub samples: u64,
}

/// A function of the table, beside the base.
#[derive(Clone, Copy, Debug)]
pub struct ComparedFunction<'a> {
    pub name: &'a str,
    /// Samples of its own, with those of the kernel, the JVM and native code on its behalf: in the
    /// base, and in the tree.
    pub attributed: [u64; 2],
}

impl CallTree {
    /// Returns the number of samples in all stacks, of the base and of the tree.
    pub fn totals(&self) -> [u64; 2] {
        [self.base.unwrap_or(0), self.total]
    }

    /// Makes columns of nodes what packs better: instead of its parent how far above that stands,
    /// instead of all samples of a node those that end in it; a line or an execution mode that all
    /// of its samples have stands alone. `unpackTree` of `tree.js` is the inverse. With
    /// `has_estimates`, samples by line and by mode are rounded to three digits.
    #[must_use]
    pub fn packed(mut self, has_estimates: bool) -> Self {
        let NodeColumns { parent, total, lines, how, .. } = &mut self.nodes;
        for (row, total) in lines.iter_mut().zip(total.iter()).chain(how.iter_mut().zip(total.iter())) {
            if row.len() == 2 && row[1] == *total {
                row.truncate(1);
            } else if has_estimates {
                for samples in row.iter_mut().skip(1).step_by(2) {
                    *samples = rounded(*samples).min(*total);
                }
            }
        }
        for (node, parent) in parent.iter_mut().enumerate().skip(1) {
            // Those below the node come later: it still has all of its samples.
            let (above, samples) = (*parent as usize, total[node]);
            total[above] = total[above].saturating_sub(samples);
            *parent = node as u32 - *parent;
        }
        self
    }

    /// Returns the functions of the table.
    pub fn compared_functions(&self) -> impl Iterator<Item = ComparedFunction<'_>> {
        let base = self.top.base.iter().flat_map(|base| base.attributed.iter().copied());
        let base = base.chain(std::iter::repeat(0));
        self.top.function.iter().zip(base).zip(&self.top.attributed).map(|((&function, base), &main)| {
            let name = &self.strings[self.functions.name[function as usize] as usize];
            ComparedFunction { name, attributed: [base, main] }
        })
    }
}

impl TreeBuilder {
    /// The tree with its heaviest nodes, at most `max_nodes` (at least 2: the root and what was
    /// cut).
    pub fn finish(mut self, max_nodes: usize) -> CallTree {
        self.cut(max_nodes);
        let unfiltered = self.filter.is_of_samples().then(|| self.activities.take_unfiltered());
        let unfiltered = unfiltered.map(|samples| samples.into_iter().collect());
        let mut writer = ColumnWriter::new(&self);
        let top = self.top(&mut writer);
        let mut nodes = NodeColumns::default();
        let mut pruned = PruneCounts { nodes: self.pruned_nodes, samples: 0 };
        for node in &self.nodes {
            nodes.parent.push(node.parent);
            nodes.function.push(writer.function(node.function));
            nodes.total.push(node.total);
            nodes.base.extend(self.has_base.then_some(node.base));
            nodes.lines.push(top_lines(&node.lines));
            nodes.how.push(counts_by_index(node.how));
            pruned.samples += if node.function == self.pruned { node.total } else { 0 };
        }
        let ends = self.activities.columns(self.nodes.len());
        (nodes.activity, nodes.process) = (ends.activity, ends.process);
        if self.has_base {
            nodes.base_activity = ends.base_activity;
        }
        let truncated = self
            .truncated
            .iter()
            .map(|(&name, &samples)| (Arc::clone(&self.strings[name as usize]), samples))
            .collect();
        let ColumnWriter { strings, functions, .. } = writer;
        let CallNode { total, base, .. } = self.nodes[ROOT as usize];
        let base = self.has_base.then_some(base);
        CallTree { strings, functions, nodes, top, total, base, truncated, pruned, unfiltered }
    }

    /// Cuts the tree to `max_nodes` as [`Self::finish`] does.
    pub fn cut(&mut self, max_nodes: usize) {
        self.prune(max_nodes.max(2));
    }

    fn top(&self, writer: &mut ColumnWriter<'_>) -> TopFunctionColumns {
        let samples = |id: u32| &self.samples[id as usize];
        let is_code = |id: &u32| {
            let kind = self.functions[*id as usize].kind;
            !matches!(kind, NodeKind::Root | NodeKind::Label | NodeKind::Pruned)
        };
        let is_seen = |id: &u32| samples(*id).counts.weights()[2] > 0;
        let mut seen: Vec<u32> = (0..self.functions.len() as u32).filter(is_code).filter(is_seen).collect();
        let mut chosen = Vec::new();
        for number in 0..3 {
            seen.sort_by_key(|&id| Reverse(samples(id).counts.weights()[number]));
            chosen.extend_from_slice(&seen[..seen.len().min(TOP_FUNCTIONS)]);
        }
        let main = |id: u32| samples(id).counts.main;
        chosen.sort_by_key(|&id| (Reverse((main(id).own, main(id).total)), id));
        chosen.dedup();
        let base = |id: u32| samples(id).counts.base;
        let base = || BaseColumns {
            own: chosen.iter().map(|&id| base(id).own).collect(),
            attributed: chosen.iter().map(|&id| base(id).attributed).collect(),
            total: chosen.iter().map(|&id| base(id).total).collect(),
        };
        TopFunctionColumns {
            own: chosen.iter().map(|&id| main(id).own).collect(),
            attributed: chosen.iter().map(|&id| main(id).attributed).collect(),
            total: chosen.iter().map(|&id| main(id).total).collect(),
            lines: chosen.iter().map(|&id| self.function_lines(samples(id))).collect(),
            how: chosen.iter().map(|&id| counts_by_index(samples(id).how)).collect(),
            base: self.has_base.then(base),
            function: chosen.iter().map(|&id| writer.function(id)).collect(),
            seen: seen.len(),
        }
    }

    fn function_lines(&self, samples: &FunctionSamples) -> Vec<u64> {
        let mut lines = samples.lines.clone();
        // A line that only calls may cost more than all that the function does itself.
        lines.sort_by_key(|(line, counts)| (Reverse(counts.weights()[2]), *line));
        let by_total = lines.len().min(TOP_FUNCTION_LINES);
        lines[by_total..].sort_by_key(|(line, counts)| (Reverse(counts.weights()), *line));
        lines.truncate(2 * TOP_FUNCTION_LINES);
        lines.sort_by_key(|(line, counts)| (Reverse(counts.weights()), *line));
        let numbers = |counts: SampleCounts| [counts.own, counts.attributed, counts.total];
        let listed = lines.iter().flat_map(|(line, counts)| {
            let base = self.has_base.then(|| numbers(counts.base));
            let base = base.into_iter().flatten();
            std::iter::once(u64::from(*line)).chain(numbers(counts.main)).chain(base)
        });
        listed.collect()
    }
}

/// Rounds to three digits.
fn rounded(samples: u64) -> u64 {
    let unit = 10_u64.pow(samples.checked_ilog10().unwrap_or(0).saturating_sub(2));
    samples.saturating_add(unit / 2) / unit * unit
}

/// Counts that aren't 0, each behind its index.
fn counts_by_index<T: Into<u64>>(counts: impl IntoIterator<Item = T>) -> Vec<u64> {
    let seen = (0..).zip(counts.into_iter().map(Into::into)).filter(|(_, samples)| *samples > 0);
    seen.flat_map(|(index, samples)| [index, samples]).collect()
}

fn top_lines(lines: &[(u32, u64)]) -> Vec<u64> {
    let mut lines = lines.to_vec();
    lines.sort_by_key(|&(line, samples)| (Reverse(samples), line));
    lines.iter().take(TOP_LINES).flat_map(|&(line, samples)| [u64::from(line), samples]).collect()
}

/// Takes over only the functions and strings that are used.
struct ColumnWriter<'a> {
    builder: &'a TreeBuilder,
    strings: Vec<Arc<str>>,
    functions: FunctionColumns,
    string_ids: Vec<u32>,
    function_ids: Vec<u32>,
}

impl<'a> ColumnWriter<'a> {
    fn new(builder: &'a TreeBuilder) -> Self {
        Self {
            builder,
            strings: Vec::new(),
            functions: FunctionColumns::default(),
            string_ids: vec![u32::MAX; builder.strings.len()],
            function_ids: vec![u32::MAX; builder.functions.len()],
        }
    }

    fn string(&mut self, id: u32) -> u32 {
        if self.string_ids[id as usize] == u32::MAX {
            self.string_ids[id as usize] = self.strings.len() as u32;
            self.strings.push(Arc::clone(&self.builder.strings[id as usize]));
        }
        self.string_ids[id as usize]
    }

    fn function(&mut self, id: u32) -> u32 {
        if self.function_ids[id as usize] == u32::MAX {
            self.function_ids[id as usize] = self.functions.kind.len() as u32;
            let TreeFunction { kind, name, file, module } = self.builder.functions[id as usize];
            let (name, file, module) = (self.string(name), self.string(file), self.string(module));
            self.functions.kind.push(kind);
            self.functions.name.push(name);
            self.functions.file.push(file);
            self.functions.module.push(module);
        }
        self.function_ids[id as usize]
    }
}
