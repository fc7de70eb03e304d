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
        // A node that comes back may have had so many samples before.
        let mut heaviest_cut = 0;
        for (index, node) in old.into_iter().enumerate() {
            let parent = places[node.parent as usize];
            if index == 0 || keep[index] {
                places[index] = self.keep_node(node, parent, index == 0);
                ends[index] = places[index];
                continue;
            }
            if node.function != self.pruned {
                self.pruned_nodes += 1;
                heaviest_cut = heaviest_cut.max(node.weight());
            }
            ends[index] = ends[node.parent as usize];
            if parent != u32::MAX {
                ends[index] = self.child(parent, self.pruned);
                let rest = &mut self.nodes[ends[index] as usize];
                rest.total += node.total;
                rest.base += node.base;
            }
        }
        self.most_lacking = self.most_lacking.saturating_add(heaviest_cut);
        self.activities.moved(&ends);
        self.times.moved(&ends);
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
        let key = |&node: &u32| (Reverse(self.nodes[node as usize].weight()), node);
        // Only these can stay, and only their order matters.
        if max_nodes < order.len() {
            order.select_nth_unstable_by_key(max_nodes, key);
            order.truncate(max_nodes);
        }
        order.sort_unstable_by_key(key);
        let remainders = self.remainders(&order);
        let (mut fits, mut too_many) = (1, max_nodes);
        while fits + 1 < too_many {
            let count = fits.midpoint(too_many);
            if count + remainders[count] <= max_nodes {
                fits = count;
            } else {
                too_many = count;
            }
        }
        let mut keep = vec![false; self.nodes.len()];
        order[..fits].iter().for_each(|&node| keep[node as usize] = true);
        keep
    }

    /// Returns, for each number of nodes that are kept of an order, how many of these lose a child:
    /// each gets one `[pruned]` child instead.
    fn remainders(&self, order: &[u32]) -> Vec<usize> {
        let unranked = order.len();
        let mut ranks = vec![unranked; self.nodes.len()];
        order.iter().enumerate().for_each(|(rank, &node)| ranks[node as usize] = rank);
        // By rank: that of the lightest child, which goes first.
        let mut lightest = vec![0; unranked];
        for (node, rank) in self.nodes.iter().zip(&ranks).skip(1) {
            if let Some(of_parent) = lightest.get_mut(ranks[node.parent as usize]) {
                *of_parent = (*rank).max(*of_parent);
            }
        }
        // A node loses a child as long as it is kept itself and its lightest child isn't.
        let (mut begins, mut ends) = (vec![0; unranked + 2], vec![0; unranked + 2]);
        for (rank, lightest) in lightest.into_iter().enumerate().filter(|(rank, child)| child > rank) {
            begins[rank + 1] += 1;
            ends[lightest + 1] += 1;
        }
        let mut losing = 0;
        let sums = begins.into_iter().zip(ends).map(|(begins, ends): (usize, usize)| {
            losing = losing + begins - ends;
            losing
        });
        sums.collect()
    }
}
