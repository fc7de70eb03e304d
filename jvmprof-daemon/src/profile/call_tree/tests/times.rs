//! The times of samples beside the tree.

use serde_json::json;

use super::*;

#[test]
fn times_say_where_each_stack_ends_in_the_cut_tree() {
    let java = |name: &str, number| frame(FrameKind::Java, "jvm", vec![line(name, Some("A.java"), number)]);
    let native = frame(FrameKind::Native, "/bin/x", vec![line("memcpy", None, 0)]);
    let sample = |frames: Vec<Arc<Frame>>, times: &[u32]| Sample {
        times: times.to_vec(),
        ..Sample::of_events(frames.into(), times.len() as u64, 1)
    };
    let batch = batch(
        vec![
            sample(vec![native, java("acme.A.run", 7)], &[5, 300, 1_000]),
            sample(vec![java("acme.A.run", 9)], &[4]),
            sample(vec![java("acme.A.rarer", 1), java("acme.A.rare", 2), java("acme.A.run", 9)], &[200]),
        ],
        &[],
    );
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch, SampleNumber::Count, |_| None);
    let times = builder.sample_times(&batch, |_| None, 4);
    let tree = builder.finish(4);
    let nodes: Vec<_> = folded(&tree).into_iter().map(|(path, _)| path).collect();
    assert_eq!(nodes[..3], ["all", "acme.A.run", "acme.A.run;memcpy"]);
    let json = serde_json::to_value(&times).unwrap();
    let place = |path: &str| nodes.iter().position(|node| node == path).unwrap();
    let ends = [place("acme.A.run;memcpy"), place("acme.A.run"), place("acme.A.run;[pruned]")];
    assert_eq!(json["nodes"], json!(ends));
    assert_eq!(json["lines"], json!([7, 9, 1]));
    // 4 ms: 1; 1 later: 0; 195 later (two bytes): 2; 100 later: 0; 700 later (two bytes): 0.
    let bytes = [4, 1, 1, 0, 0xc3, 1, 2, 100, 0, 0xbc, 5, 0];
    use base64::Engine as _;
    assert_eq!(json["samples"], json!(base64::engine::general_purpose::STANDARD.encode(bytes)));
    assert!(!times.is_empty() && SampleTimes::default().is_empty());
}
