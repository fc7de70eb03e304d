//! The way in which methods ran, through pprof and from batches.

use super::*;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::{for_file, for_push, to_bytes};

/// The same method, recursive, in each way; the names tell it if `with_suffixes`.
fn recursion(with_suffixes: bool) -> Batch {
    let frame_of = |mode: ExecutionMode| {
        let suffix = if with_suffixes { mode.suffix() } else { "" };
        let method = line(&format!("acme.Tree.walk{suffix}"), Some("Tree.java"), 7);
        frame(FrameKind::Java, "jvm", vec![Line { mode: Some(mode), ..method }])
    };
    let stack = |modes: &[ExecutionMode], count| {
        Sample::of_events(modes.iter().map(|mode| frame_of(*mode)).collect(), count, count * 10_101_010)
    };
    let samples = vec![
        stack(&[ExecutionMode::C2, ExecutionMode::Interpreted], 6),
        stack(&[ExecutionMode::C1, ExecutionMode::Interpreted], 3),
        stack(&[ExecutionMode::Inlined, ExecutionMode::C2], 1),
    ];
    batch(samples, &[("comm", "java")])
}

fn assert_is_one_method(tree: &CallTree) {
    let nodes = [("all", 10), ("acme.Tree.walk", 10), ("acme.Tree.walk;acme.Tree.walk", 10)];
    assert_eq!(folded(tree), nodes.map(|(path, total)| (path.to_owned(), total)));
    let json = serde_json::to_value(tree).unwrap();
    assert_eq!(json["nodes"]["how"], serde_json::json!([[], [0, 9, 2, 1], [1, 3, 2, 6, 3, 1]]));
}

#[test]
fn a_method_is_one_function_however_it_ran() {
    for with_suffixes in [false, true] {
        let batch = recursion(with_suffixes);
        let mut builder = TreeBuilder::default();
        builder.add_batch(&batch, SampleNumber::Count, |_| None);
        assert_is_one_method(&builder.finish(PAGE_NODES));
    }
}

#[test]
fn pprof_carries_how_methods_ran() {
    for with_suffixes in [false, true] {
        let batch = recursion(with_suffixes);
        for profile in [for_push(&batch, &batch.series[0]), for_file(&batch)] {
            let profile = decode(&to_bytes(&profile).unwrap(), DecodeLimits::default()).unwrap();
            let mut builder = TreeBuilder::default();
            builder.add_pprof(&profile, &PprofSeries::default()).unwrap();
            assert_is_one_method(&builder.finish(PAGE_NODES));
        }
    }
}

#[test]
fn names_of_other_code_are_left_as_they_are() {
    let native = frame(FrameKind::Native, "/bin/x", vec![line("table_[0]", None, 0)]);
    let stub = frame(FrameKind::Stub, "jvm", vec![line("[StubRoutines (1)]", None, 0)]);
    let unknown = frame(FrameKind::Java, "jvm", vec![line("[unknown Java: moved]", None, 0)]);
    let sample = Sample::of_events(vec![unknown, stub, native].into(), 1, 1);
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch(vec![sample], &[]), SampleNumber::Count, |_| None);
    let tree = builder.finish(PAGE_NODES);
    let mut kinds: Vec<_> = tree.top().map(|row| (row.name, row.kind)).collect();
    kinds.sort_unstable();
    let expected = [
        ("[StubRoutines (1)]", NodeKind::Stub),
        ("[unknown Java: moved]", NodeKind::Marker),
        ("table_[0]", NodeKind::Native),
    ];
    assert_eq!(kinds, expected);
}
