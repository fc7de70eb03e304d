//! Shares of the time that functions and what they call take, by what was sampled here and by
//! node's own profiler.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Stacks, root first, and how often each was seen.
pub(crate) type Stacks = Vec<(Vec<String>, u64)>;

/// Samples, and those of each function that is somewhere in their stacks.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) all: u64,
    by_function: BTreeMap<String, u64>,
}

impl Shares {
    /// Of the stacks that are wanted.
    pub(crate) fn of(stacks: &Stacks, is_wanted: impl Fn(&[String]) -> bool) -> Self {
        let mut shares = Self::default();
        for (frames, count) in stacks.iter().filter(|(frames, _)| is_wanted(frames)) {
            shares.all += count;
            for function in frames.iter().collect::<BTreeSet<_>>() {
                *shares.by_function.entry(function.clone()).or_default() += count;
            }
        }
        shares
    }

    pub(crate) fn of_function(&self, function: &str) -> f64 {
        self.by_function.get(function).map_or(0.0, |count| *count as f64 / self.all as f64)
    }

    /// The functions with the largest shares, each with its own.
    pub(crate) fn largest(&self, most: usize) -> Vec<(&str, f64)> {
        let mut functions: Vec<&str> = self.by_function.keys().map(String::as_str).collect();
        functions.sort_by_key(|function| std::cmp::Reverse(self.by_function[*function]));
        functions.into_iter().take(most).map(|function| (function, self.of_function(function))).collect()
    }
}

/// The stacks of node's own profile (`--cpu-prof`); frames without a name are left out.
pub(crate) fn of_cpu_prof(text: &str) -> Stacks {
    let profile: Value = serde_json::from_str(text).expect("JSON");
    let nodes = profile["nodes"].as_array().expect("nodes");
    let id = |value: &Value| value.as_u64().expect("an id");
    let mut parents = BTreeMap::new();
    let mut names = BTreeMap::new();
    for node in nodes {
        names.insert(id(&node["id"]), node["callFrame"]["functionName"].as_str().expect("a name"));
        for child in node["children"].as_array().into_iter().flatten() {
            parents.insert(id(child), id(&node["id"]));
        }
    }
    let stack = |sample: &Value| {
        let ids = std::iter::successors(Some(id(sample)), |node| parents.get(node).copied());
        let named = ids.filter_map(|node| names.get(&node)).filter(|name| !name.is_empty());
        let mut frames: Vec<String> = named.map(|name| (*name).to_owned()).collect();
        frames.reverse();
        (frames, 1)
    };
    profile["samples"].as_array().expect("samples").iter().map(stack).collect()
}
