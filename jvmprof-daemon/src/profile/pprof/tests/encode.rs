//! The model as pprof.

use std::sync::Arc;

use crate::event_type::EventType;
use crate::profile::model::{Batch, Frame, FrameKind, Line};
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::{for_file, for_file_of_events, for_push, to_bytes, total};
use crate::profile::testing::{batch, frame, inlined, line, located, mapping, series};
use crate::proto::pprof::Profile;

fn text(profile: &Profile, index: i64) -> &str {
    &profile.string_table[index as usize]
}

fn types(profile: &Profile) -> Vec<String> {
    let types = profile.sample_type.iter().chain(&profile.period_type);
    types.map(|value| format!("{}/{}", text(profile, value.r#type), text(profile, value.unit))).collect()
}

#[test]
fn a_pushed_profile_counts_samples_and_tells_period_start_and_duration() {
    let batch = batch(vec![series(&[("pid", "1")], vec![(vec![frame(FrameKind::Native, "main")], 7)])]);
    let profile = for_push(&batch, &batch.series[0]);
    assert_eq!(types(&profile), ["samples/count", "cpu/nanoseconds"]);
    assert_eq!(profile.string_table[0], "");
    assert_eq!(profile.period, 10_000_000);
    assert_eq!(profile.time_nanos, 1_732_195_500_000_000_000);
    assert_eq!(profile.duration_nanos, 10_000_000_000);
    assert_eq!(profile.sample[0].value, [7]);
    assert_eq!(profile.sample[0].label, [], "the series says it already");
}

#[test]
fn a_file_has_time_as_well_and_all_series_with_their_labels() {
    let main = frame(FrameKind::Native, "main");
    let batch = batch(vec![
        series(&[("pid", "1")], vec![(vec![Arc::clone(&main)], 7)]),
        series(&[("comm", "java"), ("pid", "2")], vec![(vec![main], 1)]),
    ]);
    let profile = for_file(&batch);
    assert_eq!(types(&profile), ["samples/count", "cpu/nanoseconds", "cpu/nanoseconds"]);
    assert_eq!(profile.sample[0].value, [7, 70_000_000]);
    assert_eq!(total(&profile), 8);
    assert_eq!(profile.location.len(), 1, "both series share the frame");
    let labels = &profile.sample[1].label;
    let labels: Vec<_> = labels.iter().map(|l| (text(&profile, l.key), text(&profile, l.str))).collect();
    assert_eq!(labels, [("comm", "java"), ("pid", "2")]);
}

#[test]
fn a_profile_of_estimates_tells_how_many_events_were_sampled() {
    let main = frame(FrameKind::Native, "main");
    let mut allocated = series(&[("pid", "1")], vec![(vec![Arc::clone(&main)], 7)]);
    (allocated.samples[0].count, allocated.samples[0].value) = (1_000, 512_000);
    let allocation = Batch { event: EventType::Allocation, ..batch(vec![allocated.clone(), allocated]) };
    let comments = |profile: &Profile| -> Vec<String> {
        profile.comment.iter().map(|index| text(profile, *index).to_owned()).collect()
    };
    let pushed = for_push(&allocation, &allocation.series[0]);
    assert_eq!(
        (pushed.sample[0].value[0], comments(&pushed)),
        (1_000, vec!["allocation events: 7".to_owned()])
    );
    let cpu = batch(vec![series(&[("pid", "1")], vec![(vec![main], 3)])]);
    assert_eq!(comments(&for_push(&cpu, &cpu.series[0])), [""; 0], "CPU time stands for itself");
    let both = for_file_of_events(&[cpu, allocation]);
    assert_eq!(comments(&both), ["allocation events: 14"]);
    let decoded = decode(&to_bytes(&both).expect("encodable"), DecodeLimits::default()).expect("our own");
    assert_eq!(comments(&decoded), ["allocation events: 14"]);
}

#[test]
fn a_window_without_length_is_still_a_delta() {
    let mut batch = batch(vec![series(&[], vec![])]);
    batch.duration = std::time::Duration::ZERO;
    assert_eq!(for_push(&batch, &batch.series[0]).duration_nanos, 1);
}

#[test]
fn equal_frames_are_one_location_whether_shared_or_not() {
    let libc = mapping("/usr/lib/libc.so.6", 0x7000_0000);
    let same = || located(&mapping("/usr/lib/libc.so.6", 0x7000_0000), 0x7000_0100, vec![line("read", 3)]);
    let other_line = located(&libc, 0x7000_0100, vec![line("read", 4)]);
    let other_address = located(&libc, 0x7000_0104, vec![line("read", 3)]);
    let shared = same();
    let stacks =
        vec![(vec![Arc::clone(&shared), shared], 1), (vec![same(), other_line], 1), (vec![other_address], 1)];
    let batch = batch(vec![series(&[], stacks)]);
    let profile = for_push(&batch, &batch.series[0]);
    let stacks: Vec<_> = profile.sample.iter().map(|sample| sample.location_id.clone()).collect();
    assert_eq!(stacks, [vec![1, 1], vec![1, 2], vec![3]]);
    assert_eq!((profile.mapping.len(), profile.function.len()), (1, 1));
    assert_eq!(profile.location[0].address, 0x7000_0100, "runtime addresses, as servers want them");
}

#[test]
fn inlined_functions_are_lines_of_one_location_innermost_first() {
    let frame = inlined(FrameKind::Java, &["com.acme.Order.price", "com.acme.Order.total"]);
    let batch = batch(vec![series(&[], vec![(vec![frame], 1)])]);
    let profile = for_push(&batch, &batch.series[0]);
    let lines = &profile.location[0].line;
    let names: Vec<_> = lines
        .iter()
        .map(|line| text(&profile, profile.function[line.function_id as usize - 1].name))
        .collect();
    assert_eq!(names, ["com.acme.Order.price", "com.acme.Order.total"]);
}

#[test]
fn a_bytecode_index_is_a_column_counted_from_one() {
    let jvm = mapping("jvm", 0x7000_0000);
    let at = |bci| located(&jvm, 0x7000_0100, vec![Line { bci, ..line("A.a", 0) }]);
    let batch = batch(vec![series(&[], vec![(vec![at(None), at(Some(0)), at(Some(7))], 1)])]);
    let profile = for_push(&batch, &batch.series[0]);
    let places: Vec<_> = profile.location.iter().map(|at| (at.line[0].line, at.line[0].column)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 8)]);
    assert_eq!(profile.function.len(), 1, "it is one method all the same");
}

#[test]
fn the_main_binary_is_the_first_mapping_wherever_it_was_seen_first() {
    let libc = located(&mapping("/usr/lib/libc.so.6", 0x7000_0000), 0x7000_0100, vec![line("read", 0)]);
    let app = located(&mapping("/opt/app/bin/app", 0x40_0000), 0x40_0100, vec![line("main", 0)]);
    let java = located(&mapping("/opt/jdk/bin/java", 0x50_0000), 0x50_0100, vec![line("main", 0)]);
    let frames = vec![libc, app, java];
    for (executable, first) in [
        (None, "/opt/app/bin/app"),
        (Some("/opt/jdk/bin/java"), "/opt/jdk/bin/java"),
        (Some("java"), "/opt/jdk/bin/java"),
    ] {
        let labels: Vec<_> = executable.map(|path| ("executable", path)).into_iter().collect();
        let batch = batch(vec![series(&labels, vec![(frames.clone(), 1)])]);
        let profile = for_push(&batch, &batch.series[0]);
        assert_eq!(text(&profile, profile.mapping[0].filename), first);
        let ids: Vec<_> = profile.mapping.iter().map(|mapping| mapping.id).collect();
        assert_eq!(ids, [1, 2, 3]);
        let paths: Vec<_> = profile
            .location
            .iter()
            .map(|location| text(&profile, profile.mapping[location.mapping_id as usize - 1].filename))
            .collect();
        assert_eq!(paths, ["/usr/lib/libc.so.6", "/opt/app/bin/app", "/opt/jdk/bin/java"]);
    }
}

#[test]
fn a_mapping_says_what_is_known_of_all_its_locations() {
    let app = mapping("/opt/app", 0x40_0000);
    let flags = |frames: Vec<Arc<Frame>>| {
        let batch = batch(vec![series(&[], vec![(frames, 1)])]);
        let mapping = for_push(&batch, &batch.series[0]).mapping[0];
        [mapping.has_functions, mapping.has_filenames, mapping.has_line_numbers, mapping.has_inline_frames]
    };
    let full = located(&app, 0x40_0100, vec![line("a", 1), line("b", 2)]);
    let named = located(&app, 0x40_0200, vec![line("c", 0)]);
    let bare = located(&app, 0x40_0300, vec![]);
    assert_eq!(flags(vec![full.clone()]), [true, true, true, true]);
    assert_eq!(flags(vec![full.clone(), named]), [true, false, false, true]);
    assert_eq!(flags(vec![full, bare.clone()]), [false, false, false, true]);
    assert_eq!(flags(vec![bare]), [false; 4]);
}

#[test]
fn mappings_of_one_file_share_its_build_id() {
    let at = |start| located(&mapping("/opt/app", start), start + 8, vec![]);
    let batch = batch(vec![series(&[], vec![(vec![at(0x1_0000), at(0x9_0000)], 1)])]);
    let profile = for_push(&batch, &batch.series[0]);
    assert_eq!(profile.mapping.len(), 2);
    assert_eq!(profile.mapping[0].build_id, profile.mapping[1].build_id);
    assert_eq!(text(&profile, profile.mapping[0].build_id), "2f617070");
}

#[test]
fn counts_beyond_what_pprof_holds_stop_at_its_largest_number() {
    let batch = batch(vec![series(&[], vec![(vec![frame(FrameKind::Native, "main")], u64::MAX)])]);
    assert_eq!(for_file(&batch).sample[0].value, [i64::MAX, i64::MAX]);
}

#[test]
fn bytes_are_gzip_and_decode_to_what_was_encoded() {
    let batch = batch(vec![series(&[("pid", "1")], vec![(vec![frame(FrameKind::Native, "main")], 7)])]);
    let profile = for_file(&batch);
    let bytes = to_bytes(&profile).unwrap();
    assert_eq!(bytes[..2], [0x1f, 0x8b]);
    assert_eq!(decode(&bytes, DecodeLimits::default()).unwrap(), profile);
}
