use super::*;
use crate::profile::model::{FrameKind, Line, SampleLabel};
use crate::profile::stack_budget::OVER_BUDGET;

impl LabelKeyOfProcess for i32 {
    fn process_number(self) -> u64 {
        self.unsigned_abs().into()
    }
}

impl LabelKeyOfProcess for u32 {
    fn process_number(self) -> u64 {
        self.into()
    }
}

fn frame(name: &str) -> Arc<Frame> {
    let line = Line::named(name);
    Arc::new(Frame { kind: FrameKind::Native, address: None, mapping: None, lines: vec![line] })
}

fn labels(pid: &str) -> Arc<LabelSet> {
    Arc::new(LabelSet::from([("pid".to_owned(), pid.to_owned())]))
}

fn stack(frames: Vec<Arc<Frame>>, pending: bool) -> NamedStack {
    NamedStack { frames: frames.into(), labels: SampleLabels::default(), pending }
}

fn window(start: u64) -> Window {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(start);
    Window { event: EventType::Cpu, start, duration: Duration::from_secs(10), period: 10 }
}

#[test]
fn equal_stacks_of_equal_labels_are_counted_together() {
    let (main, leaf, other) = (frame("main"), frame("leaf"), frame("other"));
    let mut aggregator = Aggregator::new(None);
    for _ in 0..3 {
        // Label sets are equal by value, also when they aren't the same one.
        aggregator.add(&labels("1"), 1, stack(vec![leaf.clone(), main.clone()], false), 10);
    }
    aggregator.add(&labels("1"), 1, stack(vec![other, main.clone()], false), 10);
    aggregator.add(&labels("2"), 2, stack(vec![leaf, main], false), 10);
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| LabelDecision::Awaited);
    assert_eq!(batch.samples(), 5);
    assert_eq!(batch.series.len(), 2);
    let first = batch.series.iter().find(|series| series.labels["pid"] == "1").expect("pid 1 was added");
    let mut counts: Vec<_> = first.samples.iter().map(|sample| (sample.count, sample.value)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(1, 10), (3, 30)]);
    assert!(aggregator.is_empty());
}

#[test]
fn a_part_of_an_event_that_comes_to_nothing_is_left_out() {
    let mut aggregator = Aggregator::new(None);
    let part = |events, stratum| SampleWeight { stratum, events, count: 1, value: 1 };
    for weight in [part(1, 0), part(0, 1), part(0, 2)] {
        aggregator.add(&labels("1"), 1, stack(vec![frame("main")], false), weight);
    }
    let estimate = |_, weight: SampleWeight| (0, if weight.stratum == 1 { 7 } else { 0 });
    let batch = aggregator.flush_estimated(window(0), |_, _| {}, |_, _| LabelDecision::Awaited, estimate);
    let mut found: Vec<_> = batch.series[0].samples.iter().map(|it| (it.events, it.value)).collect();
    found.sort_unstable();
    assert_eq!(found, [(0, 7), (1, 0)]);
}

#[test]
fn equal_stacks_with_other_labels_of_their_own_are_counted_apart() {
    let label = |value: &str| SampleLabels::new([SampleLabel { name: "class".into(), value: value.into() }]);
    let (main, bytes, longs) = (frame("main"), label("byte[]"), label("long[]"));
    let mut aggregator = Aggregator::new(None);
    for own in [&bytes, &longs, &bytes] {
        let stack = NamedStack { labels: own.clone(), ..stack(vec![main.clone()], false) };
        aggregator.add(&labels("1"), 1, stack, 10);
    }
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| LabelDecision::Awaited);
    let value = |sample: &Sample| sample.labels.iter().next().map(|label| label.value.to_string());
    let samples = &batch.series[0].samples;
    let mut counts: Vec<_> = samples.iter().map(|sample| (value(sample).unwrap(), sample.count)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [("byte[]".to_owned(), 2), ("long[]".to_owned(), 1)]);
}

#[test]
fn a_label_set_goes_where_the_limit_sends_it_also_when_it_comes_again() {
    let limit = SeriesLimit { max: 1, rest: labels("rest") };
    let mut aggregator = Aggregator::new(Some(limit));
    let (first, second) = (labels("1"), labels("2"));
    for label_key in [&first, &second, &second, &labels("1")] {
        aggregator.add(label_key, 1, stack(vec![frame("main")], false), 10);
    }
    assert_eq!(aggregator.over_limit(), 2);
    aggregator.set_limit(None);
    aggregator.add(&second, 1, stack(vec![frame("main")], false), 10);
    assert_eq!(aggregator.over_limit(), 2);
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| LabelDecision::Awaited);
    let count = |pid: &str| {
        let series = batch.series.iter().find(|series| series.labels["pid"] == pid).expect("it was added");
        series.samples.iter().map(|sample| sample.count).sum::<u64>()
    };
    assert_eq!([count("1"), count("rest"), count("2")], [2, 2, 1]);
    aggregator.add(&second, 1, stack(vec![frame("main")], false), 10);
    assert_eq!(aggregator.flush(window(1), |_, _| {}, |_, _| LabelDecision::Awaited).series.len(), 1);
}

#[test]
fn stacks_without_room_are_counted_as_one_that_says_so() {
    let mut aggregator = Aggregator { budget: StackBudget::new(10_000), ..Aggregator::new(None) };
    let first = vec![frame("first")];
    aggregator.add(&labels("1"), 1, stack(first.clone(), false), 10);
    for at in 0..1000 {
        aggregator.add(&labels("1"), 1, stack(vec![frame(&format!("f{at}"))], true), 10);
    }
    // A stack that is there already takes no more of the budget.
    aggregator.add(&labels("1"), 1, stack(first, false), 10);
    let over_capacity = aggregator.over_capacity();
    assert!((500..1000).contains(&over_capacity), "{over_capacity}");
    let window = Window {
        event: EventType::Cpu,
        start: SystemTime::UNIX_EPOCH,
        duration: Duration::from_secs(1),
        period: 10,
    };
    let batch = aggregator.flush(window, |_, _| {}, |_, _| LabelDecision::Awaited);
    assert_eq!(batch.samples(), 1002);
    let full = batch.series[0].samples.iter().find(|sample| &*sample.frames[0].lines[0].name == OVER_BUDGET);
    assert_eq!(full.map(|sample| sample.count), Some(over_capacity));
    aggregator.add(&labels("1"), 1, stack(vec![frame("of the next window")], false), 10);
    assert_eq!(aggregator.over_capacity(), over_capacity);
}

#[test]
fn stacks_without_room_are_weighed_by_their_own_process_where_weights_are_estimates() {
    let counted = |event| {
        let mut aggregator = Aggregator::new(None).with_stack_bytes(0).of_event(event);
        // Rules have dropped what distinguishes the processes: they share a series.
        for (process, value) in [(1, 10_u64), (2, 10), (1, 10), (2, 30)] {
            aggregator.add(&labels("any"), process, stack(vec![frame("alloc")], false), value);
        }
        let estimate = |process: i32, weight: SampleWeight| (weight.count, weight.value * process as u64);
        let window = Window { event, ..window(0) };
        let batch = aggregator.flush_estimated(window, |_, _| {}, |_, _| LabelDecision::Awaited, estimate);
        assert_eq!((batch.series.len(), aggregator.over_capacity()), (1, 4));
        let samples = batch.series[0].samples.iter();
        let mut counted: Vec<_> = samples.map(|it| (it.events, it.count, it.value)).collect();
        counted.sort_unstable();
        counted
    };
    assert_eq!(counted(EventType::Allocation), [(2, 2, 20), (2, 2, 80)]);
    // What isn't estimated is one stack, of whatever process.
    let of_cpu = counted(EventType::Cpu);
    assert_eq!((of_cpu.len(), of_cpu[0].0), (1, 4));
}

#[test]
fn pending_stacks_are_shown_once_more_with_their_label_key() {
    let mut aggregator = Aggregator::new(None);
    aggregator.add(&labels("1"), 7, stack(vec![frame("later")], true), 10);
    aggregator.add(&labels("1"), 7, stack(vec![frame("known")], false), 10);
    let mut seen = Vec::new();
    let named = frame("named");
    let finish = |label_key, frames: &mut [Arc<Frame>]| {
        seen.push((label_key, frames[0].lines[0].name.to_string()));
        frames[0] = Arc::clone(&named);
    };
    let batch = aggregator.flush(window(0), finish, |_, _| LabelDecision::Awaited);
    assert_eq!(seen, [(7, "later".to_owned())]);
    let samples = &batch.series[0].samples;
    assert!(samples.iter().any(|sample| Arc::ptr_eq(&sample.frames[0], &named)));
}

#[test]
fn what_waits_for_labels_goes_out_with_its_own_windows_time() {
    let (first, second) = (window(0), Window { period: 20, ..window(10) });
    let (main, leaf) = (frame("main"), frame("leaf"));
    let mut aggregator = Aggregator::new(None);
    aggregator.add(&labels("1"), 1, stack(vec![main.clone()], false), 10);
    // Key 1's label set is known, only later for these two samples; key 2's isn't.
    aggregator.add_unlabelled(1, stack(vec![main.clone()], false), 10);
    aggregator.add_unlabelled(1, stack(vec![main.clone()], false), 10);
    aggregator.add_unlabelled(2, stack(vec![leaf.clone(), main.clone()], false), 10);
    let known = |label_key, _| match label_key {
        1 => LabelDecision::Labels(labels("1")),
        _ => LabelDecision::Awaited,
    };
    let batch = aggregator.flush(first, |_, _| {}, known);
    assert_eq!((batch.samples(), batch.series.len(), batch.start), (3, 1, first.start));
    assert_eq!(aggregator.unlabelled_keys().collect::<Vec<_>>(), [2]);
    assert_eq!(aggregator.unlabelled_stacks(), 1);

    assert!(aggregator.take_labelled(|_, _| LabelDecision::Awaited).is_empty());
    aggregator.add_unlabelled(2, stack(vec![leaf], false), 10);
    let mut asked = Vec::new();
    let late = aggregator.take_labelled(|label_key, samples| {
        asked.push((label_key, samples));
        LabelDecision::Labels(labels("2"))
    });
    assert_eq!(asked, [(2, 1)]);
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].samples(), &*late[0].series[0].labels["pid"]), (1, "2"));
    let Batch { start, duration, period, .. } = late[0];
    assert_eq!(Window { event: EventType::Cpu, start, duration, period }, first);
    assert!(aggregator.unlabelled_keys().eq([2]), "the second window's sample goes out with that window");
    let batch = aggregator.flush(second, |_, _| {}, |_, _| LabelDecision::Labels(labels("2")));
    assert_eq!((batch.samples(), batch.start, batch.period), (1, second.start, 20));
    assert!(aggregator.is_empty());
}

#[test]
fn what_exceeds_the_limit_of_series_is_merged_and_counted() {
    let rest = Arc::new(LabelSet::from([("overflow".to_owned(), "true".to_owned())]));
    let limit = SeriesLimit { max: 2, rest: Arc::clone(&rest) };
    let mut aggregator = Aggregator::new(Some(limit));
    let main = frame("main");
    for pid in ["1", "2", "3", "4", "1", "3"] {
        aggregator.add(&labels(pid), 0, stack(vec![main.clone()], false), 10);
    }
    aggregator.add_unlabelled(5, stack(vec![main.clone()], false), 10);
    aggregator.add_unlabelled(6, stack(vec![main.clone()], false), 10);
    let verdict = |label_key, _| {
        if label_key == 5 { LabelDecision::Labels(labels("5")) } else { LabelDecision::Dropped }
    };
    let batch = aggregator.flush(window(0), |_, _| {}, verdict);
    assert_eq!(batch.samples(), 7, "only what was dropped on purpose is missing");
    assert_eq!(batch.series.len(), 3);
    let merged = batch.series.iter().find(|series| series.labels == *rest).expect("there is a rest");
    assert_eq!(merged.samples.iter().map(|sample| sample.count).sum::<u64>(), 4);
    assert_eq!(aggregator.over_limit(), 4);
    aggregator.add(&labels("3"), 0, stack(vec![main.clone()], false), 10);
    for label_key in 1..=4 {
        aggregator.add_unlabelled(label_key, stack(vec![main.clone()], false), 10);
    }
    let batch = aggregator.flush(window(0), |_, _| {}, |_, _| LabelDecision::Awaited);
    assert_eq!(batch.series[0].labels["pid"], "3", "each window has the whole limit");
    // What comes late too has the limit of its own time.
    aggregator.set_limit(Some(SeriesLimit { max: 1, rest: labels("another rest") }));
    let verdict = |label_key: u32, _| match label_key {
        4 => LabelDecision::Dropped,
        label_key => LabelDecision::Labels(labels(&label_key.to_string())),
    };
    let late = aggregator.take_labelled(verdict);
    assert_eq!((late.len(), late[0].samples(), late[0].series.len()), (1, 3, 3));
    assert!(late[0].series.iter().any(|series| series.labels == *rest), "{late:?}");
    assert!(aggregator.is_empty());
}

#[test]
fn times_of_events_take_a_part_of_the_windows_budget_and_no_stack_its_place() {
    let (bytes, main) = (64 << 10, frame("main"));
    let kept = |are_kept: bool| {
        let mut aggregator = Aggregator::new(None).with_stack_bytes(bytes);
        let (labels, stack) = (labels("1"), stack(vec![main.clone()], false));
        for at in 0..10_000 {
            aggregator.set_time(are_kept.then_some(at));
            aggregator.add(&labels, 1, stack.clone(), 10);
        }
        let taken = aggregator.stack_bytes();
        let batch = aggregator.flush(window(0), |_, _| {}, |_, _| LabelDecision::Awaited);
        assert_eq!((batch.samples(), aggregator.over_capacity(), aggregator.stack_bytes()), (10_000, 0, 0));
        (batch.series[0].samples[0].times.clone(), taken)
    };
    let (none, without) = kept(false);
    assert_eq!(none, [0; 0]);
    let (times, with) = kept(true);
    let room = bytes / 4 / size_of::<i32>();
    assert!(times.len() > room / 2 && times.len() <= room, "{} of {room}", times.len());
    assert!(times.iter().copied().eq(0..i32::try_from(times.len()).expect("few")), "the first ones");
    assert!((times.len() * size_of::<i32>()..=bytes / 4).contains(&(with - without)), "it is counted");
}
