//! The finished tree, in the form that the page reads.

use std::sync::Arc;

use serde::Serialize;

use super::{Function, NodeKind, ROOT, TreeBuilder};

/// Functions in the table. Nobody reads further; the page says how many there are.
const TOP_FUNCTIONS: usize = 1_000;

/// Lines told for one node.
const TOP_LINES: usize = 3;

/// A tree within a bound, as columns: row `i` of every column of `nodes` speaks of the same node.
/// The names in JSON are what the page's `tree.js` reads.
#[derive(Clone, Debug, Serialize)]
pub struct Tree {
    strings: Vec<Arc<str>>,
    functions: Functions,
    nodes: Nodes,
    top: Top,
    /// Samples in all stacks.
    total: u64,
    /// Samples of stacks that aren't whole, by the marker that says why.
    truncated: Vec<(Arc<str>, u64)>,
    pruned: Pruned,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Functions {
    kind: Vec<NodeKind>,
    name: Vec<u32>,
    file: Vec<u32>,
    module: Vec<u32>,
}

/// Parents stand before their children; node 0 is the root and its own parent.
#[derive(Clone, Debug, Default, Serialize)]
struct Nodes {
    parent: Vec<u32>,
    function: Vec<u32>,
    total: Vec<u64>,
    /// The lines with most samples: line, samples, line, samples, ...
    lines: Vec<Vec<u64>>,
    /// How a Java method ran, by number in the order of `HOW_NAMES` in `tree.js`: how, samples,
    /// how, samples, ...
    how: Vec<Vec<u32>>,
}

/// The functions with most samples, their own or with callees: columns again.
#[derive(Clone, Debug, Default, Serialize)]
struct Top {
    function: Vec<u32>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    /// Functions that were seen, in the table or not.
    seen: usize,
}

/// What the tree lost to its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Nodes that aren't there by themselves. One that was given up and came back counts again.
    pub nodes: usize,
    /// Samples whose stacks end in a `[pruned]` node.
    pub samples: u64,
}

/// A row of the table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRow<'a> {
    pub name: &'a str,
    pub kind: NodeKind,
    pub own: u64,
    pub total: u64,
}

impl Tree {
    /// Samples in all stacks.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Nodes, the root and `[pruned]` ones included.
    pub fn len(&self) -> usize {
        self.nodes.parent.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Samples of stacks that aren't whole.
    pub fn truncated(&self) -> u64 {
        self.truncated.iter().map(|(_, samples)| samples).sum()
    }

    pub fn pruned(&self) -> Pruned {
        self.pruned
    }

    /// The table of functions, most own samples first.
    pub fn top(&self) -> impl Iterator<Item = TopRow<'_>> {
        let top = &self.top;
        top.function.iter().zip(&top.own).zip(&top.total).map(|((&function, &own), &total)| TopRow {
            name: &self.strings[self.functions.name[function as usize] as usize],
            kind: self.functions.kind[function as usize],
            own,
            total,
        })
    }
}

impl TreeBuilder {
    /// The tree with its heaviest nodes, at most `max_nodes` (at least 2: the root and what was
    /// cut).
    pub fn finish(mut self, max_nodes: usize) -> Tree {
        self.prune(max_nodes.max(2));
        let mut writer = Writer::new(&self);
        let top = self.top(&mut writer);
        let mut nodes = Nodes::default();
        let mut pruned = Pruned { nodes: self.given_up, samples: 0 };
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
        let Writer { strings, functions, .. } = writer;
        Tree { strings, functions, nodes, top, total: self.nodes[ROOT as usize].total, truncated, pruned }
    }

    fn top(&self, writer: &mut Writer<'_>) -> Top {
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
        Top {
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
struct Writer<'a> {
    builder: &'a TreeBuilder,
    strings: Vec<Arc<str>>,
    functions: Functions,
    string_ids: Vec<u32>,
    function_ids: Vec<u32>,
}

impl<'a> Writer<'a> {
    fn new(builder: &'a TreeBuilder) -> Self {
        Self {
            builder,
            strings: Vec::new(),
            functions: Functions::default(),
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
            let Function { kind, name, file, module } = self.builder.functions[id as usize];
            let (name, file, module) = (self.string(name), self.string(file), self.string(module));
            self.functions.kind.push(kind);
            self.functions.name.push(name);
            self.functions.file.push(file);
            self.functions.module.push(module);
        }
        self.function_ids[id as usize]
    }
}
