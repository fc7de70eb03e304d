//! Stacks merged into one tree: what a flame graph draws, and the table of functions beside it.
//!
//! A node is a function reached by one path of callers; inlined calls are nodes of their own.
//! Functions are distinguished by kind, name, file and module, not by line: a flame graph that
//! splits a method by the line it was at hides how much time it took. The lines are counted in the
//! node instead.
//!
//! Two bounds hold whatever the input: [`MAX_BUILD_NODES`] while merging, and the caller's bound
//! for what [`TreeBuilder::finish`] keeps. What is cut stays visible as a `[pruned]` node with its
//! samples, so sums are right. A builder that is full gives up its lightest half, so that what is
//! heavy is kept whenever it comes.

mod activities;
mod from_batch;
mod from_pprof;
mod function_samples;
mod page_columns;
mod path_hash;
mod processes;
mod prune;
mod sample_times;
mod stack_filter;
mod stored_counts;
mod stored_nodes;
mod tree_counts;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use super::jvm_activity::SampledActivity;
use super::model::ExecutionMode;
use crate::types::FastHasher;

use activities::Activities;
pub use activities::ActivitySamples;
pub use from_pprof::PprofSeries;
use function_samples::FunctionSamples;
pub use page_columns::{CallTree, ComparedFunction, PruneCounts};
pub use path_hash::{InvalidPathHash, PathHash};
pub use processes::Processes;
use sample_times::EndTimes;
pub use sample_times::SampleTimes;
use stack_filter::FunctionMatches;
pub use stack_filter::{FunctionPattern, MAX_WANTED, StackFilter};
pub use stored_counts::InvalidTreeCounts;
pub use tree_counts::TreeCounts;

/// Nodes that a tree may have while it is built: about 50 MB.
pub const MAX_BUILD_NODES: usize = 500_000;

/// Nodes that a page draws without delay. A stack of 1,024 frames with inlined calls still
/// fits many times.
pub const PAGE_NODES: usize = 20_000;

/// Nodes on one path, at most. It suffices for a whole stack of 1,024 user and 127 kernel frames
/// with three inlined calls in each frame; deeper input, which only other producers send, would
/// exhaust the browser's stack.
pub const MAX_DEPTH: usize = 4_096;

/// The kind of code that a node stands for; the page colours by it. The numbers are the page
/// data's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NodeKind {
    /// The one node above all stacks.
    Root = 0,
    /// A label's value that stacks were grouped by.
    Label = 1,
    Kernel = 2,
    Native = 3,
    Jit = 4,
    Java = 5,
    /// Not code: `[truncated: reason]`, `[unknown ...]`.
    Marker = 6,
    /// Callees that were cut to keep the tree within its bound.
    Pruned = 7,
    /// Not code: the class of an object.
    Class = 8,
    /// Code that HotSpot generated for itself.
    Stub = 9,
}

impl NodeKind {
    /// Returns the kind with this number.
    fn of_number(number: u64) -> Option<Self> {
        let all = [
            Self::Root,
            Self::Label,
            Self::Kernel,
            Self::Native,
            Self::Jit,
            Self::Java,
            Self::Marker,
            Self::Pruned,
            Self::Class,
            Self::Stub,
        ];
        all.into_iter().find(|kind| *kind as u64 == number)
    }
}

impl Serialize for NodeKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// An index into the builder's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(u32);

/// One call of a stack: a function, the line in it (0 if unknown), and how it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStep {
    pub function: FunctionId,
    pub line: u32,
    /// The execution mode of a Java method, if that is known.
    pub mode: Option<ExecutionMode>,
}

/// A function by what distinguishes it in the tree; strings are indices into the tree's string
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TreeFunction {
    pub(crate) kind: NodeKind,
    pub(crate) name: u32,
    pub(crate) file: u32,
    /// File name of the mapping (`libc.so.6`), or `jvm`, `[kernel.kallsyms]`.
    pub(crate) module: u32,
}

#[derive(Clone, Debug)]
struct CallNode {
    parent: u32,
    function: u32,
    total: u64,
    /// Samples of the base that the tree is compared with.
    base: u64,
    /// Samples by line of this function: the line that runs in a leaf, the line of the call
    /// elsewhere.
    lines: SmallVec<[(u32, u64); 1]>,
    /// Samples by how the method ran, in the order of [`ExecutionMode`].
    how: [u32; EXECUTION_MODES],
}

impl CallNode {
    fn new(parent: u32, function: u32) -> Self {
        Self { parent, function, total: 0, base: 0, lines: SmallVec::new(), how: [0; EXECUTION_MODES] }
    }

    /// The samples that decide whether the node is kept.
    fn weight(&self) -> u64 {
        self.total.saturating_add(self.base)
    }
}

/// Number of execution modes.
const EXECUTION_MODES: usize = ExecutionMode::Native as usize + 1;

/// The index of the node above all stacks.
const ROOT: u32 = 0;

/// Different lines counted in one node; what a function has beyond them isn't counted by line.
const MAX_LINES: usize = 64;

/// Merges stacks, as many as there are, into a tree of bounded size.
#[derive(Debug)]
pub struct TreeBuilder {
    strings: Vec<Arc<str>>,
    string_ids: HashMap<Arc<str>, u32, FastHasher>,
    functions: Vec<TreeFunction>,
    function_ids: HashMap<TreeFunction, u32, FastHasher>,
    samples: Vec<FunctionSamples>,
    activities: Activities,
    times: EndTimes,
    /// The hash of each function, as part of paths.
    hashes: Vec<PathHash>,
    /// Only stacks that it takes are counted.
    filter: StackFilter,
    /// By function, what of the filter matches it.
    matches: Vec<FunctionMatches>,
    nodes: Vec<CallNode>,
    children: HashMap<(u32, u32), u32, FastHasher>,
    /// The function and the node of each step of the last stack: most stacks begin as the one
    /// before them.
    last: Vec<(u32, u32)>,
    truncated: BTreeMap<u32, u64>,
    stacks: u64,
    /// True while stacks are counted that the tree is compared with.
    is_base: bool,
    has_base: bool,
    max_nodes: usize,
    /// The function `[pruned]`, which has a node below each node that lost callees.
    pruned: u32,
    /// Nodes that were given up so far.
    pruned_nodes: usize,
    /// The most samples that a node may lack because it was given up in between.
    most_lacking: u64,
}

impl Default for TreeBuilder {
    fn default() -> Self {
        Self::with_capacity(MAX_BUILD_NODES)
    }
}

impl TreeBuilder {
    fn with_capacity(max_nodes: usize) -> Self {
        let mut builder = Self {
            strings: Vec::new(),
            string_ids: HashMap::default(),
            functions: Vec::new(),
            function_ids: HashMap::default(),
            samples: Vec::new(),
            activities: Activities::default(),
            times: EndTimes::default(),
            hashes: Vec::new(),
            filter: StackFilter::default(),
            matches: Vec::new(),
            nodes: Vec::new(),
            children: HashMap::default(),
            last: Vec::new(),
            truncated: BTreeMap::new(),
            stacks: 0,
            is_base: false,
            has_base: false,
            max_nodes,
            pruned: 0,
            pruned_nodes: 0,
            most_lacking: 0,
        };
        builder.intern("");
        let root = builder.function(NodeKind::Root, "all", "", "");
        builder.nodes.push(CallNode::new(ROOT, root.0));
        builder.pruned = builder.function(NodeKind::Pruned, "[pruned]", "", "").0;
        builder
    }

    fn intern(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.string_ids.get(text) {
            return id;
        }
        let id = self.strings.len() as u32;
        let text: Arc<str> = text.into();
        self.strings.push(Arc::clone(&text));
        self.string_ids.insert(text, id);
        id
    }

    /// The function with this identity; `file` and `module` may be empty. A module's folders are
    /// left out, so that the same library of several containers is one. Places in a file without
    /// symbols (`libc.so.6+0x27249`) are one too.
    pub fn function(&mut self, kind: NodeKind, name: &str, file: &str, module: &str) -> FunctionId {
        let module = module.rsplit('/').next().unwrap_or(module);
        let unnamed_frame = is_address_in(module, name).then(|| unnamed_frame(module, None));
        let name = unnamed_frame.as_deref().unwrap_or(name);
        let function = TreeFunction {
            kind,
            name: self.intern(name),
            file: self.intern(file),
            module: self.intern(module),
        };
        let next = self.functions.len() as u32;
        let id = *self.function_ids.entry(function).or_insert(next);
        if id == next {
            let [name, file, module] =
                [function.name, function.file, function.module].map(|id| &*self.strings[id as usize]);
            self.hashes.push(PathHash::of_function(kind, name, file, module));
            self.matches.push(self.filter.matches(kind, name));
            self.functions.push(function);
            self.samples.push(FunctionSamples::default());
            self.activities.add_function(name);
        }
        FunctionId(id)
    }

    /// Counts a stack, `path` from the root to the leaf, that was seen `count` times.
    pub fn add(&mut self, path: &[CallStep], count: u64) {
        self.add_in(path, count, None);
    }

    /// The same, and what these samples were taken in. Returns the node in which the stack ends, if
    /// it is counted.
    fn add_in(&mut self, path: &[CallStep], count: u64, sampled_in: Option<SampledActivity>) -> Option<u32> {
        if count == 0 || !self.takes_path(path) || !self.takes_samples(sampled_in, count) {
            return None;
        }
        if self.nodes.len() + path.len().min(MAX_DEPTH) > self.max_nodes {
            self.prune(self.max_nodes / 2);
        }
        self.stacks += 1;
        self.count_functions(path, count);
        if !self.is_base {
            self.count_truncated(path, count);
        }
        let mut at = ROOT;
        self.count_node(ROOT, count);
        for (depth, step) in path[..path.len().min(MAX_DEPTH)].iter().enumerate() {
            at = self.step_node(depth, at, step.function.0);
            self.count_node(at, count);
            if self.is_base {
                continue;
            }
            let node = &mut self.nodes[at as usize];
            count_line(&mut node.lines, step.line, count);
            if let Some(mode) = step.mode {
                let samples = &mut node.how[mode as usize];
                *samples = samples.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            }
        }
        if path.len() > MAX_DEPTH {
            at = self.child(at, self.pruned);
            self.count_node(at, count);
        }
        if let Some(sampled_in) = sampled_in {
            self.activities.add(at, sampled_in, count, self.is_base);
        }
        Some(at)
    }

    /// Returns the number of samples in all stacks so far.
    pub fn total(&self) -> u64 {
        self.nodes[ROOT as usize].total
    }

    fn count_node(&mut self, node: u32, count: u64) {
        let node = &mut self.nodes[node as usize];
        *(if self.is_base { &mut node.base } else { &mut node.total }) += count;
    }

    /// Counts what is added from now on as the base that the tree is compared with, or as the tree
    /// again.
    pub fn count_base(&mut self, is_base: bool) {
        self.is_base = is_base;
        self.has_base |= is_base;
    }

    /// Makes the tree one that is compared with a base, even if that has no stacks.
    pub fn compare(&mut self) {
        self.has_base = true;
    }

    /// Returns the node of a step of a stack, below that of the step before it.
    fn step_node(&mut self, depth: usize, parent: u32, function: u32) -> u32 {
        if let Some(&(_, node)) = self.last.get(depth).filter(|(last, _)| *last == function) {
            return node;
        }
        let node = self.child(parent, function);
        self.last.truncate(depth);
        self.last.push((function, node));
        node
    }

    fn child(&mut self, parent: u32, function: u32) -> u32 {
        match self.children.get(&(parent, function)) {
            Some(&child) => child,
            None => self.add_child(parent, function),
        }
    }

    fn add_child(&mut self, parent: u32, function: u32) -> u32 {
        let child = self.nodes.len() as u32;
        self.nodes.push(CallNode::new(parent, function));
        self.children.insert((parent, function), child);
        child
    }

    /// A stack that isn't whole has a marker as its outermost frame; labels may stand above it.
    fn count_truncated(&mut self, path: &[CallStep], count: u64) {
        let mut functions = path.iter().map(|step| self.functions[step.function.0 as usize]);
        let Some(outermost) = functions.find(|function| function.kind != NodeKind::Label) else {
            return;
        };
        if self.is_truncation(outermost) {
            *self.truncated.entry(outermost.name).or_default() += count;
        }
    }

    fn is_truncation(&self, function: TreeFunction) -> bool {
        function.kind == NodeKind::Marker && self.strings[function.name as usize].starts_with("[truncated")
    }
}

fn count_line(lines: &mut SmallVec<[(u32, u64); 1]>, line: u32, count: u64) {
    if line == 0 {
        return;
    }
    if let Some((_, samples)) = lines.iter_mut().find(|(known, _)| *known == line) {
        *samples += count;
    } else if lines.len() < MAX_LINES {
        lines.push((line, count));
    }
}

/// The begin of the names of code without a name.
const UNKNOWN_CODE: &str = "[unknown";

/// The begins of the names of what isn't code and has no mapping: causes of waits, and time and
/// allocations of which no stack was taken.
const NO_CODE: [&str; 4] =
    ["[wait: ", "[not sampled]", "[stolen by the hypervisor]", "[no allocation site sampled]"];

/// Returns what kind of code a function is, by its mapping's kind and its name: in the mapping of
/// a JVM's code, names in brackets are those of stubs.
fn kind_of(mapped: NodeKind, name: &str) -> NodeKind {
    match mapped {
        _ if name.starts_with("[truncated") || name.starts_with(UNKNOWN_CODE) => NodeKind::Marker,
        NodeKind::Native if NO_CODE.iter().any(|begin| name.starts_with(begin)) => NodeKind::Marker,
        NodeKind::Java if name.starts_with('[') => NodeKind::Stub,
        mapped => mapped,
    }
}

/// Returns the name and the execution mode of a Java method whose name may contain the mode: a
/// method is one function, however it ran. Other functions have their name and no mode.
fn java_name(kind: NodeKind, name: &str, mode: Option<ExecutionMode>) -> (&str, Option<ExecutionMode>) {
    if kind != NodeKind::Java {
        return (name, None);
    }
    let (name, of_name) = ExecutionMode::split_suffix(name);
    (name, mode.or(of_name))
}

/// Returns true if the name is how the symbolizer writes a place that no symbol covers.
fn is_address_in(module: &str, name: &str) -> bool {
    let place = name.strip_prefix(module).and_then(|rest| rest.strip_prefix("+0x"));
    !module.is_empty() && place.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns the name of a frame without a symbol. It isn't named by its address: a function of which
/// every instruction is a node of its own can't be seen to be heavy. The addresses are in the
/// pprof.
fn unnamed_frame(module: &str, address: Option<u64>) -> String {
    let file = module.rsplit('/').next().unwrap_or(module);
    match address {
        _ if !file.is_empty() => format!("{file} (no symbol)"),
        Some(address) => format!("[unknown {address:#x}]"),
        None => "[unknown]".to_owned(),
    }
}

#[cfg(test)]
mod tests;
