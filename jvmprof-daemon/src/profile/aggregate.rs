//! Counting equal stacks of equal label sets.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::model::{Batch, Frame, LabelSet, Sample, Series};
use super::room::{MAX_STACK_BYTES, Room};
use crate::types::FastHasher;

/// The samples of one window.
///
/// `K` tells whose stack it is, for those that look at it again before it goes out. Stacks whose labels aren't known yet are
/// held by owner, beyond the window's end if need be: then they go out in a batch of their own, with their own window's time.
/// Memory is bounded: when a window has too many different stacks, further ones are counted as one that says so.
#[derive(Debug)]
pub struct Aggregator<K> {
    series: HashMap<Arc<LabelSet>, Stacks<K>, FastHasher>,
    held: HashMap<K, Stacks<K>>,
    late: Vec<Late<K>>,
    limit: Option<SeriesLimit>,
    over_limit: u64,
    room: Room,
}

/// When samples were taken, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: SystemTime,
    pub duration: Duration,
    /// Between two samples of a CPU, ns.
    pub period_ns: u64,
}

impl Window {
    /// A batch of samples that were taken then.
    pub fn batch(self, series: Vec<Series>) -> Batch {
        let Self { start, duration, period_ns } = self;
        Batch { start, duration, period_ns, series }
    }
}

/// How many series a batch may have.
#[derive(Clone, Debug)]
pub struct SeriesLimit {
    /// Beside `rest`.
    pub max: usize,
    /// The labels of the series that takes the samples of all others.
    pub rest: Arc<LabelSet>,
}

/// What an owner's labels turn out to be.
#[derive(Clone, Debug)]
pub enum Verdict {
    Labels(Arc<LabelSet>),
    /// Nobody wants its samples.
    Dropped,
    /// Not yet known: its samples are held on.
    Awaited,
}

type Stacks<K> = HashMap<StackKey, Counted<K>, FastHasher>;

/// What a window that has ended still holds.
#[derive(Debug)]
struct Late<K> {
    window: Window,
    held: HashMap<K, Vec<Sample>>,
    /// That of its time.
    limit: Option<SeriesLimit>,
}

#[derive(Debug)]
struct Counted<K> {
    count: u64,
    owner: K,
    pending: bool,
}

/// A stack, equal to another if it is made of the very same frames.
#[derive(Debug)]
struct StackKey(Arc<[Arc<Frame>]>);

impl PartialEq for StackKey {
    fn eq(&self, other: &Self) -> bool {
        let are_equal =
            || self.0.len() == other.0.len() && self.0.iter().zip(&*other.0).all(|(a, b)| Arc::ptr_eq(a, b));
        Arc::ptr_eq(&self.0, &other.0) || are_equal()
    }
}

impl Eq for StackKey {}

impl Hash for StackKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for frame in &*self.0 {
            state.write_usize(Arc::as_ptr(frame).addr());
        }
    }
}

impl<K: Copy + Eq + Hash> Aggregator<K> {
    /// An empty window. `limit`: of series for each batch.
    pub fn new(limit: Option<SeriesLimit>) -> Self {
        Self {
            series: HashMap::default(),
            held: HashMap::new(),
            late: Vec::new(),
            limit,
            over_limit: 0,
            room: Room::new(MAX_STACK_BYTES),
        }
    }

    /// With so many bytes for the stacks of a window instead of [`MAX_STACK_BYTES`].
    #[must_use]
    pub fn with_stack_bytes(mut self, bytes: usize) -> Self {
        self.room = Room::new(bytes);
        self
    }

    /// Bytes that the window's stacks take.
    pub fn stack_bytes(&self) -> usize {
        self.room.bytes()
    }

    /// Another limit, for the series that are still to come.
    pub fn set_limit(&mut self, limit: Option<SeriesLimit>) {
        self.limit = limit;
    }

    /// Samples that went into the series of the rest, since the start.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// Counts a stack (leaf first). `pending`: some of its frames may still get names.
    pub fn add(
        &mut self,
        labels: &Arc<LabelSet>,
        owner: K,
        frames: impl Into<Arc<[Arc<Frame>]>>,
        pending: bool,
    ) {
        let (labels, over) = room(&self.series, self.limit.as_ref(), labels);
        self.over_limit += u64::from(over);
        let stacks = match self.series.get_mut(labels) {
            Some(stacks) => stacks,
            None => self.series.entry(Arc::clone(labels)).or_default(),
        };
        count(stacks, &mut self.room, owner, frames.into(), pending);
    }

    /// Counts a stack whose labels the owner will be asked for.
    pub fn hold(&mut self, owner: K, frames: impl Into<Arc<[Arc<Frame>]>>, pending: bool) {
        count(self.held.entry(owner).or_default(), &mut self.room, owner, frames.into(), pending);
    }

    /// Samples since the beginning whose stacks found no room.
    pub fn without_room(&self) -> u64 {
        self.room.refused
    }

    /// The owners of what waits for labels, some of them several times.
    pub fn held(&self) -> impl Iterator<Item = K> + '_ {
        self.held.keys().chain(self.late.iter().flat_map(|late| late.held.keys())).copied()
    }

    /// How many different stacks wait for labels.
    pub fn held_stacks(&self) -> usize {
        let late = self.late.iter().flat_map(|late| late.held.values()).map(Vec::len).sum::<usize>();
        late + self.held.values().map(HashMap::len).sum::<usize>()
    }

    /// Whether nothing is there, and nothing is held of earlier windows.
    pub fn is_empty(&self) -> bool {
        self.window_is_empty() && self.late.is_empty()
    }

    /// Whether nothing was counted since the window began.
    pub fn window_is_empty(&self) -> bool {
        self.series.is_empty() && self.held.is_empty()
    }

    /// Ends the window, which was `window`, and begins the next one. `finish` sees each pending stack a last time. `labels` is
    /// told an owner whose stacks were held, and how many samples they are; while it doesn't know, they are held on.
    pub fn flush(
        &mut self,
        window: Window,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, u64) -> Verdict,
    ) -> Batch {
        let mut by_labels: HashMap<Arc<LabelSet>, Vec<Sample>> = std::mem::take(&mut self.series)
            .into_iter()
            .map(|(labels, stacks)| (labels, finished(stacks, &mut finish)))
            .collect();
        let mut held = std::mem::take(&mut self.held)
            .into_iter()
            .map(|(owner, stacks)| (owner, finished(stacks, &mut finish)))
            .collect();
        for (labels, samples) in settle(&mut held, labels) {
            self.over_limit += put(&mut by_labels, self.limit.as_ref(), &labels, samples);
        }
        self.room.clear();
        if !held.is_empty() {
            self.late.push(Late { window, held, limit: self.limit.clone() });
        }
        window.batch(series(by_labels))
    }

    /// What windows that have ended held, as far as `labels` tells now: a batch for each window.
    pub fn take_late(&mut self, mut labels: impl FnMut(K, u64) -> Verdict) -> Vec<Batch> {
        let mut batches = Vec::new();
        for late in &mut self.late {
            let mut by_labels: HashMap<Arc<LabelSet>, Vec<Sample>> = HashMap::new();
            for (labels, samples) in settle(&mut late.held, &mut labels) {
                self.over_limit += put(&mut by_labels, late.limit.as_ref(), &labels, samples);
            }
            if !by_labels.is_empty() {
                batches.push(late.window.batch(series(by_labels)));
            }
        }
        self.late.retain(|late| !late.held.is_empty());
        batches
    }
}

/// The labels under which a sample is counted, and whether they aren't its own because there is no room for more.
fn room<'a, T, S: BuildHasher>(
    series: &HashMap<Arc<LabelSet>, T, S>,
    limit: Option<&'a SeriesLimit>,
    labels: &'a Arc<LabelSet>,
) -> (&'a Arc<LabelSet>, bool) {
    match limit {
        Some(SeriesLimit { max, rest }) if series.len() >= *max && !series.contains_key(labels) => {
            (rest, true)
        }
        _ => (labels, false),
    }
}

/// Adds samples and gives how many went to the rest.
fn put(
    series: &mut HashMap<Arc<LabelSet>, Vec<Sample>>,
    limit: Option<&SeriesLimit>,
    labels: &Arc<LabelSet>,
    samples: Vec<Sample>,
) -> u64 {
    let (labels, over) = room(series, limit, labels);
    let count = if over { samples.iter().map(|sample| sample.count).sum() } else { 0 };
    series.entry(Arc::clone(labels)).or_default().extend(samples);
    count
}

fn count<K>(stacks: &mut Stacks<K>, room: &mut Room, owner: K, frames: Arc<[Arc<Frame>]>, pending: bool) {
    let key = StackKey(frames);
    if let Some(counted) = stacks.get_mut(&key) {
        counted.count += 1;
        return;
    }
    let has_room = room.take(key.0.len(), size_of::<(StackKey, Counted<K>)>());
    let (key, pending) = if has_room { (key, pending) } else { (StackKey([room.marker()].into()), false) };
    stacks.entry(key).or_insert(Counted { count: 0, owner, pending }).count += 1;
}

fn finished<K>(stacks: Stacks<K>, finish: &mut impl FnMut(K, &mut [Arc<Frame>])) -> Vec<Sample> {
    let mut finish = |(StackKey(frames), counted): (StackKey, Counted<K>)| {
        let mut frames = frames.to_vec();
        if counted.pending {
            finish(counted.owner, &mut frames);
        }
        Sample { frames, count: counted.count }
    };
    stacks.into_iter().map(&mut finish).collect()
}

/// Takes out what `labels` tells the labels of.
fn settle<K: Copy + Eq + Hash>(
    held: &mut HashMap<K, Vec<Sample>>,
    mut labels: impl FnMut(K, u64) -> Verdict,
) -> Vec<(Arc<LabelSet>, Vec<Sample>)> {
    let mut settled = Vec::new();
    held.retain(|owner, samples| {
        match labels(*owner, samples.iter().map(|sample| sample.count).sum()) {
            Verdict::Awaited => return true,
            Verdict::Dropped => {}
            Verdict::Labels(labels) => settled.push((labels, std::mem::take(samples))),
        }
        false
    });
    settled
}

fn series(by_labels: HashMap<Arc<LabelSet>, Vec<Sample>>) -> Vec<Series> {
    let series = |(labels, samples)| Series { labels: Arc::unwrap_or_clone(labels), samples };
    by_labels.into_iter().map(series).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{FrameKind, Line};
    use crate::profile::room::NO_ROOM;

    fn frame(name: &str) -> Arc<Frame> {
        let line = Line { name: name.into(), system_name: name.into(), file: None, line: 0, how: None };
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
        let window =
            Window { start: SystemTime::UNIX_EPOCH, duration: Duration::from_secs(1), period_ns: 10 };
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
}
