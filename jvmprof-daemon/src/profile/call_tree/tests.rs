mod activities;
mod counts;
mod functions;
mod methods;
mod subtrees;
mod times;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::*;
use crate::event_type::{EventType, SampleNumber};
use crate::profile::model::{Batch, Frame, FrameKind, LabelSet, Line, Mapping, Sample, SampleLabels, Series};
use crate::types::{Avma, FileOffset};

/// A row of the table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FunctionRow<'a> {
    name: &'a str,
    kind: NodeKind,
    own: u64,
    total: u64,
}

impl CallTree {
    /// Samples in all stacks.
    fn total(&self) -> u64 {
        self.total
    }

    /// Nodes, the root and `[pruned]` ones included.
    fn len(&self) -> usize {
        self.nodes.parent.len()
    }

    /// Samples of stacks that aren't whole.
    fn truncated(&self) -> u64 {
        self.truncated.iter().map(|(_, samples)| samples).sum()
    }

    fn pruned(&self) -> PruneCounts {
        self.pruned
    }

    /// The table of functions, most own samples first.
    fn top(&self) -> impl Iterator<Item = FunctionRow<'_>> {
        let top = &self.top;
        top.function.iter().zip(&top.own).zip(&top.total).map(|((&function, &own), &total)| FunctionRow {
            name: &self.strings[self.functions.name[function as usize] as usize],
            kind: self.functions.kind[function as usize],
            own,
            total,
        })
    }
}

fn path(builder: &mut TreeBuilder, names: &[&str]) -> Vec<CallStep> {
    names
        .iter()
        .map(|name| CallStep {
            function: builder.function(NodeKind::Native, name, "", ""),
            line: 0,
            mode: None,
        })
        .collect()
}

fn add(builder: &mut TreeBuilder, names: &[&str], count: u64) {
    let path = path(builder, names);
    builder.add(&path, count);
}

/// Every node as `root;child;...` with its samples.
fn folded(tree: &CallTree) -> Vec<(String, u64)> {
    let json = serde_json::to_value(tree).unwrap();
    let at = |column: &Value, index: usize| column[index].as_u64().unwrap() as usize;
    let name = |node: usize| {
        let function = at(&json["nodes"]["function"], node);
        json["strings"][at(&json["functions"]["name"], function)].as_str().unwrap().to_owned()
    };
    let mut paths: Vec<String> = Vec::new();
    for node in 0..tree.len() {
        let parent = at(&json["nodes"]["parent"], node);
        assert!(parent < node || node == 0, "parents stand before their children");
        let above = if parent == 0 { String::new() } else { format!("{};", paths[parent]) };
        paths.push(if node == 0 { name(0) } else { above + &name(node) });
    }
    let totals = (0..tree.len()).map(|node| at(&json["nodes"]["total"], node) as u64);
    paths.into_iter().zip(totals).collect()
}

fn assert_sums_hold(tree: &CallTree) {
    let json = serde_json::to_value(tree).unwrap();
    let column = |name: &str| -> Vec<u64> { serde_json::from_value(json["nodes"][name].clone()).unwrap() };
    let (parents, totals) = (column("parent"), column("total"));
    let mut below = vec![0; totals.len()];
    for (node, &parent) in parents.iter().enumerate().skip(1) {
        below[parent as usize] += totals[node];
    }
    assert!(below.iter().zip(&totals).all(|(below, total)| below <= total));
}

#[test]
fn stacks_with_common_callers_share_nodes() {
    let mut builder = TreeBuilder::default();
    add(&mut builder, &["main", "a", "b"], 3);
    add(&mut builder, &["main", "a", "c"], 2);
    add(&mut builder, &["main"], 1);
    let tree = builder.finish(PAGE_NODES);
    let nodes = folded(&tree);
    let expected = [("all", 6), ("main", 6), ("main;a", 5), ("main;a;b", 3), ("main;a;c", 2)];
    assert_eq!(nodes, expected.map(|(path, total)| (path.to_owned(), total)));
    assert_eq!(tree.pruned(), PruneCounts::default());
}

#[test]
fn recursion_counts_once_in_the_table() {
    let mut builder = TreeBuilder::default();
    add(&mut builder, &["main", "f", "f", "f"], 4);
    add(&mut builder, &["main", "f"], 1);
    let tree = builder.finish(PAGE_NODES);
    let rows: Vec<_> = tree.top().map(|row| (row.name, row.own, row.total)).collect();
    assert_eq!(rows, [("f", 5, 5), ("main", 0, 5)]);
}

#[test]
fn what_is_cut_stays_visible_with_its_samples() {
    let mut builder = TreeBuilder::default();
    for leaf in 0..100 {
        add(&mut builder, &["main", "busy", &format!("leaf{leaf}")], 2);
    }
    add(&mut builder, &["main", "hot"], 50);
    let tree = builder.finish(6);
    assert!(tree.len() <= 6, "{} nodes", tree.len());
    let nodes = folded(&tree);
    assert!(nodes.contains(&("main;hot".to_owned(), 50)));
    let rest = nodes.iter().find(|(path, _)| path == "main;busy;[pruned]").expect("a remainder");
    assert_eq!(rest.1, tree.pruned().samples);
    assert_eq!(tree.pruned().nodes, 99);
    assert_eq!(tree.total(), 250);
    assert_sums_hold(&tree);
    assert_eq!(tree.top().count(), 103, "the table knows functions whose nodes were cut");
}

#[test]
fn merging_is_bounded_and_sums_stay_right() {
    let mut builder = TreeBuilder::with_capacity(50);
    for leaf in 0..1_000 {
        add(&mut builder, &["main", &format!("mid{}", leaf % 40), &format!("leaf{leaf}"), "x"], 1);
    }
    assert!(builder.nodes.len() <= 50);
    let tree = builder.finish(30);
    assert!(tree.len() <= 30);
    assert_eq!(tree.total(), 1_000);
    assert_sums_hold(&tree);
    let visible: u64 =
        folded(&tree).iter().filter(|(path, _)| path.ends_with("[pruned]")).map(|(_, total)| total).sum();
    assert_eq!(visible, tree.pruned().samples);
}

#[test]
fn what_is_heavy_is_kept_even_if_it_comes_last() {
    let mut builder = TreeBuilder::with_capacity(200);
    for leaf in 0..2_000 {
        add(&mut builder, &["main", &format!("mid{}", leaf % 90), &format!("leaf{leaf}")], 1);
    }
    add(&mut builder, &["main", "late", "hot"], 500);
    add(&mut builder, &["main", "late", "hot"], 500);
    let tree = builder.finish(20);
    assert!(folded(&tree).contains(&("main;late;hot".to_owned(), 1_000)));
    assert_eq!(tree.total(), 3_000);
    assert_sums_hold(&tree);
}

#[test]
fn every_bound_is_kept_for_trees_of_many_shapes() {
    for bound in 2..60 {
        let mut builder = TreeBuilder::default();
        for stack in 0..200_u64 {
            let names = [format!("a{}", stack % 3), format!("b{}", stack % 7), format!("c{}", stack % 31)];
            let depth = 1 + (stack % 3) as usize;
            add(&mut builder, &names[..depth].iter().map(String::as_str).collect::<Vec<_>>(), 1 + stack % 5);
        }
        let tree = builder.finish(bound);
        assert!(tree.len() <= bound, "{} nodes with a bound of {bound}", tree.len());
        assert_sums_hold(&tree);
    }
}

#[test]
fn depth_is_bounded() {
    let mut builder = TreeBuilder::default();
    let deep: Vec<String> = (0..MAX_DEPTH + 500).map(|depth| format!("f{depth}")).collect();
    add(&mut builder, &deep.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(tree.len(), MAX_DEPTH + 2);
    assert!(folded(&tree).last().unwrap().0.ends_with("[pruned]"));
}

fn line(name: &str, file: Option<&str>, line: u32) -> Line {
    Line { file: file.map(Into::into), line, ..Line::named(name) }
}

fn frame(kind: FrameKind, mapping: &str, lines: Vec<Line>) -> Arc<Frame> {
    let mapping = Mapping {
        start: Avma(0x1000),
        limit: Avma(0x9000),
        offset: FileOffset(0x100),
        path: mapping.into(),
        build_id: None,
    };
    Arc::new(Frame { kind, address: Some(Avma(0x1234)), mapping: Some(Arc::new(mapping)), lines })
}

fn batch(samples: Vec<Sample>, labels: &[(&str, &str)]) -> Batch {
    let labels: LabelSet =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Batch {
        event: EventType::Cpu,
        start: SystemTime::UNIX_EPOCH,
        duration: Duration::from_secs(10),
        period: 10_101_010,
        series: vec![Series { labels, samples }],
    }
}

#[test]
fn inlined_calls_become_nodes_below_their_caller_and_lines_are_counted() {
    let java = |at| {
        let inlined = line("acme.Cart.sum", Some("Cart.java"), 7);
        frame(FrameKind::Java, "jvm", vec![inlined, line("acme.Cart.total", Some("Cart.java"), at)])
    };
    let root = frame(FrameKind::Native, "/usr/lib/libc.so.6", vec![line("start_thread", None, 0)]);
    let samples = [(20, 5), (21, 9)]
        .map(|(at, count)| Sample {
            times: Vec::new(),
            frames: vec![java(at), Arc::clone(&root)].into(),
            labels: SampleLabels::default(),
            events: count,
            count,
            value: count * 10_101_010,
        })
        .to_vec();
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch(samples, &[]), SampleNumber::Count, |_| None);
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(folded(&tree)[3], ("start_thread;acme.Cart.total;acme.Cart.sum".to_owned(), 14));
    let json = serde_json::to_value(&tree).unwrap();
    assert_eq!(json["nodes"]["lines"], serde_json::json!([[], [], [21, 9, 20, 5], [7, 14]]));
    assert!(json["strings"].as_array().unwrap().contains(&"libc.so.6".into()), "modules without folders");
}

#[test]
fn frames_without_symbol_are_one_node_by_file() {
    let stripped = |folder: &str| frame(FrameKind::Native, &format!("{folder}/libx.so"), Vec::new());
    let placed = |name: &str| frame(FrameKind::Native, "/opt/libx.so", vec![line(name, None, 0)]);
    let frames = [
        stripped("/opt/a"),
        stripped("/opt/b"),
        placed("libx.so+0x2f0"),
        placed("libx.so+0x2f4"),
        placed("libx.so+x"),
    ];
    let samples = frames.map(|frame| Sample::of_events(vec![frame].into(), 1, 10_101_010)).to_vec();
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch(samples, &[]), SampleNumber::Count, |_| None);
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(folded(&tree)[1..], [("libx.so (no symbol)".to_owned(), 4), ("libx.so+x".to_owned(), 1)]);
}

#[test]
fn truncated_stacks_are_counted_by_reason_below_a_group_too() {
    let marker = |name: &str| {
        Arc::new(Frame {
            kind: FrameKind::Marker,
            address: None,
            mapping: None,
            lines: vec![line(name, None, 0)],
        })
    };
    let leaf = frame(FrameKind::Native, "/bin/x", vec![line("work", None, 0)]);
    let sample = |outermost: Option<Arc<Frame>>, count| Sample {
        times: Vec::new(),
        frames: std::iter::once(Arc::clone(&leaf)).chain(outermost).collect(),
        labels: SampleLabels::default(),
        events: count,
        count,
        value: count * 10_101_010,
    };
    let samples = vec![
        sample(None, 10),
        sample(Some(marker("[truncated: depth]")), 2),
        sample(Some(marker("[unknown 0x12]")), 4),
        sample(Some(marker("[truncated: unreadable]")), 3),
    ];
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch(samples, &[("comm", "java")]), SampleNumber::Count, |labels| {
        labels.get("comm").cloned()
    });
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(tree.truncated(), 5);
    assert_eq!(tree.total(), 19);
    assert_eq!(folded(&tree)[1], ("java".to_owned(), 19));
    assert!(tree.top().all(|row| row.name != "java"), "a group is no function");
}

/// `strings` and tables as pprof has them: functions and locations with ids from 1, each location
/// one line.
fn pprof(functions: &[(&str, &str)], stacks: &[(&[u64], i64)]) -> crate::proto::pprof::Profile {
    use crate::proto::pprof::{Function, Line, Location, Mapping, Profile, Sample, ValueType};
    let mut strings = vec![String::new(), "cpu".to_owned(), "samples".to_owned()];
    let mut string = |text: &str| {
        strings.push(text.to_owned());
        strings.len() as i64 - 1
    };
    let mut profile = Profile {
        sample_type: [1, 2].map(|r#type| ValueType { r#type, unit: 0 }).to_vec(),
        ..Profile::default()
    };
    for (id, (name, mapping)) in (1..).zip(functions) {
        let filename = string(mapping);
        profile.mapping.push(Mapping { id, filename, memory_start: 0x1000, ..Mapping::default() });
        let line = if name.is_empty() { vec![] } else { vec![Line { function_id: id, line: 3, column: 0 }] };
        profile.function.push(Function { id, name: string(name), ..Function::default() });
        profile.location.push(Location { id, mapping_id: id, address: 0x1010, line, is_folded: false });
    }
    for (stack, count) in stacks {
        let value = vec![count * 10, *count];
        profile.sample.push(Sample { location_id: stack.to_vec(), value, label: vec![] });
    }
    profile.string_table = strings;
    profile
}

#[test]
fn stacks_of_a_pprof_have_the_kinds_that_mappings_say() {
    let functions = [
        ("acme.Cart.sum", "jvm"),
        ("do_syscall_64", "[kernel.kallsyms]"),
        ("Interpreter", "[jit]"),
        ("", "/usr/lib/libz.so.1"),
        ("[truncated: depth]", ""),
        ("[unknown 0x12]", "jvm"),
        ("[StubRoutines (1)]", "jvm"),
    ];
    let mut builder = TreeBuilder::default();
    builder.add_pprof(&pprof(&functions, &[(&[2, 4, 6, 7, 1, 3, 5], 7)]), &PprofSeries::default()).unwrap();
    let tree = builder.finish(PAGE_NODES);
    let path = "[truncated: depth];Interpreter;acme.Cart.sum;[StubRoutines (1)];[unknown 0x12];libz.so.1 (no symbol);do_syscall_64";
    assert_eq!(folded(&tree).last().unwrap(), &(path.to_owned(), 7), "the value of type samples counts");
    assert_eq!(tree.truncated(), 7);
    let mut kinds: Vec<_> = tree.top().map(|row| (row.name.to_owned(), row.kind)).collect();
    kinds.sort_unstable();
    let expected = [
        ("Interpreter", NodeKind::Jit),
        ("[StubRoutines (1)]", NodeKind::Stub),
        ("[truncated: depth]", NodeKind::Marker),
        ("[unknown 0x12]", NodeKind::Marker),
        ("acme.Cart.sum", NodeKind::Java),
        ("do_syscall_64", NodeKind::Kernel),
        ("libz.so.1 (no symbol)", NodeKind::Native),
    ];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

#[test]
fn a_pprof_that_does_not_fit_together_is_refused_whole() {
    let mut builder = TreeBuilder::default();
    let sound = pprof(&[("main", "/bin/x")], &[(&[1], 1)]);
    let mut no_location = sound.clone();
    no_location.sample.push(crate::proto::pprof::Sample {
        location_id: vec![9],
        value: vec![1, 1],
        label: vec![],
    });
    let mut no_function = sound.clone();
    no_function.location[0].line[0].function_id = 8;
    let mut no_string = sound.clone();
    no_string.function[0].name = -4;
    for broken in [no_location, no_function, no_string] {
        builder.add_pprof(&broken, &PprofSeries::default()).unwrap_err();
    }
    let series = PprofSeries { group: Some("worker-1"), ..PprofSeries::default() };
    builder.add_pprof(&sound, &series).unwrap();
    let tree = builder.finish(PAGE_NODES);
    assert_eq!(tree.total(), 1);
    assert_eq!(folded(&tree)[1], ("worker-1".to_owned(), 1));
}

#[test]
fn a_node_counts_how_its_method_ran() {
    let mut builder = TreeBuilder::default();
    let function = builder.function(NodeKind::Java, "com.acme.Order.total", "Order.java", "jvm");
    for (mode, count) in [
        (Some(ExecutionMode::Interpreted), 2),
        (Some(ExecutionMode::C2), 40),
        (None, 1),
        (Some(ExecutionMode::C2), 1),
    ] {
        builder.add(&[CallStep { function, line: 7, mode }], count);
    }
    let json = serde_json::to_value(builder.finish(PAGE_NODES)).expect("a tree is JSON");
    assert_eq!(json["nodes"]["how"], serde_json::json!([[], [0, 2, 2, 41]]));
}

#[test]
fn packed_columns_are_those_that_the_page_unpacks() {
    use serde_json::json;
    let mut builder = TreeBuilder::default();
    let [run, a, b, other] = [("run", 7), ("a", 8), ("b", 0), ("other", 9)].map(|(name, line)| {
        let function = builder.function(NodeKind::Native, name, "", "");
        CallStep { function, line, mode: None }
    });
    builder.add(&[run, a], 3);
    builder.add(&[run, b], 1);
    builder.add(&[run], 1);
    builder.add(&[other], 123_456);
    builder.add(&[CallStep { line: 10, ..other }], 1_234);
    builder.add(&[], 1);
    let tree = builder.finish(PAGE_NODES);
    let columns = |tree: CallTree| {
        let nodes = serde_json::to_value(tree).unwrap()["nodes"].take();
        ["parent", "total", "lines"].map(|name| nodes[name].clone())
    };
    let whole = columns(tree.clone());
    assert_eq!(whole[..2], [json!([0, 0, 1, 1, 0]), json!([124_696, 5, 3, 1, 124_690])]);
    assert_eq!(whole[2], json!([[], [7, 5], [8, 3], [], [9, 123_456, 10, 1_234]]));
    // The same as in `tests/page/scripts/times.test.mjs`.
    let packed = columns(tree.clone().packed(false));
    assert_eq!(packed[..2], [json!([0, 1, 1, 2, 4]), json!([1, 1, 3, 1, 124_690])]);
    assert_eq!(packed[2], json!([[], [7], [8], [], [9, 123_456, 10, 1_234]]));
    let rounded = columns(tree.packed(true));
    assert_eq!(rounded[2], json!([[], [7], [8], [], [9, 123_000, 10, 1_230]]));
}
