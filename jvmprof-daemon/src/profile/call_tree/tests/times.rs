//! The times of samples beside the tree.

use serde_json::json;

use super::*;
use crate::profile::pprof::PushEncoder;
use crate::profile::pprof::sample_times::keep_within;

/// Three stacks below one method, one of them rare.
fn stacks() -> Vec<Sample> {
    let java = |name: &str, number| frame(FrameKind::Java, "jvm", vec![line(name, Some("A.java"), number)]);
    let native = frame(FrameKind::Native, "/bin/x", vec![line("memcpy", None, 0)]);
    let sample = |frames: Vec<Arc<Frame>>, times: &[i32]| Sample {
        times: times.to_vec(),
        ..Sample::of_events(frames.into(), times.len() as u64, 1)
    };
    vec![
        sample(vec![native, java("acme.A.run", 7)], &[5, 300, 1_000]),
        sample(vec![java("acme.A.run", 9)], &[4]),
        sample(vec![java("acme.A.rarer", 1), java("acme.A.rare", 2), java("acme.A.run", 9)], &[200]),
    ]
}

#[test]
fn times_say_where_each_stack_ends_in_the_cut_tree() {
    let batch = batch(stacks(), &[]);
    let mut builder = TreeBuilder::default();
    builder.add_batch(&batch, SampleNumber::Count, |_| None);
    let times = builder.sample_times(&batch, |_| None, 4);
    let tree = builder.finish(4);
    let nodes: Vec<_> = folded(&tree).into_iter().map(|(path, _)| path).collect();
    assert_eq!(nodes[..3], ["all", "acme.A.run", "acme.A.run;memcpy"]);
    let json = serde_json::to_value(&times).unwrap();
    let place = |path: &str| nodes.iter().position(|node| node == path).unwrap();
    let ends = [place("acme.A.run;memcpy"), place("acme.A.run"), place("acme.A.run;[pruned]")];
    let differences = [ends[0] as i64, ends[1] as i64 - ends[0] as i64, ends[2] as i64 - ends[1] as i64];
    assert_eq!(json["nodes"], json!(differences));
    assert_eq!(json["lines"], json!([7, 9, 1]));
    // 4 ms: 1; 1 later: 0; 195 later (two bytes): 2; 100 later: 0; 700 later (two bytes): 0.
    use base64::Engine as _;
    let encoded = |bytes: &[u8]| json!(base64::engine::general_purpose::STANDARD.encode(bytes));
    assert_eq!(json["steps"], encoded(&[4, 1, 0xc3, 1, 100, 0xbc, 5]));
    assert_eq!(json["entries"], encoded(&[1, 0, 2, 0, 0]));
    assert!(!times.is_empty() && SampleTimes::default().is_empty());
}

/// The tree of one stack as the collector makes it, of the events from `from` ms on.
fn of_profile(sample: Sample, from: i64) -> TreeBuilder {
    let batch = batch(vec![sample], &[]);
    let mut profile = PushEncoder::new(&batch).with_times(true).encode(&batch.series[0]);
    let start = profile.time_nanos + from * 1_000_000;
    let times = keep_within(&mut profile, &(start..i64::MAX), true).unwrap();
    let mut builder = TreeBuilder::default();
    let series = PprofSeries { times: Some(&times), ..PprofSeries::default() };
    builder.add_pprof(&profile, &series).unwrap();
    builder
}

#[test]
fn times_of_pprof_stay_with_their_stacks_while_trees_are_added_up_and_cut() {
    let mut of_profiles = TreeBuilder::default();
    for stack in stacks() {
        of_profiles.add_counts(of_profile(stack, 0).into_counts(usize::MAX), None);
    }
    let batch = batch(stacks(), &[]);
    let mut of_batch = TreeBuilder::default();
    of_batch.add_batch(&batch, SampleNumber::Count, |_| None);
    let expected = of_batch.sample_times(&batch, |_| None, 4);
    let times = of_profiles.take_times(4);
    assert_eq!(serde_json::to_value(times).unwrap(), serde_json::to_value(expected).unwrap());
    assert_eq!(folded(&of_profiles.finish(4)), folded(&of_batch.finish(4)));
}

#[test]
fn events_without_a_time_are_counted_beside_those_with_one() {
    let mut builder = of_profile(Sample { events: 7, count: 7, ..stacks().swap_remove(0) }, 300);
    assert_eq!(builder.total(), 2 + 4);
    let json = serde_json::to_value(builder.take_times(10)).unwrap();
    assert_eq!((&json["untimed"], &json["steps"]), (&json!(4), &json!("ALwF")));
    assert_eq!(json["entries"], "AAA=");
}
