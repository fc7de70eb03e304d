//! Counting equal stacks of equal label sets.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::model::{Batch, Frame, LabelSet, Sample, Series};
use super::stack_budget::{MAX_STACK_BYTES, StackBudget};
use crate::event_type::EventType;
use crate::types::FastHasher;

/// The samples of one window.
///
/// `K` tells whose stack it is, for those that look at it again before it goes out. Stacks whose
/// labels aren't known yet are held by owner, beyond the window's end if need be: then they go out
/// in a batch of their own, with their own window's time. Memory is bounded: when a window has too
/// many different stacks, further ones are counted as one that says so.
#[derive(Debug)]
pub struct Aggregator<K> {
    series: Vec<(Arc<LabelSet>, Stacks<K>)>,
    /// Which of them has these labels.
    by_labels: HashMap<Arc<LabelSet>, usize, FastHasher>,
    /// The same by where label sets lie: few come again and again, and a look at one's text takes
    /// longer than all else.
    met: HashMap<usize, Met, FastHasher>,
    held: HashMap<K, Stacks<K>>,
    late: Vec<Late<K>>,
    limit: Option<SeriesLimit>,
    over_limit: u64,
    room: StackBudget,
}

/// What samples are of, when they were taken, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub event: EventType,
    pub start: SystemTime,
    pub duration: Duration,
    /// Between two samples of a CPU, ns.
    pub period_ns: u64,
}

impl Window {
    /// A batch of samples that were taken then.
    pub fn batch(self, series: Vec<Series>) -> Batch {
        let Self { event, start, duration, period_ns } = self;
        Batch { event, start, duration, period_ns, series }
    }
}

/// A stack with the names that are known by now.
#[derive(Clone, Debug)]
pub struct NamedStack {
    /// Leaf first; ends in a marker if the stack isn't whole.
    pub frames: Arc<[Arc<Frame>]>,
    /// Some of its frames may still get names, before its window's profile is made.
    pub pending: bool,
}

/// How many series a batch may have.
#[derive(Clone, Debug)]
pub struct SeriesLimit {
    /// Beside `rest`.
    pub max: usize,
    /// The labels of the series that takes the samples of all others.
    pub rest: Arc<LabelSet>,
}

/// Label sets of one window that are known by their place.
const MAX_MET: usize = 4096;

/// What an owner's labels turn out to be.
#[derive(Clone, Debug)]
pub enum LabelDecision {
    Labels(Arc<LabelSet>),
    /// Nobody wants its samples.
    Dropped,
    /// Not yet known: its samples are held on.
    Awaited,
}

type Stacks<K> = HashMap<StackKey, Counted<K>, FastHasher>;

/// A label set that was met in this window.
#[derive(Debug)]
struct Met {
    /// No other set comes to lie where this one does.
    _labels: Arc<LabelSet>,
    /// The series that its samples go to, and whether that is the one of the rest.
    series: usize,
    is_over: bool,
}

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
    value: u64,
    owner: K,
    pending: bool,
}

impl<K> Counted<K> {
    fn add(&mut self, value: u64) {
        self.count += 1;
        self.value += value;
    }
}

/// A stack, equal to another if it is made of the very same frames.
#[derive(Debug)]
struct StackKey {
    frames: Arc<[Arc<Frame>]>,
    /// Of where its frames lie: a table that grows looks at none of them.
    hash: u64,
}

impl StackKey {
    fn new(frames: Arc<[Arc<Frame>]>) -> Self {
        // 2^64 by the golden ratio, made odd, spreads what is multiplied with it; nobody chooses
        // where frames lie.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let add = |hash: u64, frame: &Arc<Frame>| {
            (hash.rotate_left(5) ^ Arc::as_ptr(frame).addr() as u64).wrapping_mul(SPREAD)
        };
        let hash = frames.iter().fold(0, add);
        Self { frames, hash }
    }
}

impl PartialEq for StackKey {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.frames, &other.frames);
        let are_equal =
            || own.len() == others.len() && own.iter().zip(&**others).all(|(a, b)| Arc::ptr_eq(a, b));
        Arc::ptr_eq(own, others) || self.hash == other.hash && are_equal()
    }
}

impl Eq for StackKey {}

impl Hash for StackKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<K: Copy + Eq + Hash> Aggregator<K> {
    /// An empty window. `limit`: of series for each batch.
    pub fn new(limit: Option<SeriesLimit>) -> Self {
        Self {
            series: Vec::new(),
            by_labels: HashMap::default(),
            met: HashMap::default(),
            held: HashMap::new(),
            late: Vec::new(),
            limit,
            over_limit: 0,
            room: StackBudget::new(MAX_STACK_BYTES),
        }
    }

    /// With so many bytes for the stacks of a window instead of [`MAX_STACK_BYTES`].
    #[must_use]
    pub fn with_stack_bytes(mut self, bytes: usize) -> Self {
        self.room = StackBudget::new(bytes);
        self
    }

    /// Bytes that the window's stacks take.
    pub fn stack_bytes(&self) -> usize {
        self.room.bytes()
    }

    /// Another limit, for the series that are still to come.
    pub fn set_limit(&mut self, limit: Option<SeriesLimit>) {
        self.limit = limit;
        self.met.clear();
    }

    /// Samples that went into the series of the rest, since the start.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// Counts an event of this value with its stack.
    pub fn add(&mut self, labels: &Arc<LabelSet>, owner: K, stack: NamedStack, value: u64) {
        let place = Arc::as_ptr(labels).addr();
        let (series, is_over) = match self.met.get(&place) {
            Some(met) => (met.series, met.is_over),
            None => self.meet(labels),
        };
        self.over_limit += u64::from(is_over);
        count(&mut self.series[series].1, &mut self.room, owner, stack, value);
    }

    /// The series that these labels' samples go to, and whether that is the one of the rest.
    fn meet(&mut self, labels: &Arc<LabelSet>) -> (usize, bool) {
        let (own, is_over) = room(&self.by_labels, self.limit.as_ref(), labels);
        let series = match self.by_labels.get(own) {
            Some(series) => *series,
            None => {
                self.series.push((Arc::clone(own), Stacks::default()));
                self.by_labels.insert(Arc::clone(own), self.series.len() - 1);
                self.series.len() - 1
            }
        };
        if self.met.len() < MAX_MET {
            let met = Met { _labels: Arc::clone(labels), series, is_over };
            self.met.insert(Arc::as_ptr(labels).addr(), met);
        }
        (series, is_over)
    }

    /// The same for an event whose labels the owner will be asked for.
    pub fn hold(&mut self, owner: K, stack: NamedStack, value: u64) {
        count(self.held.entry(owner).or_default(), &mut self.room, owner, stack, value);
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

    /// Ends the window, which was `window`, and begins the next one. `finish` sees each pending
    /// stack a last time. `labels` is told an owner whose stacks were held, and how many samples
    /// they are; while it doesn't know, they are held on.
    pub fn flush(
        &mut self,
        window: Window,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, u64) -> LabelDecision,
    ) -> Batch {
        self.by_labels.clear();
        self.met.clear();
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
    pub fn take_late(&mut self, mut labels: impl FnMut(K, u64) -> LabelDecision) -> Vec<Batch> {
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

/// The labels under which a sample is counted, and whether they aren't its own because there is no
/// room for more.
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

fn count<K>(stacks: &mut Stacks<K>, room: &mut StackBudget, owner: K, stack: NamedStack, value: u64) {
    let NamedStack { frames, pending } = stack;
    let key = StackKey::new(frames);
    if let Some(counted) = stacks.get_mut(&key) {
        counted.add(value);
        return;
    }
    let has_room = room.allocate(key.frames.len(), size_of::<(StackKey, Counted<K>)>());
    let (key, pending) =
        if has_room { (key, pending) } else { (StackKey::new([room.marker()].into()), false) };
    stacks.entry(key).or_insert(Counted { count: 0, value: 0, owner, pending }).add(value);
}

fn finished<K>(stacks: Stacks<K>, finish: &mut impl FnMut(K, &mut [Arc<Frame>])) -> Vec<Sample> {
    let mut finish = |(StackKey { mut frames, .. }, counted): (StackKey, Counted<K>)| {
        if counted.pending {
            finish(counted.owner, Arc::make_mut(&mut frames));
        }
        Sample { frames, count: counted.count, value: counted.value }
    };
    stacks.into_iter().map(&mut finish).collect()
}

/// Takes out what `labels` tells the labels of.
fn settle<K: Copy + Eq + Hash>(
    held: &mut HashMap<K, Vec<Sample>>,
    mut labels: impl FnMut(K, u64) -> LabelDecision,
) -> Vec<(Arc<LabelSet>, Vec<Sample>)> {
    let mut settled = Vec::new();
    held.retain(|owner, samples| {
        match labels(*owner, samples.iter().map(|sample| sample.count).sum()) {
            LabelDecision::Awaited => return true,
            LabelDecision::Dropped => {}
            LabelDecision::Labels(labels) => settled.push((labels, std::mem::take(samples))),
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
mod tests;
