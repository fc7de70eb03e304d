//! Counts of one builder in another, stored in between or not.

use super::*;
use crate::profile::call_tree::stored_counts::InvalidTreeCounts;
use crate::profile::jvm_activity::{JvmActivity, ThreadKind};

/// A small generator of numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Adds stacks with lines, modes and activities, of which some aren't whole.
fn add_stacks(builder: &mut TreeBuilder, stacks: u64, numbers: &mut Numbers) {
    builder.count_activities();
    for _ in 0..stacks {
        let mut path = Vec::new();
        if numbers.below(9) == 0 {
            let function = builder.function(NodeKind::Marker, "[truncated: unreadable]", "", "");
            path.push(CallStep { function, line: 0, mode: None });
        }
        for _ in 0..1 + numbers.below(5) {
            let function =
                builder.function(NodeKind::Java, &format!("acme.A.f{}", numbers.below(6)), "A.java", "jvm");
            let mode = [None, Some(ExecutionMode::C1), Some(ExecutionMode::C2)][numbers.below(3) as usize];
            path.push(CallStep { function, line: numbers.below(4) as u32, mode });
        }
        let activity = [JvmActivity::Application, JvmActivity::Gc][numbers.below(2) as usize];
        let count = 1 + numbers.below(7);
        let thread = [ThreadKind::Java, ThreadKind::Virtual][count as usize % 2];
        builder.add_in(&path, count, Some(SampledActivity { activity, thread, process: 0 }));
    }
}

/// The tree with its nodes and functions in an order that doesn't depend on who came first.
fn rows(builder: TreeBuilder) -> (Vec<String>, Vec<String>, Value) {
    let tree = serde_json::to_value(builder.finish(PAGE_NODES)).unwrap();
    let name = |function: &Value| {
        let of = |column: &str| &tree["functions"][column][function.as_u64().unwrap() as usize];
        format!("{} {}", of("kind"), tree["strings"][of("name").as_u64().unwrap() as usize])
    };
    let sorted = |pairs: &Value, width: usize| {
        let numbers: Vec<u64> = serde_json::from_value(pairs.clone()).unwrap();
        let mut pairs: Vec<_> = numbers.chunks(width).map(<[u64]>::to_vec).collect();
        pairs.sort_unstable();
        format!("{pairs:?}")
    };
    let nodes = &tree["nodes"];
    let mut paths: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for node in 0..nodes["parent"].as_array().unwrap().len() {
        let above = paths.get(nodes["parent"][node].as_u64().unwrap() as usize).cloned().unwrap_or_default();
        paths.push(format!("{above};{}", name(&nodes["function"][node])));
        let counts =
            ["total", "base", "how", "activity", "base_activity"].map(|of| nodes[of][node].to_string());
        all.push(format!("{} {counts:?} {}", paths[node], sorted(&nodes["lines"][node], 2)));
    }
    all.sort();
    let top = &tree["top"];
    let mut table = Vec::new();
    for row in 0..top["function"].as_array().unwrap().len() {
        let counts = ["self", "attributed", "total", "how"].map(|of| top[of][row].to_string());
        let base = ["self", "attributed", "total"].map(|of| top["base"][of][row].to_string());
        let width = if top["base"].is_null() { 4 } else { 7 };
        let lines = sorted(&top["lines"][row], width);
        table.push(format!("{} {counts:?} {base:?} {lines}", name(&top["function"][row])));
    }
    table.sort();
    (all, table, serde_json::json!([tree["total"], tree["base"], tree["truncated"], tree["pruned"]]))
}

fn read(bytes: &[u8], max_nodes: usize) -> TreeCounts {
    TreeCounts::from_bytes(bytes, max_nodes).unwrap()
}

/// Returns counts as the collector reads them: encoded and decoded.
fn stored(builder: TreeBuilder) -> TreeCounts {
    read(&builder.into_counts(usize::MAX).to_bytes(), usize::MAX)
}

#[test]
fn counts_of_parts_are_those_of_the_whole() {
    let mut whole = TreeBuilder::default();
    let numbers = &mut Numbers(3);
    (0..3).for_each(|_| add_stacks(&mut whole, 200, numbers));
    let mut of_parts = TreeBuilder::default();
    of_parts.count_activities();
    let numbers = &mut Numbers(3);
    for is_stored in [true, false, true] {
        let mut part = TreeBuilder::default();
        add_stacks(&mut part, 200, numbers);
        let counts = if is_stored { stored(part) } else { part.into_counts(usize::MAX) };
        assert!(counts.is_whole());
        of_parts.add_counts(counts, None);
    }
    assert_eq!(of_parts.most_lacking(), 0);
    assert_eq!(rows(of_parts), rows(whole));
}

#[test]
fn counts_of_a_base_stay_its_own() {
    let built = |is_in_parts: bool| {
        let mut builder = TreeBuilder::default();
        let numbers = &mut Numbers(5);
        for is_base in [true, false] {
            builder.count_base(is_base);
            if is_in_parts {
                let mut part = TreeBuilder::default();
                add_stacks(&mut part, 200, numbers);
                builder.count_activities();
                builder.add_counts(stored(part), None);
            } else {
                add_stacks(&mut builder, 200, numbers);
            }
        }
        builder
    };
    assert_eq!(rows(built(true)), rows(built(false)));
    // Of two sides that were counted apart, too.
    let (mut main, mut base) = (TreeBuilder::default(), TreeBuilder::default());
    let numbers = &mut Numbers(5);
    base.count_base(true);
    add_stacks(&mut base, 200, numbers);
    base.count_base(false);
    add_stacks(&mut main, 200, numbers);
    main.compare();
    main.add_counts(base.into_counts(usize::MAX), None);
    assert_eq!(rows(main), rows(built(false)));
}

#[test]
fn a_group_stands_above_what_is_added_to_it() {
    let mut builder = TreeBuilder::default();
    for (group, count) in [("shop", 3), ("stock", 2)] {
        let mut part = TreeBuilder::default();
        add(&mut part, &["main", "a"], count);
        builder.add_counts(stored(part), Some(group));
    }
    let expected = [
        ("all", 5),
        ("shop", 3),
        ("shop;main", 3),
        ("shop;main;a", 3),
        ("stock", 2),
        ("stock;main", 2),
        ("stock;main;a", 2),
    ];
    assert_eq!(folded(&builder.finish(PAGE_NODES)), expected.map(|(path, total)| (path.to_owned(), total)));
}

#[test]
fn what_a_cut_part_lacks_is_in_pruned_and_no_more_than_it_says() {
    let mut builder = TreeBuilder::default();
    let mut exact = TreeBuilder::default();
    let mut most_lacking = 0;
    let numbers = &mut Numbers(11);
    for round in 0..6 {
        let mut part = TreeBuilder::default();
        let seed = numbers.0;
        add_stacks(&mut part, 300, numbers);
        add_stacks(&mut exact, 300, &mut Numbers(seed));
        let counts = part.into_counts(60);
        assert!(!counts.is_whole() && counts.most_lacking() > 0);
        // Some are cut once more where they are read.
        let counts = read(&counts.to_bytes(), [60, 30][round % 2]);
        most_lacking += counts.most_lacking();
        builder.add_counts(counts, None);
    }
    let (of_parts, exact) = (builder.finish(PAGE_NODES), exact.finish(PAGE_NODES));
    assert_sums_hold(&of_parts);
    assert_eq!((of_parts.total(), of_parts.truncated()), (exact.total(), exact.truncated()));
    assert_eq!(of_parts.top().collect::<Vec<_>>(), exact.top().collect::<Vec<_>>());
    let exact: std::collections::HashMap<_, _> = folded(&exact).into_iter().collect();
    let kept: Vec<_> =
        folded(&of_parts).into_iter().filter(|(path, _)| !path.ends_with("[pruned]")).collect();
    assert!(kept.len() > 20);
    for (path, total) in kept {
        assert!(total <= exact[&path] && exact[&path] <= total + most_lacking, "{path} has {total}");
    }
}

#[test]
fn a_cut_leaves_the_heaviest_and_what_they_were_taken_in() {
    let mut part = TreeBuilder::default();
    add_stacks(&mut part, 300, &mut Numbers(7));
    let counts = read(&part.into_counts(usize::MAX).to_bytes(), 40);
    assert!(counts.most_lacking() > 0);
    let mut builder = TreeBuilder::default();
    builder.count_activities();
    builder.add_counts(counts, None);
    let tree = builder.finish(PAGE_NODES);
    assert_sums_hold(&tree);
    assert!(tree.pruned().nodes > 100 && tree.pruned().samples > 0);
    let (pruned, kept): (Vec<_>, Vec<_>) =
        folded(&tree).into_iter().partition(|(path, _)| path.ends_with("[pruned]"));
    assert!(kept.len() <= 40 && kept.len() > 20 && pruned.len() <= kept.len());
    // Each sample has its activity: what isn't said of a node is that of all that end in it.
    let json = serde_json::to_value(&tree).unwrap();
    let (totals, parents) = (&json["nodes"]["total"], &json["nodes"]["parent"]);
    let mut own: Vec<u64> = serde_json::from_value(totals.clone()).unwrap();
    for node in 1..tree.len() {
        own[parents[node].as_u64().unwrap() as usize] -= totals[node].as_u64().unwrap();
    }
    for (row, own) in json["nodes"]["activity"].as_array().unwrap().iter().zip(own) {
        let row: Vec<u64> = serde_json::from_value(row.clone()).unwrap();
        let said: u64 = row.chunks_exact(2).map(|pair| pair[1]).sum();
        assert!(row.len() == usize::from(own > 0) || said == own, "{row:?} of {own}");
    }
}

#[test]
fn a_tree_that_fits_is_read_as_it_is_and_one_that_is_cut_twice_has_one_pruned_node_a_caller() {
    let mut part = TreeBuilder::default();
    add_stacks(&mut part, 300, &mut Numbers(13));
    let counts = part.into_counts(60);
    let (most_lacking, bytes) = (counts.most_lacking(), counts.to_bytes());
    let fitting = read(&bytes, 60);
    assert_eq!((fitting.to_bytes(), fitting.most_lacking()), (bytes.clone(), most_lacking));
    let cut = read(&bytes, 25);
    assert!(cut.most_lacking() > most_lacking);
    let totals = |counts: TreeCounts| {
        let mut builder = TreeBuilder::default();
        builder.add_counts(counts, None);
        let tree = builder.finish(PAGE_NODES);
        assert_sums_hold(&tree);
        folded(&tree)
    };
    let (fitting, cut) = (totals(fitting), totals(cut));
    let whole: std::collections::HashMap<_, _> = fitting.into_iter().collect();
    let kept: Vec<_> = cut.iter().filter(|(path, _)| !path.ends_with("[pruned]")).collect();
    assert!(kept.len() <= 25 && kept.iter().all(|(path, total)| whole[path] == *total));
}

#[test]
fn other_bytes_are_no_counts() {
    let mut builder = TreeBuilder::default();
    add_stacks(&mut builder, 20, &mut Numbers(1));
    let bytes = builder.into_counts(usize::MAX).to_bytes();
    assert!(TreeCounts::from_bytes(&bytes, usize::MAX).is_ok());
    assert!(matches!(TreeCounts::from_bytes(b"", 9), Err(InvalidTreeCounts::Numbers)));
    for end in 1..bytes.len() - 8 {
        for max_nodes in [10, usize::MAX] {
            assert!(TreeCounts::from_bytes(&bytes[..end], max_nodes).is_err(), "cut at {end}");
        }
    }
    // Whatever a byte says, nothing is read that isn't there.
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut other = bytes.clone();
            other[at] = value;
            for max_nodes in [10, usize::MAX] {
                if let Ok(counts) = TreeCounts::from_bytes(&other, max_nodes) {
                    TreeBuilder::default().add_counts(counts, Some("group"));
                }
            }
        }
    }
}
