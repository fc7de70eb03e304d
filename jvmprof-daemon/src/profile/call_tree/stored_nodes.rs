//! Nodes of stored counts, of which only those become nodes again that an answer has room for: most
//! of what many trees have is too light for it.

use std::cmp::Reverse;

use super::function_samples::FunctionSamples;
use super::stored_counts::{InvalidTreeCounts, NumberReader, below};
use super::tree_counts::TreeCounts;
use super::{CallNode, MAX_LINES, NodeKind, TreeFunction};
use crate::profile::jvm_activity::SampledActivity;

/// The part of a node that decides whether it is kept.
struct NodeHead {
    parent: u32,
    total: u64,
}

/// No node.
const NONE: u32 = u32::MAX;

/// Lists of pairs of each node: samples by line, by execution mode and by what they
/// were taken in.
const LISTS: usize = 3;

fn heads(mut numbers: NumberReader<'_>) -> Result<Vec<NodeHead>, InvalidTreeCounts> {
    let mut heads: Vec<NodeHead> = Vec::new();
    while !numbers.is_empty() {
        let index = heads.len() as u64;
        let [_, above, total] = numbers.take()?;
        let parent = index.checked_sub(above).ok_or(InvalidTreeCounts::Numbers)? as u32;
        // A caller is kept if a callee is, since it has at least its samples.
        let is_heavier = heads.get(parent as usize).is_some_and(|parent| parent.total < total);
        if (above == 0) != (index == 0) || is_heavier {
            return Err(InvalidTreeCounts::Numbers);
        }
        heads.push(NodeHead { parent, total });
        (0..LISTS).try_for_each(|_| numbers.skip_pairs())?;
    }
    if heads.is_empty() { Err(InvalidTreeCounts::Numbers) } else { Ok(heads) }
}

impl TreeCounts {
    /// Reads the heaviest nodes, at most `max_nodes`; what others have is counted in a `[pruned]`
    /// node below the caller that is left.
    pub(super) fn read_nodes(&mut self, stored: &[u64], max_nodes: usize) -> Result<(), InvalidTreeCounts> {
        let (mut numbers, heads) = (NumberReader(stored), heads(NumberReader(stored))?);
        let functions = self.functions.len();
        let mut totals: Vec<u64> = heads.iter().map(|head| head.total).collect();
        let threshold = (totals.len() > max_nodes)
            .then(|| *totals.select_nth_unstable_by_key(max_nodes, |total| Reverse(*total)).1);
        self.add_lacking(threshold.unwrap_or(0));
        let is_kept =
            |index: usize| index == 0 || threshold.is_none_or(|threshold| heads[index].total > threshold);
        let pruned = if threshold.is_some() { self.pruned_function() } else { NONE };
        // Where each node is now, or what it had; and by new node its `[pruned]` child.
        let mut places: Vec<u32> = Vec::with_capacity(heads.len());
        let mut remainders: Vec<u32> = Vec::new();
        for (index, head) in heads.iter().enumerate() {
            let [function, ..] = numbers.take::<3>()?;
            let function = below(function, functions)?;
            let parent = places.get(head.parent as usize).copied().unwrap_or(0);
            let place = if is_kept(index) {
                self.push_node(parent, function, head.total, &mut remainders)
            } else {
                self.pruned_nodes += usize::from(function != pruned);
                if is_kept(head.parent as usize) {
                    if remainders[parent as usize] == NONE {
                        remainders[parent as usize] = self.push_node(parent, pruned, 0, &mut remainders);
                    }
                    let remainder = remainders[parent as usize];
                    let total = &mut self.nodes[remainder as usize].total;
                    *total = total.saturating_add(head.total);
                    remainder
                } else {
                    // It is part of what its caller had.
                    parent
                }
            };
            self.read_lists(&mut numbers, place, is_kept(index))?;
            places.push(place);
        }
        Ok(())
    }

    fn push_node(&mut self, parent: u32, function: u32, total: u64, remainders: &mut Vec<u32>) -> u32 {
        self.nodes.push(CallNode { total, ..CallNode::new(parent, function) });
        remainders.push(NONE);
        self.nodes.len() as u32 - 1
    }

    /// Returns the function of `[pruned]` nodes.
    fn pruned_function(&mut self) -> u32 {
        let known = self.functions.iter().position(|function| function.kind == NodeKind::Pruned);
        let known = known.unwrap_or_else(|| {
            self.strings.push("[pruned]");
            let name = self.strings.ends.len() as u32 - 1;
            // Neither of them is in the list: both are "".
            self.functions.push(TreeFunction { kind: NodeKind::Pruned, name, file: NONE, module: NONE });
            self.samples.push(FunctionSamples::default());
            self.functions.len() - 1
        });
        known as u32
    }

    fn read_lists(
        &mut self,
        numbers: &mut NumberReader<'_>,
        place: u32,
        is_kept: bool,
    ) -> Result<(), InvalidTreeCounts> {
        if is_kept {
            let node = &mut self.nodes[place as usize];
            numbers.pairs(|line, count| {
                node.lines.push((below(line, u32::MAX as usize)?, count));
                Ok(())
            })?;
            if node.lines.len() > MAX_LINES {
                return Err(InvalidTreeCounts::Numbers);
            }
            numbers.pairs(|mode, count| {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                node.how[below(mode, node.how.len())? as usize] = count;
                Ok(())
            })?;
        } else {
            (1..LISTS).try_for_each(|_| numbers.skip_pairs())?;
        }
        numbers.pairs(|number, count| {
            let sampled_in = SampledActivity::of_number(number).ok_or(InvalidTreeCounts::Numbers)?;
            self.ends.push((place, sampled_in, [count, 0]));
            Ok(())
        })
    }
}
