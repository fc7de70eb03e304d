//! Windows with clocks that jump and periods that change.

use std::time::UNIX_EPOCH;

use super::*;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{LabelSet, SampleLabels};
use crate::profile::stack_budget::MAX_STACK_BYTES;

const HZ_100: u64 = 10_000_000;
const HZ_50: u64 = 20_000_000;

fn at(monotonic: u64, boot: u64, wall: u64) -> Clocks {
    let seconds = Duration::from_secs;
    Clocks { monotonic: seconds(monotonic), boot: seconds(boot), wall: UNIX_EPOCH + seconds(wall) }
}

fn windows(began: Clocks) -> Windows<u32> {
    Windows { began, others_began: began, last_read: began, ..Windows::new(HZ_100, None, MAX_STACK_BYTES) }
}

fn flush(windows: &mut Windows<u32>, now: Clocks) -> WindowProfiles {
    windows.flush_at(
        now,
        |_, _| {},
        |_, _| LabelDecision::Awaited,
        |_, _, weight| (weight.count, weight.value),
    )
}

fn stack() -> NamedStack {
    NamedStack { frames: [].into(), labels: SampleLabels::default(), pending: false }
}

fn of_cpu(period_ns: u64) -> ProfileKey {
    ProfileKey { event: EventType::Cpu, period: period_ns }
}

fn cpu(windows: &mut Windows<u32>, period_ns: u64) -> &mut Aggregator<u32> {
    windows.aggregator(EventType::Cpu, period_ns)
}

fn labels(name: &str) -> Arc<LabelSet> {
    Arc::new(LabelSet::from([("name".to_owned(), name.to_owned())]))
}

/// Returns start (Unix seconds), duration (seconds), period, samples.
fn facts(batch: &Batch) -> (u64, u64, u64, u64) {
    let start = batch.start.duration_since(UNIX_EPOCH).expect("after 1970");
    (start.as_secs(), batch.duration.as_secs(), batch.period, batch.samples())
}

fn add(windows: &mut Windows<u32>, period_ns: u64, count: u64) {
    for _ in 0..count {
        cpu(windows, period_ns).add(&labels("known"), 1, stack(), period_ns);
    }
}

#[test]
fn windows_follow_each_other_without_a_gap() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 3);
    assert_eq!(facts(&flush(&mut windows, at(20, 20, 1010)).batch), (1000, 10, HZ_100, 3));
    assert_eq!(facts(&flush(&mut windows, at(29, 29, 1019)).batch), (1010, 9, HZ_100, 0));
}

#[test]
fn a_clock_that_was_set_stamps_the_whole_window() {
    let mut windows = windows(at(10, 10, 5));
    // Booted in 1970, set to the right time four seconds into the window.
    assert!(!windows.check_clocks_at(at(14, 14, 1_700_000_000)), "nothing was suspended");
    assert!(!windows.check_clocks_at(at(15, 15, 1_700_000_001)));
    assert_eq!(windows.clock_counts(), ClockCounts { steps: 1, suspends: 0 });
    assert_eq!(facts(&flush(&mut windows, at(20, 20, 1_700_000_006)).batch).0, 1_699_999_996);
    // And back.
    assert!(!windows.check_clocks_at(at(21, 21, 1_600_000_000)));
    assert_eq!(windows.clock_counts().steps, 2);
    assert_eq!(facts(&flush(&mut windows, at(30, 30, 1_600_000_009)).batch).0, 1_599_999_999);
}

#[test]
fn time_asleep_belongs_to_no_window() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 1);
    assert!(windows.check_clocks_at(at(14, 7214, 8204)), "two hours of sleep");
    assert_eq!(windows.clock_counts(), ClockCounts { steps: 0, suspends: 1 });
    assert_eq!(facts(&flush(&mut windows, at(14, 7214, 8204)).batch), (1000, 4, HZ_100, 1));
    assert_eq!(facts(&flush(&mut windows, at(24, 7224, 8214)).batch), (8204, 10, HZ_100, 0));
}

#[test]
fn samples_of_two_periods_never_share_a_profile() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 7);
    windows.change_period(HZ_50);
    windows.previous_period = Some((of_cpu(HZ_100), at(20, 20, 1010)));
    // One that was under way at the change, and two after it.
    add(&mut windows, HZ_100, 1);
    add(&mut windows, HZ_50, 2);
    let first = flush(&mut windows, at(21, 21, 1011));
    assert_eq!(facts(&first.batch), (1000, 10, HZ_100, 8));
    assert!(first.other_batches.is_empty());
    // One that had waited for unwind rows.
    add(&mut windows, HZ_100, 1);
    let second = flush(&mut windows, at(30, 30, 1020));
    assert_eq!(facts(&second.batch), (1010, 10, HZ_50, 2));
    assert_eq!(second.other_batches.iter().map(facts).collect::<Vec<_>>(), [(1010, 10, HZ_100, 1)]);
    let mut starts: Vec<_> = second.into_batches().map(|batch| batch.start).collect();
    starts.dedup();
    assert_eq!(starts.len(), 2, "a backend would take profiles of one time for one");
}

#[test]
fn profiles_of_other_events_last_until_the_flush_that_a_changed_period_waits_for() {
    let mut windows = windows(at(10, 10, 1000));
    windows.change_period(HZ_50);
    windows.previous_period = Some((of_cpu(HZ_100), at(20, 20, 1010)));
    let pause = |windows: &mut Windows<u32>| {
        windows.aggregator(EventType::Pause, 1).add(&labels("known"), 1, stack(), 7);
    };
    let of_others = |flushed: &WindowProfiles| flushed.other_batches.iter().map(facts).collect::<Vec<_>>();
    pause(&mut windows);
    let flushed = flush(&mut windows, at(21, 21, 1011));
    assert_eq!(facts(&flushed.batch), (1000, 10, HZ_100, 0));
    assert_eq!(of_others(&flushed), [(1000, 11, 1, 1)]);
    // The next ones begin where these have ended.
    pause(&mut windows);
    let flushed = flush(&mut windows, at(30, 30, 1020));
    assert_eq!(facts(&flushed.batch), (1010, 10, HZ_50, 0));
    assert_eq!(of_others(&flushed), [(1011, 9, 1, 1)]);
}

#[test]
fn two_changes_before_a_flush_lose_nothing() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 4);
    windows.change_period(HZ_50);
    add(&mut windows, HZ_50, 2);
    windows.change_period(HZ_100);
    add(&mut windows, HZ_100, 1);
    let now = Clocks::now();
    let total: u64 = flush(&mut windows, now)
        .into_batches()
        .chain(flush(&mut windows, now).into_batches())
        .map(|batch| batch.samples())
        .sum();
    assert_eq!(total, 7);
}

#[test]
fn samples_that_wait_for_labels_keep_the_period_and_the_time_they_were_sampled_with() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 2);
    cpu(&mut windows, HZ_100).add_unlabelled(7, stack(), HZ_100);
    windows.change_period(HZ_50);
    windows.previous_period = Some((of_cpu(HZ_100), at(20, 20, 1010)));
    cpu(&mut windows, HZ_50).add_unlabelled(7, stack(), HZ_50);
    assert_eq!(facts(&flush(&mut windows, at(21, 21, 1011)).batch), (1000, 10, HZ_100, 2));
    assert!(!windows.is_empty(), "the new period's sample is in the open window");
    assert_eq!(facts(&flush(&mut windows, at(30, 30, 1020)).batch), (1010, 10, HZ_50, 0));
    assert!(windows.is_empty());
    assert_eq!((windows.unlabelled_keys().collect::<Vec<_>>(), windows.unlabelled_stacks()), (vec![7, 7], 2));
    // A window without any sample in between.
    let empty = flush(&mut windows, at(40, 40, 1030));
    assert_eq!((empty.batch.samples(), empty.other_batches.len()), (0, 0));

    assert!(windows.take_labelled(|_, _| LabelDecision::Awaited).is_empty());
    let late = windows.take_labelled(|_, _| LabelDecision::Labels(labels("late")));
    assert_eq!(late.iter().map(facts).collect::<Vec<_>>(), [(1000, 10, HZ_100, 1), (1010, 10, HZ_50, 1)]);
    assert_eq!(windows.unlabelled_stacks(), 0);
    assert!(windows.aggregators.is_empty(), "a period that nobody samples with takes no memory");
}

#[test]
fn a_window_ends_with_sampling_however_late_its_profile_is_made() {
    let mut windows = windows(at(10, 10, 1000));
    add(&mut windows, HZ_100, 4);
    windows.sampling_ended = Some(at(18, 18, 1008));
    windows.end_sampling();
    assert_eq!(facts(&flush(&mut windows, at(30, 30, 1020)).batch), (1000, 8, HZ_100, 4));
}

#[test]
fn the_limit_of_series_holds_for_each_period_and_is_counted_over_all() {
    let limit = |rest| Some(SeriesLimit { max: 1, rest: labels(rest) });
    let mut windows = Windows::new(HZ_100, limit("rest"), MAX_STACK_BYTES);
    let add = |windows: &mut Windows<u32>, period, name| {
        cpu(windows, period).add(&labels(name), 1, stack(), period);
    };
    for period in [HZ_100, HZ_50] {
        for name in ["a", "b", "c"] {
            add(&mut windows, period, name);
        }
    }
    windows.set_limit(limit("changed"));
    add(&mut windows, HZ_100, "d");
    assert_eq!(windows.over_limit(), 5);
    let flushed = flush(&mut windows, Clocks::now());
    let mut names: Vec<_> = flushed.batch.series.iter().map(|series| &*series.labels["name"]).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "changed", "rest"]);
    assert_eq!(flushed.other_batches.len(), 1);
    assert_eq!(windows.over_limit(), 5, "also when the window has ended");
}

#[test]
fn times_of_events_are_kept_since_the_windows_start_if_they_are_to_be() {
    let mut windows = windows(at(100, 100, 1000));
    // One stack, whose samples are counted together.
    let (stack, labels) = (stack(), labels("known"));
    let add = |windows: &mut Windows<u32>, millis: u64| {
        let window = windows.aggregator_at(EventType::Cpu, HZ_100, millis * 1_000_000);
        window.add(&labels, 1, stack.clone(), HZ_100);
    };
    add(&mut windows, 100_500);
    windows.keep_times(true);
    for millis in [99_000, 100_007, 101_500] {
        add(&mut windows, millis);
    }
    let flushed = flush(&mut windows, at(110, 110, 1010));
    let sample = &flushed.batch.series[0].samples[0];
    assert_eq!((sample.events, &*sample.times), (4, &[-1_000, 7, 1_500][..]), "also of one that came late");
}

#[test]
fn times_of_a_new_period_are_since_the_start_of_its_own_window() {
    let mut windows = windows(at(100, 100, 1000));
    windows.keep_times(true);
    windows.change_period(HZ_50);
    windows.previous_period = Some((windows.previous_period.expect("changed").0, at(104, 104, 1004)));
    let window = windows.aggregator_at(EventType::Cpu, HZ_50, 104_250 * 1_000_000);
    window.add(&labels("known"), 1, stack(), HZ_50);
    let first = flush(&mut windows, at(105, 105, 1005));
    assert_eq!(first.batch.samples(), 0, "it belongs to the next window");
    let second = flush(&mut windows, at(110, 110, 1010));
    assert_eq!((second.batch.period, &*second.batch.series[0].samples[0].times), (HZ_50, &[250][..]));
}
