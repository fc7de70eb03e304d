//! The times of samples in a profile.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use std::ops::Range;

use crate::profile::model::{FrameKind, Sample, Series};
use crate::profile::pprof::sample_times::{InvalidSampleTimes, TimesInRange, keep_within};
use crate::profile::pprof::{PushEncoder, for_push};
use crate::profile::testing::{batch, frame, series};
use crate::proto::pprof::Profile;

/// Begin of the profile of these tests, in nanoseconds.
const START: i64 = 1_732_195_500_000_000_000;

/// Stacks with so many events and these times of theirs.
fn series_of(stacks: &[(u64, &[i32])]) -> Series {
    let of = |(at, &(events, times)): (usize, &(u64, &[i32]))| Sample {
        times: times.to_vec(),
        ..Sample::of_events([frame(FrameKind::Native, &format!("f{at}"))].into(), events, events * 10_000_000)
    };
    Series { samples: stacks.iter().enumerate().map(of).collect(), ..series(&[("pid", "1")], Vec::new()) }
}

fn profile(stacks: &[(u64, &[i32])]) -> Profile {
    let batch = batch(vec![series_of(stacks)]);
    PushEncoder::new(&batch).with_times(true).encode(&batch.series[0])
}

/// Returns a range from and to: milliseconds since the profile's start.
fn range(from: i64, to: i64) -> Range<i64> {
    START + from * 1_000_000..START + to * 1_000_000
}

/// The events of each stack that is kept, and their times.
fn kept(profile: &Profile, times: &TimesInRange) -> Vec<(i64, Vec<u32>)> {
    profile.sample.iter().enumerate().map(|(at, it)| (it.value[0], times.of(at).to_vec())).collect()
}

const STACKS: [(u64, &[i32]); 3] = [(4, &[9_999, 20, 300, 20]), (2, &[-400, 70_000]), (3, &[20])];

#[test]
fn times_are_read_as_they_were_written_also_those_before_the_profiles_start() {
    let mut all = profile(&STACKS);
    let times = keep_within(&mut all, &range(-1_000, 100_000), true).expect("valid");
    let expected = [(4, vec![1_020, 1_020, 1_300, 10_999]), (2, vec![600, 71_000]), (3, vec![1_020])];
    assert_eq!(kept(&all, &times), expected, "since the range's start, two of the third stack unknown");
    assert_eq!((times.len(), times.is_empty()), (7, false));
}

#[test]
fn only_the_events_of_the_range_stay_and_others_if_they_are_wanted() {
    let mut part = profile(&STACKS);
    let times = keep_within(&mut part, &range(20, 300), false).expect("valid");
    assert_eq!(kept(&part, &times), [(2, vec![0, 0]), (1, vec![0])], "without its end");
    let mut early = profile(&STACKS);
    let times = keep_within(&mut early, &range(-400, -399), true).expect("valid");
    assert_eq!(kept(&early, &times), [(1, vec![0]), (2, vec![])]);
}

#[test]
fn of_a_profile_without_times_all_or_nothing_stays() {
    let batch = batch(vec![series_of(&[(4, &[])])]);
    assert_eq!(
        PushEncoder::new(&batch).with_times(true).encode(&batch.series[0]),
        for_push(&batch, &batch.series[0])
    );
    for (has_untimed, expected) in [(true, 1), (false, 0)] {
        let mut profile = for_push(&batch, &batch.series[0]);
        let times = keep_within(&mut profile, &range(0, 1), has_untimed).expect("valid");
        assert_eq!((profile.sample.len(), times.len(), times.of(0)), (expected, 0, &[][..]));
    }
}

#[test]
fn others_get_no_times() {
    let batch = batch(vec![series_of(&STACKS)]);
    let pushed = for_push(&batch, &batch.series[0]);
    assert_eq!(pushed.comment, [0_i64; 0]);
    assert!(pushed.sample.iter().all(|sample| sample.label.is_empty()));
}

#[test]
fn broken_times_are_refused_and_the_profile_stays_as_it_was() {
    let broken = |change: &dyn Fn(&mut Profile)| {
        let mut profile = profile(&STACKS);
        change(&mut profile);
        let before = profile.clone();
        let error = keep_within(&mut profile, &range(0, 1_000), true).expect_err("broken");
        assert_eq!(profile, before);
        error
    };
    let text = |profile: &mut Profile, new: &dyn Fn(&str) -> String| {
        let at = usize::try_from(profile.comment[0]).expect("an index");
        profile.string_table[at] = new(&profile.string_table[at]);
    };
    let fewer = broken(&|profile| profile.sample.truncate(2));
    assert_eq!(fewer, InvalidSampleTimes::Length);
    let more = broken(&|profile| profile.sample.push(profile.sample[0].clone()));
    assert_eq!(more, InvalidSampleTimes::Length);
    let count = broken(&|profile| profile.sample[0].value[0] = 3);
    assert_eq!(count, InvalidSampleTimes::Events { position: 0, times: 4, events: 3 });
    let values = broken(&|profile| profile.sample[1].value.push(7));
    assert_eq!(values, InvalidSampleTimes::Values { position: 1, values: 2 });
    let no_base64 = broken(&|profile| text(profile, &|old| format!("{old}!")));
    assert!(matches!(no_base64, InvalidSampleTimes::Base64(_)), "{no_base64}");
    let empty = broken(&|profile| text(profile, &|_| "jvmprof sample times: ".to_owned()));
    assert_eq!(empty, InvalidSampleTimes::Length);
    for bytes in [&[0x80][..], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80; 11]] {
        let packed = format!("jvmprof sample times: {}", STANDARD.encode(bytes));
        let number = broken(&|profile| text(profile, &|_| packed.clone()));
        assert_eq!(number, InvalidSampleTimes::Length, "{bytes:?}");
    }
}
