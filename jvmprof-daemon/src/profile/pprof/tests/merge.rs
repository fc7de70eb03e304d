//! Merging: nothing lost, nothing counted twice, nothing believed that isn't checked.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{Content, content};
use crate::profile::model::{Batch, Frame, FrameKind};
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::merge::{MAX_BYTES, MergeError, Merger};
use crate::profile::pprof::{for_file, for_push, to_bytes};
use crate::profile::testing::{batch, frame, line, located, mapping, series};
use crate::proto::pprof::{Location, Profile, Sample, ValueType};

fn merge(profiles: &[Profile]) -> Profile {
    let mut merger = Merger::new(MAX_BYTES);
    profiles.iter().for_each(|profile| merger.add(profile).unwrap());
    merger.finish()
}

fn one(name: &str, count: u64) -> Batch {
    batch(vec![series(&[], vec![(vec![frame(FrameKind::Native, name)], count)])])
}

fn pushed(batch: &Batch) -> Profile {
    for_push(batch, &batch.series[0])
}

#[test]
fn equal_stacks_add_up_and_time_spans_from_the_first_start_to_the_last_end() {
    let first = one("main", 3);
    let mut later = one("main", 4);
    later.start += Duration::from_secs(20);
    let merged = merge(&[pushed(&later), pushed(&first)]);
    assert_eq!(merged.sample.len(), 1);
    assert_eq!(merged.sample[0].value, [7]);
    assert_eq!(merged.time_nanos, pushed(&first).time_nanos);
    assert_eq!(merged.duration_nanos, 30_000_000_000);
    assert_eq!(merged.period, 10_000_000);
}

#[test]
fn a_library_is_the_same_in_two_processes_wherever_it_was_loaded() {
    let at = |start| {
        let libc = mapping("/usr/lib/libc.so.6", start);
        pushed(&batch(vec![series(
            &[],
            vec![(vec![located(&libc, start + 0x100, vec![line("read", 0)])], 1)],
        )]))
    };
    let merged = merge(&[at(0x7000_0000), at(0x7fff_0000)]);
    assert_eq!((merged.mapping.len(), merged.location.len(), merged.sample.len()), (1, 1, 1));
    assert_eq!(merged.location[0].address, 0x7000_0100);
}

#[test]
fn a_merge_of_nothing_is_an_empty_profile() {
    let merged = Merger::new(MAX_BYTES).finish();
    assert_eq!(merged.string_table, [""]);
    assert!(merged.sample.is_empty());
}

#[test]
fn profiles_of_another_type_are_refused_and_leave_the_merge_as_it_was() {
    let mut merger = Merger::new(MAX_BYTES);
    merger.add(&pushed(&one("main", 3))).unwrap();
    let error = merger.add(&for_file(&one("main", 4))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "merging profiles: sample types samples/count, cpu/nanoseconds (period cpu/nanoseconds) can't be \
         added to samples/count (period cpu/nanoseconds)"
    );
    assert_eq!(merger.finish().sample[0].value, [3]);
}

#[test]
fn profiles_whose_periods_are_of_another_type_are_refused() {
    let other = |damage: fn(&mut Profile)| {
        let mut other = pushed(&one("main", 4));
        damage(&mut other);
        let mut merger = Merger::new(MAX_BYTES);
        merger.add(&pushed(&one("main", 3))).unwrap();
        merger.add(&other).unwrap_err()
    };
    for error in [
        other(|other| other.period_type = None),
        other(|other| other.period_type = Some(other.sample_type[0])),
    ] {
        assert!(matches!(error, MergeError::Incompatible { .. }), "{error}");
    }
}

#[test]
fn a_comment_is_in_the_result() {
    let mut merger = Merger::new(MAX_BYTES);
    merger.comment("said");
    merger.add(&pushed(&one("main", 3))).unwrap();
    let merged = merger.finish();
    let comments: Vec<_> = merged.comment.iter().map(|at| &*merged.string_table[*at as usize]).collect();
    assert_eq!(comments, ["said"]);
}

#[test]
fn a_merge_that_grows_too_large_keeps_what_it_has() {
    let mut merger = Merger::new(250);
    merger.add(&pushed(&one("first", 1))).unwrap();
    for _ in 0..10 {
        merger.add(&pushed(&one("first", 1))).expect("nothing new takes no room");
    }
    let error = merger.add(&pushed(&one(&"long".repeat(80), 1))).unwrap_err();
    assert!(matches!(error, MergeError::Full { limit: 250 }), "{error}");
    assert_eq!(merger.finish().sample[0].value, [11]);
}

#[test]
fn references_to_nowhere_are_errors() {
    let good = pushed(&batch(vec![series(
        &[],
        vec![(vec![located(&mapping("/a", 0x1000), 0x1008, vec![line("f", 1)])], 1)],
    )]));
    type Damage = fn(&mut Profile);
    let breaks: &[(&str, Damage)] = &[
        ("location 9", |p| p.sample[0].location_id[0] = 9),
        ("location 0", |p| p.sample[0].location_id[0] = 0),
        ("mapping 9", |p| p.location[0].mapping_id = 9),
        ("function 9", |p| p.location[0].line[0].function_id = 9),
        ("name of function 0 isn't in the string table: 99", |p| p.function[0].name = 99),
        ("name of function 0 isn't in the string table: -1", |p| p.function[0].name = -1),
        ("file name of mapping 0 isn't in the string table: 99", |p| p.mapping[0].filename = 99),
        ("name of type 0 isn't in the string table: 99", |p| p.sample_type[0].r#type = 99),
        ("2 values for 1 sample types", |p| p.sample[0].value.push(1)),
        ("0 values for 1 sample types", |p| p.sample[0].value.clear()),
    ];
    for (message, damage) in breaks {
        let mut broken = good.clone();
        damage(&mut broken);
        let mut merger = Merger::new(MAX_BYTES);
        let error = merger.add(&broken).unwrap_err();
        assert!(error.to_string().contains(message), "{error} instead of {message}");
        merger.add(&good).expect("the merge goes on");
    }
}

#[test]
fn ids_in_any_order_are_understood_and_become_sequential() {
    let foreign = Profile {
        sample_type: vec![ValueType::default()],
        location: [70, 5].map(|id| Location { id, address: id, ..Location::default() }).to_vec(),
        sample: vec![Sample { location_id: vec![5, 70], value: vec![1], label: vec![] }],
        ..Profile::default()
    };
    let merged = merge(&[foreign]);
    assert_eq!(merged.sample[0].location_id, [1, 2]);
    assert_eq!(merged.location.iter().map(|l| (l.id, l.address)).collect::<Vec<_>>(), [(1, 5), (2, 70)]);
}

#[test]
fn bytes_that_are_no_profile_are_an_error() {
    assert!(decode(b"\x1f\x8bnot gzip", DecodeLimits::default()).is_err());
}

fn any_frame() -> impl Strategy<Value = Arc<Frame>> {
    let kinds = [FrameKind::Kernel, FrameKind::Native, FrameKind::Java, FrameKind::Marker];
    let lines = prop::collection::vec((0..5_u32, 0..3_u32), 0..3);
    (prop::sample::select(kinds.to_vec()), prop::option::of(0..3_u64), 0..4_u64, lines).prop_map(
        |(kind, mapped, address, lines)| {
            let lines = lines.into_iter().map(|(name, number)| line(&format!("f{name}"), number)).collect();
            match mapped {
                Some(at) => located(
                    &mapping(&format!("/lib{at}.so"), 0x10_0000 * (at + 1)),
                    0x10_0000 * (at + 1) + address,
                    lines,
                ),
                None => Arc::new(Frame { kind, address: None, mapping: None, lines }),
            }
        },
    )
}

fn any_batch() -> impl Strategy<Value = Batch> {
    let sample = (prop::collection::vec(any_frame(), 0..6), 1..100_u64);
    let one_series = (0..3_u32, prop::collection::vec(sample, 0..6));
    prop::collection::vec(one_series, 1..4).prop_map(|all| {
        batch(all.into_iter().map(|(pid, samples)| series(&[("pid", &pid.to_string())], samples)).collect())
    })
}

fn doubled(content: Content) -> Content {
    content
        .into_iter()
        .map(|(key, values)| (key, values.into_iter().map(|value| value * 2).collect()))
        .collect()
}

proptest! {
    #[test]
    fn encoding_and_decoding_change_nothing_and_ids_are_in_table_order(batch in any_batch()) {
        let profile = for_file(&batch);
        let decoded = decode(&to_bytes(&profile).unwrap(), DecodeLimits::default()).unwrap();
        prop_assert_eq!(&decoded, &profile);
        let sequential = |ids: Vec<u64>| ids.iter().zip(1..).all(|(id, expected)| *id == expected);
        for profile in [decoded.clone(), merge(&[decoded])] {
            prop_assert!(sequential(profile.mapping.iter().map(|m| m.id).collect()));
            prop_assert!(sequential(profile.function.iter().map(|f| f.id).collect()));
            prop_assert!(sequential(profile.location.iter().map(|l| l.id).collect()));
            prop_assert_eq!(&profile.string_table[0], "");
        }
    }

    #[test]
    fn merging_keeps_every_count(batch in any_batch()) {
        let profile = for_file(&batch);
        prop_assert_eq!(content(&merge(std::slice::from_ref(&profile))), content(&profile));
        prop_assert_eq!(content(&merge(&[profile.clone(), profile.clone()])), doubled(content(&profile)));
    }

    #[test]
    fn the_order_of_merging_changes_no_count(a in any_batch(), b in any_batch()) {
        let (a, b) = (for_file(&a), for_file(&b));
        prop_assert_eq!(content(&merge(&[a.clone(), b.clone()])), content(&merge(&[b, a])));
    }

    #[test]
    fn damaged_bytes_are_an_error_or_a_profile_and_never_a_panic(
        batch in any_batch(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = prost::Message::encode_to_vec(&for_file(&batch));
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut merger = Merger::new(MAX_BYTES);
        if let Ok(damaged) = decode(&bytes, DecodeLimits::default()) {
            let _ = merger.add(&damaged);
        }
        let _ = merger.add(&for_file(&batch));
        let _ = merger.finish();
    }
}
