//! The table of functions: what is attributed to whom, by line, and beside a base.

use serde_json::json;

use super::*;

fn step(builder: &mut TreeBuilder, kind: NodeKind, name: &str, line: u32) -> CallStep {
    CallStep { function: builder.function(kind, name, "Order.java", "jvm"), line, mode: None }
}

/// A stack of the application above the JVM's and the kernel's code.
fn add_page_clearing(builder: &mut TreeBuilder, line: u32, count: u64) {
    let path = [
        step(builder, NodeKind::Native, "start_thread", 0),
        step(builder, NodeKind::Java, "acme.Order.total", line),
        step(builder, NodeKind::Native, "ZHeap::alloc", 0),
        step(builder, NodeKind::Kernel, "clear_page", 0),
    ];
    builder.add(&path, count);
}

/// The columns of the table's function with this name.
fn row(tree: &CallTree, name: &str) -> Value {
    let json = serde_json::to_value(tree).unwrap();
    let is_it = |row: &usize| tree.top().nth(*row).unwrap().name == name;
    let row = (0..tree.top().count()).find(is_it).unwrap();
    let top = &json["top"];
    json!([top["self"][row], top["attributed"][row], top["total"][row], top["lines"][row]])
}

#[test]
fn time_of_the_jvm_and_the_kernel_is_that_of_the_nearest_java_caller() {
    let mut builder = TreeBuilder::default();
    add_page_clearing(&mut builder, 57, 6);
    add_page_clearing(&mut builder, 60, 3);
    let path = [
        step(&mut builder, NodeKind::Java, "acme.Order.total", 58),
        step(&mut builder, NodeKind::Java, "acme.Order.total", 57),
    ];
    builder.add(&path, 1);
    let path = [step(&mut builder, NodeKind::Native, "GangWorker::run", 0)];
    builder.add(&path, 5);
    let tree = builder.finish(PAGE_NODES);
    // Recursion is counted by its innermost call.
    let lines = json!([57, 1, 7, 7, 60, 0, 3, 3]);
    assert_eq!(row(&tree, "acme.Order.total"), json!([1, 10, 10, lines]));
    assert_eq!(row(&tree, "clear_page"), json!([9, 0, 9, []]));
    assert_eq!(row(&tree, "GangWorker::run"), json!([5, 5, 5, []]));
    let json = serde_json::to_value(&tree).unwrap();
    let attributed = json["top"]["attributed"].as_array().unwrap();
    assert_eq!(attributed.iter().map(|it| it.as_u64().unwrap()).sum::<u64>(), tree.total());
    assert!(json.get("base").is_none() && json["nodes"].get("base").is_none());
}

#[test]
fn the_line_of_a_costly_call_is_listed_beside_many_lines_of_own_work() {
    let mut builder = TreeBuilder::default();
    for line in 1..=30 {
        let path = [step(&mut builder, NodeKind::Java, "acme.Order.total", line)];
        builder.add(&path, 2);
    }
    let callee = step(&mut builder, NodeKind::Java, "acme.Rule.matches", 7);
    let path = [step(&mut builder, NodeKind::Java, "acme.Order.total", 99), callee];
    builder.add(&path, 500);
    let lines = row(&builder.finish(PAGE_NODES), "acme.Order.total")[3].take();
    let lines: Vec<u64> = serde_json::from_value(lines).unwrap();
    let (listed, []) = lines.as_chunks::<4>() else { panic!("four numbers a line: {lines:?}") };
    assert_eq!((listed.len(), listed[0], listed.last()), (20, [1, 2, 2, 2], Some(&[99, 0, 0, 500])));
}

#[test]
fn a_truncated_stack_is_attributed_to_its_leaf() {
    let mut builder = TreeBuilder::default();
    let cut = CallStep {
        function: builder.function(NodeKind::Marker, "[truncated: x]", "", ""),
        line: 0,
        mode: None,
    };
    let leaf = step(&mut builder, NodeKind::Native, "memcpy", 0);
    builder.add(&[cut, leaf], 2);
    assert_eq!(row(&builder.finish(PAGE_NODES), "memcpy"), json!([2, 2, 2, []]));
}

#[test]
fn a_wait_is_attributed_to_its_java_caller_recorded_or_read_from_pprof() {
    let functions = [
        ("[wait: sleep]", ""),
        ("futex_wait", "[kernel.kallsyms]"),
        ("acme.Order.total", "jvm"),
        ("[not sampled]", ""),
    ];
    let mut of_pprof = TreeBuilder::default();
    let profile = pprof(&functions, &[(&[1, 2, 3], 7), (&[4], 2)]);
    of_pprof.add_pprof(&profile, &PprofSeries::default()).unwrap();
    let mut recorded = TreeBuilder::default();
    let path = [
        step(&mut recorded, NodeKind::Java, "acme.Order.total", 3),
        step(&mut recorded, NodeKind::Kernel, "futex_wait", 0),
        step(&mut recorded, NodeKind::Marker, "[wait: sleep]", 0),
    ];
    recorded.add(&path, 7);
    let path = [step(&mut recorded, NodeKind::Marker, "[not sampled]", 0)];
    recorded.add(&path, 2);
    for tree in [of_pprof, recorded].map(|builder| builder.finish(PAGE_NODES)) {
        let kind = |name: &str| tree.top().find(|row| row.name == name).map(|row| row.kind);
        let numbers = |name: &str| Value::from(row(&tree, name).as_array().unwrap()[..3].to_vec());
        assert_eq!(numbers("acme.Order.total"), json!([0, 7, 7]));
        assert_eq!(numbers("[wait: sleep]"), json!([7, 0, 7]));
        assert_eq!(numbers("[not sampled]"), json!([2, 2, 2]));
        assert_eq!(["[wait: sleep]", "[not sampled]"].map(kind), [Some(NodeKind::Marker); 2]);
    }
}

#[test]
fn a_base_is_counted_beside_the_tree() {
    let mut builder = TreeBuilder::default();
    add_page_clearing(&mut builder, 57, 6);
    builder.count_base(true);
    add_page_clearing(&mut builder, 57, 2);
    add_page_clearing(&mut builder, 61, 1);
    add(&mut builder, &["gone"], 4);
    builder.count_base(false);
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(tree.total(), 6);
    let json = serde_json::to_value(&tree).unwrap();
    assert_eq!(json["base"], 7);
    assert_eq!(json["nodes"]["total"], json!([6, 6, 6, 6, 6, 0]));
    assert_eq!(json["nodes"]["base"], json!([7, 3, 3, 3, 3, 4]));
    let lines = json!([57, 0, 6, 6, 0, 2, 2, 61, 0, 0, 0, 0, 1, 1]);
    assert_eq!(row(&tree, "acme.Order.total"), json!([0, 6, 6, lines]));
    let gone = tree.top().position(|row| row.name == "gone").unwrap();
    assert_eq!(json["top"]["base"]["total"][gone], 4);
}

#[test]
fn what_only_the_base_has_is_kept_by_its_weight() {
    let mut builder = TreeBuilder::default();
    for leaf in 0..20 {
        add(&mut builder, &["main", &format!("leaf{leaf}")], 2);
    }
    builder.count_base(true);
    add(&mut builder, &["main", "heavy before"], 50);
    let tree = builder.finish(6);
    assert!(folded(&tree).iter().any(|(path, _)| path == "main;heavy before"));
    let json = serde_json::to_value(&tree).unwrap();
    let sum = |column: &str| -> u64 {
        let at = |index: usize| json["nodes"][column][index].as_u64().unwrap();
        (0..tree.len()).filter(|&index| json["nodes"]["parent"][index] == 1 && index > 1).map(at).sum()
    };
    assert_eq!((sum("total"), sum("base")), (40, 50));
}
