//! Trees of the stacks through one node.

use super::*;

/// The hash of a path of native functions.
fn hash(names: &[&str]) -> PathHash {
    let function = |name: &&str| PathHash::of_function(NodeKind::Native, name, "", "");
    names.iter().map(function).fold(PathHash::ROOT, PathHash::child)
}

/// A builder of the stacks through these nodes.
fn of(under: Vec<PathHash>) -> TreeBuilder {
    TreeBuilder::of_stacks(StackFilter { under, ..StackFilter::default() })
}

#[test]
fn what_a_tree_has_no_room_for_is_in_the_tree_below_its_caller() {
    let fill = |builder: &mut TreeBuilder| {
        for leaf in 0..100 {
            add(builder, &["main", "busy", &format!("leaf{leaf}")], 2);
            add(builder, &["main", "other", &format!("leaf{leaf}")], 3);
        }
    };
    let mut all = TreeBuilder::default();
    fill(&mut all);
    let all = all.finish(10);
    assert!(all.pruned().samples > 400);
    let mut below = of(vec![hash(&["main", "busy"])]);
    fill(&mut below);
    let below = below.finish(PAGE_NODES);
    assert_eq!(below.pruned(), PruneCounts::default());
    let nodes = folded(&below);
    assert_eq!(nodes[..3].iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["all", "main", "main;busy"]);
    assert_eq!((nodes.len(), below.total()), (103, 200));
}

#[test]
fn nodes_are_told_apart_by_all_of_their_path() {
    let mut below = of(vec![hash(&["main", "a"]), hash(&["main", "b", "c"])]);
    for (path, count) in
        [(&["main", "a"][..], 1), (&["a"], 2), (&["main", "b"], 4), (&["main", "b", "c", "d"], 8)]
    {
        add(&mut below, path, count);
    }
    assert_eq!(below.finish(PAGE_NODES).total(), 9);
}
