//! Activities of JVMs' samples, beside the tree.

use serde_json::json;

use super::*;
use crate::profile::model::SampleLabel;

fn sample(frames: Vec<Arc<Frame>>, thread_kind: &str, count: u64) -> Sample {
    let label = SampleLabel { name: "thread_kind".into(), value: thread_kind.into() };
    let times = (0..i32::try_from(count).unwrap()).collect();
    Sample { labels: SampleLabels::new([label]), times, ..Sample::of_events(frames.into(), count, 1) }
}

fn a_jvms() -> Batch {
    let java = |name: &str| frame(FrameKind::Java, "jvm", vec![line(name, Some("A.java"), 7)]);
    let native = |name: &str| frame(FrameKind::Native, "/bin/libjvm.so", vec![line(name, None, 0)]);
    let kernel = frame(FrameKind::Kernel, "[kernel.kallsyms]", vec![line("clear_page", None, 0)]);
    batch(
        vec![
            sample(vec![java("acme.A.run")], "java", 9),
            sample(vec![Arc::clone(&kernel), java("acme.A.run")], "java", 5),
            sample(vec![native("start_thread")], "native", 4),
            sample(vec![native("start_thread")], "gc", 3),
            sample(vec![kernel, native("start_thread")], "gc", 2),
        ],
        &[("comm", "java")],
    )
}

fn tree(batch: &Batch, nodes: usize, ends: usize) -> Value {
    let mut builder = TreeBuilder::default();
    builder.count_activities();
    builder.add_batch(batch, SampleNumber::Count, |_| None);
    assert_eq!(builder.take_activity_totals(), [9, 5, 0, 0, 0, 5, 4, 0, 0]);
    let times = builder.sample_times(batch, |_| None, nodes);
    assert_eq!(serde_json::to_value(&times).unwrap()["activities"].as_array().unwrap().len(), ends);
    serde_json::to_value(builder.finish(nodes)).unwrap()
}

#[test]
fn a_node_says_what_the_samples_that_end_in_it_were_taken_in() {
    let nodes = &tree(&a_jvms(), PAGE_NODES, 5)["nodes"];
    // One number stands for all; two have their samples.
    let [java, gc, native] = [1, 3, 6].map(|kind| kind << 4);
    let expected = json!([[], [java], [java + 5], [gc + 1, 3, native + 6, 4], [gc + 1]]);
    assert_eq!(nodes["activity"], expected);
    assert_eq!(nodes["base_activity"], Value::Null);
}

#[test]
fn what_is_cut_keeps_what_it_was_taken_in() {
    let tree = tree(&a_jvms(), 3, 4);
    let sums: u64 = tree["nodes"]["total"][0].as_u64().unwrap();
    assert_eq!(sums, 23);
    // The heaviest node stays, and all others end in the root's `[pruned]` or in its own.
    let column = tree["nodes"]["activity"].as_array().unwrap();
    assert_eq!(column.len(), tree["nodes"]["total"].as_array().unwrap().len());
    let all: Vec<_> = column.iter().flat_map(|row| row.as_array().unwrap()).collect();
    assert!(all.len() >= 4, "{column:?}");
}

#[test]
fn without_a_jvm_there_is_nothing_to_say() {
    let native = frame(FrameKind::Native, "/bin/cat", vec![line("main", None, 0)]);
    let of = |labels: &[(&str, &str)]| {
        let batch = batch(vec![Sample::of_events(vec![Arc::clone(&native)].into(), 1, 1)], labels);
        let mut builder = TreeBuilder::default();
        builder.count_activities();
        builder.add_batch(&batch, SampleNumber::Count, |_| None);
        serde_json::to_value(builder.finish(PAGE_NODES)).unwrap()["nodes"]["activity"].clone()
    };
    assert_eq!(of(&[("comm", "cat")]), Value::Null);
    assert_eq!(of(&[("runtime", "jvm")]), json!([[], [7]]), "its thread isn't known");
}
