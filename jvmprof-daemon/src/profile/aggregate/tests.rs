use super::*;
use crate::profile::model::{FrameKind, Line};
use crate::profile::stack_budget::NO_ROOM;

fn frame(name: &str) -> Arc<Frame> {
    let line = Line::named(name);
    Arc::new(Frame { kind: FrameKind::Native, address: None, mapping: None, lines: vec![line] })
}

fn labels(pid: &str) -> Arc<LabelSet> {
    Arc::new(LabelSet::from([("pid".to_owned(), pid.to_owned())]))
}

fn window(start: u64) -> Window {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(start);
    Window { start, duration: Duration::from_secs(10), period_ns: 10 }
}

#[test]
fn equal_stacks_of_equal_labels_are_counted_together() {
    let (main, leaf, other) = (frame("main"), frame("leaf"), frame("other"));
    let mut aggregator = Aggregator::new(None);
    for _ in 0..3 {
        // Label sets are equal by value, also when they aren't the same one.
        aggregator.add(&labels("1"), 1, vec![leaf.clone(), main.clone()], false);
    }
    aggregator.add(&labels("1"), 1, vec![other, main.clone()], false);
    aggregator.add(&labels("2"), 2, vec![leaf, main], false);
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| Verdict::Awaited);
    assert_eq!(batch.samples(), 5);
    assert_eq!(batch.series.len(), 2);
    let first = batch.series.iter().find(|series| series.labels["pid"] == "1").expect("pid 1 was added");
    let mut counts: Vec<u64> = first.samples.iter().map(|sample| sample.count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 3]);
    assert!(aggregator.is_empty());
}

#[test]
fn a_label_set_goes_where_the_limit_sends_it_also_when_it_comes_again() {
    let limit = SeriesLimit { max: 1, rest: labels("rest") };
    let mut aggregator = Aggregator::new(Some(limit));
    let (first, second) = (labels("1"), labels("2"));
    for owner in [&first, &second, &second, &labels("1")] {
        aggregator.add(owner, 1, vec![frame("main")], false);
    }
    assert_eq!(aggregator.over_limit(), 2);
    aggregator.set_limit(None);
    aggregator.add(&second, 1, vec![frame("main")], false);
    assert_eq!(aggregator.over_limit(), 2);
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| Verdict::Awaited);
    let count = |pid: &str| {
        let series = batch.series.iter().find(|series| series.labels["pid"] == pid).expect("it was added");
        series.samples.iter().map(|sample| sample.count).sum::<u64>()
    };
    assert_eq!([count("1"), count("rest"), count("2")], [2, 2, 1]);
    aggregator.add(&second, 1, vec![frame("main")], false);
    assert_eq!(aggregator.flush(window(1), |_, _| {}, |_, _| Verdict::Awaited).series.len(), 1);
}

#[test]
fn stacks_without_room_are_counted_as_one_that_says_so() {
    let mut aggregator = Aggregator { room: Room::new(10_000), ..Aggregator::new(None) };
    let first = vec![frame("first")];
    aggregator.add(&labels("1"), 1, first.clone(), false);
    for at in 0..1000 {
        aggregator.add(&labels("1"), 1, vec![frame(&format!("f{at}"))], true);
    }
    // What is there already needs no room.
    aggregator.add(&labels("1"), 1, first, false);
    let without_room = aggregator.without_room();
    assert!((500..1000).contains(&without_room), "{without_room}");
    let window = Window { start: SystemTime::UNIX_EPOCH, duration: Duration::from_secs(1), period_ns: 10 };
    let batch = aggregator.flush(window, |_, _| {}, |_, _| Verdict::Awaited);
    assert_eq!(batch.samples(), 1002);
    let full = batch.series[0].samples.iter().find(|sample| &*sample.frames[0].lines[0].name == NO_ROOM);
    assert_eq!(full.map(|sample| sample.count), Some(without_room));
    aggregator.add(&labels("1"), 1, vec![frame("of the next window")], false);
    assert_eq!(aggregator.without_room(), without_room);
}

#[test]
fn pending_stacks_are_shown_once_more_with_their_owner() {
    let mut aggregator = Aggregator::new(None);
    aggregator.add(&labels("1"), 7, vec![frame("later")], true);
    aggregator.add(&labels("1"), 7, vec![frame("known")], false);
    let mut seen = Vec::new();
    let named = frame("named");
    let finish = |owner, frames: &mut [Arc<Frame>]| {
        seen.push((owner, frames[0].lines[0].name.to_string()));
        frames[0] = Arc::clone(&named);
    };
    let batch = aggregator.flush(window(0), finish, |_, _| Verdict::Awaited);
    assert_eq!(seen, [(7, "later".to_owned())]);
    let samples = &batch.series[0].samples;
    assert!(samples.iter().any(|sample| Arc::ptr_eq(&sample.frames[0], &named)));
}

#[test]
fn what_waits_for_labels_goes_out_with_its_own_windows_time() {
    let (first, second) = (window(0), Window { period_ns: 20, ..window(10) });
    let (main, leaf) = (frame("main"), frame("leaf"));
    let mut aggregator = Aggregator::new(None);
    aggregator.add(&labels("1"), 1, vec![main.clone()], false);
    // Owner 1's label set is known, only later for these two samples; owner 2's isn't.
    aggregator.hold(1, vec![main.clone()], false);
    aggregator.hold(1, vec![main.clone()], false);
    aggregator.hold(2, vec![leaf.clone(), main.clone()], false);
    let known = |owner, _| match owner {
        1 => Verdict::Labels(labels("1")),
        _ => Verdict::Awaited,
    };
    let batch = aggregator.flush(first, |_, _| {}, known);
    assert_eq!((batch.samples(), batch.series.len(), batch.start), (3, 1, first.start));
    assert_eq!(aggregator.held().collect::<Vec<_>>(), [2]);
    assert_eq!(aggregator.held_stacks(), 1);

    assert!(aggregator.take_late(|_, _| Verdict::Awaited).is_empty());
    aggregator.hold(2, vec![leaf], false);
    let mut asked = Vec::new();
    let late = aggregator.take_late(|owner, samples| {
        asked.push((owner, samples));
        Verdict::Labels(labels("2"))
    });
    assert_eq!(asked, [(2, 1)]);
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].samples(), &*late[0].series[0].labels["pid"]), (1, "2"));
    let Batch { start, duration, period_ns, .. } = late[0];
    assert_eq!(Window { start, duration, period_ns }, first);
    assert!(aggregator.held().eq([2]), "the second window's sample goes out with that window");
    let batch = aggregator.flush(second, |_, _| {}, |_, _| Verdict::Labels(labels("2")));
    assert_eq!((batch.samples(), batch.start, batch.period_ns), (1, second.start, 20));
    assert!(aggregator.is_empty());
}

#[test]
fn what_exceeds_the_limit_of_series_is_merged_and_counted() {
    let rest = Arc::new(LabelSet::from([("overflow".to_owned(), "true".to_owned())]));
    let limit = SeriesLimit { max: 2, rest: Arc::clone(&rest) };
    let mut aggregator = Aggregator::new(Some(limit));
    let stack = frame("main");
    for pid in ["1", "2", "3", "4", "1", "3"] {
        aggregator.add(&labels(pid), 0, vec![stack.clone()], false);
    }
    aggregator.hold(5, vec![stack.clone()], false);
    aggregator.hold(6, vec![stack.clone()], false);
    let verdict = |owner, _| if owner == 5 { Verdict::Labels(labels("5")) } else { Verdict::Dropped };
    let batch = aggregator.flush(window(0), |_, _| {}, verdict);
    assert_eq!(batch.samples(), 7, "only what was dropped on purpose is missing");
    assert_eq!(batch.series.len(), 3);
    let merged = batch.series.iter().find(|series| series.labels == *rest).expect("there is a rest");
    assert_eq!(merged.samples.iter().map(|sample| sample.count).sum::<u64>(), 4);
    assert_eq!(aggregator.over_limit(), 4);
    aggregator.add(&labels("3"), 0, vec![stack.clone()], false);
    for owner in 1..=4 {
        aggregator.hold(owner, vec![stack.clone()], false);
    }
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| Verdict::Awaited);
    assert_eq!(batch.series[0].labels["pid"], "3", "each window has the whole room");
    // What comes late too has the limit of its own time.
    aggregator.set_limit(Some(SeriesLimit { max: 1, rest: labels("another rest") }));
    let verdict = |owner: u32, _| match owner {
        4 => Verdict::Dropped,
        owner => Verdict::Labels(labels(&owner.to_string())),
    };
    let late = aggregator.take_late(verdict);
    assert_eq!((late.len(), late[0].samples(), late[0].series.len()), (1, 3, 3));
    assert!(late[0].series.iter().any(|series| series.labels == *rest), "{late:?}");
    assert!(aggregator.is_empty());
}
