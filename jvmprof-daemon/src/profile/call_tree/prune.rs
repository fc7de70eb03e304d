//! Cutting a tree to its heaviest nodes.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::{CallNode, TreeBuilder};

impl TreeBuilder {
    /// Cuts the tree to at most `max_nodes`. What goes is summed up in `[pruned]` nodes.
    pub(super) fn prune(&mut self, max_nodes: usize) {
        if self.nodes.len() <= max_nodes {
            return;
        }
        let keep = self.heaviest(max_nodes);
        let old = std::mem::take(&mut self.nodes);
        self.children = HashMap::default();
        self.last.clear();
        let mut places: Vec<u32> = vec![u32::MAX; old.len()];
        // Where stacks end now that ended in a node.
        let mut ends: Vec<u32> = vec![0; old.len()];
        for (index, node) in old.into_iter().enumerate() {
            let parent = places[node.parent as usize];
            if index == 0 || keep[index] {
                places[index] = self.keep_node(node, parent, index == 0);
                ends[index] = places[index];
                continue;
            }
            self.pruned_nodes += usize::from(node.function != self.pruned);
            ends[index] = ends[node.parent as usize];
            if parent != u32::MAX {
                ends[index] = self.child(parent, self.pruned);
                let rest = &mut self.nodes[ends[index] as usize];
                rest.total += node.total;
                rest.base += node.base;
            }
        }
        self.activities.moved(&ends);
    }

    /// Puts a kept node into the new list. A `[pruned]` node may be there already, for a sibling
    /// that went before it.
    fn keep_node(&mut self, node: CallNode, parent: u32, is_root: bool) -> u32 {
        if is_root {
            self.nodes.push(node);
            return 0;
        }
        let place = self.child(parent, node.function);
        let taken = &mut self.nodes[place as usize];
        taken.total += node.total;
        taken.base += node.base;
        (taken.lines, taken.how) = (node.lines, node.how);
        place
    }

    /// Returns which nodes stay, so that they and their `[pruned]` children are at most
    /// `max_nodes`.
    ///
    /// A node has at least the samples of each of its children and stands before them, so the
    /// heaviest nodes with the index as second key are closed under "parent of".
    fn heaviest(&self, max_nodes: usize) -> Vec<bool> {
        let mut order: Vec<u32> = (0..self.nodes.len() as u32).collect();
        order.sort_unstable_by_key(|&node| (Reverse(self.nodes[node as usize].weight()), node));
        let marked = |count: usize| {
            let mut keep = vec![false; self.nodes.len()];
            order[..count].iter().for_each(|&node| keep[node as usize] = true);
            keep
        };
        let (mut fits, mut too_many) = (1, max_nodes);
        while fits + 1 < too_many {
            let count = fits.midpoint(too_many);
            if count + self.remainders(&marked(count)) <= max_nodes {
                fits = count;
            } else {
                too_many = count;
            }
        }
        marked(fits)
    }

    /// Kept nodes that lose a child, each of which gets one `[pruned]` child instead.
    fn remainders(&self, keep: &[bool]) -> usize {
        let mut loses = vec![false; keep.len()];
        for (node, _) in self.nodes.iter().zip(keep).filter(|(_, kept)| !**kept) {
            loses[node.parent as usize] = keep[node.parent as usize];
        }
        loses.iter().filter(|loses| **loses).count()
    }
}
