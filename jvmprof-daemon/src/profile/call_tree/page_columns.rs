//! The finished tree, in the form that the page reads.

use std::sync::Arc;

use serde::Serialize;

use super::{NodeKind, ROOT, TreeBuilder, TreeFunction};

/// FunctionColumns in the table. Nobody reads further; the page says how many there are.
const TOP_FUNCTIONS: usize = 1_000;

/// Lines told for one node.
const TOP_LINES: usize = 3;

/// A tree within a bound, as columns: row `i` of every column of `nodes` speaks of the same node.
/// The names in JSON are what the page's `tree.js` reads.
#[derive(Clone, Debug, Serialize)]
pub struct CallTree {
    pub(super) strings: Vec<Arc<str>>,
    pub(super) functions: FunctionColumns,
    pub(super) nodes: NodeColumns,
    pub(super) top: FunctionTable,
    /// Samples in all stacks.
    pub(super) total: u64,
    /// Samples of stacks that aren't whole, by the marker that says why.
    pub(super) truncated: Vec<(Arc<str>, u64)>,
    pub(super) pruned: Pruned,
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
    /// The lines with most samples: line, samples, line, samples, ...
    pub(super) lines: Vec<Vec<u64>>,
    /// Execution modes of a Java method, by number in the order of `HOW_NAMES` in `tree.js`: how,
    /// samples, how, samples, ...
    pub(super) how: Vec<Vec<u32>>,
}

/// The functions with most samples, their own or with callees: columns again.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct FunctionTable {
    pub(super) function: Vec<u32>,
    #[serde(rename = "self")]
    pub(super) own: Vec<u64>,
    pub(super) total: Vec<u64>,
    /// FunctionColumns that were seen, in the table or not.
    pub(super) seen: usize,
}

/// Counts of what the tree lost to its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// NodeColumns that aren't there by themselves. One that was given up and came back counts
    /// again.
    pub nodes: usize,
    /// Samples whose stacks end in a `[pruned]` node.
    pub samples: u64,
}

impl TreeBuilder {
    /// The tree with its heaviest nodes, at most `max_nodes` (at least 2: the root and what was
    /// cut).
    pub fn finish(mut self, max_nodes: usize) -> CallTree {
        self.prune(max_nodes.max(2));
        let mut writer = ColumnWriter::new(&self);
        let top = self.top(&mut writer);
        let mut nodes = NodeColumns::default();
        let mut pruned = Pruned { nodes: self.pruned_nodes, samples: 0 };
        for node in &self.nodes {
            nodes.parent.push(node.parent);
            nodes.function.push(writer.function(node.function));
            nodes.total.push(node.total);
            nodes.lines.push(top_lines(&node.lines));
            let seen = (0..).zip(node.how).filter(|(_, samples)| *samples > 0);
            nodes.how.push(seen.flat_map(|(how, samples)| [how, samples]).collect());
            pruned.samples += if node.function == self.pruned { node.total } else { 0 };
        }
        let truncated = self
            .truncated
            .iter()
            .map(|(&name, &samples)| (Arc::clone(&self.strings[name as usize]), samples))
            .collect();
        let ColumnWriter { strings, functions, .. } = writer;
        CallTree { strings, functions, nodes, top, total: self.nodes[ROOT as usize].total, truncated, pruned }
    }

    fn top(&self, writer: &mut ColumnWriter<'_>) -> FunctionTable {
        let is_code = |id: &u32| {
            let kind = self.functions[*id as usize].kind;
            !matches!(kind, NodeKind::Root | NodeKind::Label | NodeKind::Pruned)
        };
        let mut seen: Vec<u32> = (0..self.functions.len() as u32)
            .filter(is_code)
            .filter(|&id| self.samples[id as usize].total > 0)
            .collect();
        let samples = |id: &u32| self.samples[*id as usize];
        seen.sort_by_key(|id| std::cmp::Reverse((samples(id).total, samples(id).own)));
        let heaviest_total = seen[..seen.len().min(TOP_FUNCTIONS)].to_vec();
        seen.sort_by_key(|id| std::cmp::Reverse((samples(id).own, samples(id).total)));
        let mut chosen = seen[..seen.len().min(TOP_FUNCTIONS)].to_vec();
        chosen.extend(heaviest_total);
        chosen.sort_by_key(|id| (std::cmp::Reverse((samples(id).own, samples(id).total)), *id));
        chosen.dedup();
        FunctionTable {
            own: chosen.iter().map(|id| samples(id).own).collect(),
            total: chosen.iter().map(|id| samples(id).total).collect(),
            function: chosen.iter().map(|&id| writer.function(id)).collect(),
            seen: seen.len(),
        }
    }
}

fn top_lines(lines: &[(u32, u64)]) -> Vec<u64> {
    let mut lines = lines.to_vec();
    lines.sort_by_key(|&(line, samples)| (std::cmp::Reverse(samples), line));
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
