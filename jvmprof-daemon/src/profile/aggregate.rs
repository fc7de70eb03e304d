//! Counting equal stacks of equal label sets.

mod event_times;
mod stack_key;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::model::{Batch, Frame, LabelSet, Sample, SampleLabels, Series};
use super::stack_budget::{MAX_STACK_BYTES, StackBudget};
use crate::event_type::EventType;
use crate::types::FastHasher;
use event_times::EventTimes;
use stack_key::StackKey;

/// The samples of one window.
///
/// `K` is the label key of a stack, whose frames and labels may be completed before the window's
/// profile is made. Stacks whose labels aren't known yet are kept by label key, beyond the window's
/// end if need be: then they go into a batch of their own, with their own window's time. Memory is
/// bounded: when a window has too many different stacks, further ones are counted as one stack,
/// whose only frame says so.
#[derive(Debug)]
pub struct Aggregator<K> {
    series: Vec<(Arc<LabelSet>, Stacks<K>)>,
    /// Index of the series that has these labels.
    by_labels: HashMap<Arc<LabelSet>, usize, FastHasher>,
    /// Index of the series by the address of a label set: few sets come again and again, and
    /// hashing the text of one takes longer than all else.
    series_of: HashMap<usize, SeriesOfLabels, FastHasher>,
    unlabelled: HashMap<K, Stacks<K>>,
    ended_windows: Vec<EndedWindow<K>>,
    limit: Option<SeriesLimit>,
    over_limit: u64,
    budget: StackBudget,
    /// True if an event's numbers are estimated from what is known of its process: then the stack
    /// that stands for those beyond the budget is one of each process.
    is_estimated: bool,
    times: EventTimes,
}

/// The label key of a stack: all stacks with one key have the same labels.
pub trait LabelKeyOfProcess: Copy + Eq + Hash {
    /// Returns a number that no other process has.
    fn process_number(self) -> u64;
}

/// The event, time and period of a window's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub event: EventType,
    pub start: SystemTime,
    pub duration: Duration,
    /// See [`Batch::period`].
    pub period: u64,
}

impl Window {
    /// Returns a batch of this window's samples.
    pub fn batch(self, series: Vec<Series>) -> Batch {
        let Self { event, start, duration, period } = self;
        Batch { event, start, duration, period, series }
    }
}

/// A stack with the names that are known by now.
#[derive(Clone, Debug)]
pub struct NamedStack {
    /// Leaf first; ends in a marker if the stack isn't whole.
    pub frames: Arc<[Arc<Frame>]>,
    /// Labels of the sample itself. Those of equal samples should be clones of the same value:
    /// others are counted apart.
    pub labels: SampleLabels,
    /// Some of its frames may still get names, before its window's profile is made.
    pub pending: bool,
}

/// The weight of an event, or of several, in their stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleWeight {
    /// Events of different strata are counted apart; the estimate at the window's end makes numbers
    /// of what is counted. 0 where each event stands for itself.
    pub stratum: u32,
    pub events: u64,
    pub count: u64,
    pub value: u64,
}

/// The weight of an event of this value that stands for itself.
impl From<u64> for SampleWeight {
    fn from(value: u64) -> Self {
        Self { stratum: 0, events: 1, count: 1, value }
    }
}

/// The limit of series in a batch.
#[derive(Clone, Debug)]
pub struct SeriesLimit {
    /// The number of series, beside `rest`.
    pub max: usize,
    /// The labels of the series that takes the samples of all others.
    pub rest: Arc<LabelSet>,
}

/// Label sets of one window that are found by their addresses, at most.
const MAX_LABEL_SETS: usize = 4096;

/// The labels of a label key, as far as they are known.
#[derive(Clone, Debug)]
pub enum LabelDecision {
    Labels(Arc<LabelSet>),
    /// Its samples are dropped by a relabelling rule.
    Dropped,
    /// They aren't known yet: its samples stay with the aggregator.
    Awaited,
}

type Stacks<K> = HashMap<StackKey, StackCount<K>, FastHasher>;

/// The series of a label set that was used in this window.
#[derive(Debug)]
struct SeriesOfLabels {
    /// Kept, so that no other set gets its address.
    _labels: Arc<LabelSet>,
    /// Index of the series that its samples go to.
    series: usize,
    /// True if that is the series of the rest.
    is_over_limit: bool,
}

/// The samples of a window that has ended whose labels aren't known yet.
#[derive(Debug)]
struct EndedWindow<K> {
    window: Window,
    unlabelled: HashMap<K, Vec<Sample>>,
    /// The limit that applied to it.
    limit: Option<SeriesLimit>,
}

#[derive(Debug)]
struct StackCount<K> {
    weight: SampleWeight,
    label_key: K,
    pending: bool,
    /// See [`Sample::times`].
    times: Vec<i32>,
}

impl<K> StackCount<K> {
    fn add(&mut self, weight: SampleWeight) {
        self.weight.events += weight.events;
        self.weight.count = self.weight.count.saturating_add(weight.count);
        self.weight.value = self.weight.value.saturating_add(weight.value);
    }
}

impl<K: LabelKeyOfProcess> Aggregator<K> {
    /// Returns an empty window. `limit`: of series in each batch.
    pub fn new(limit: Option<SeriesLimit>) -> Self {
        Self {
            series: Vec::new(),
            by_labels: HashMap::default(),
            series_of: HashMap::default(),
            unlabelled: HashMap::new(),
            ended_windows: Vec::new(),
            limit,
            over_limit: 0,
            budget: StackBudget::new(MAX_STACK_BYTES),
            is_estimated: false,
            times: EventTimes::default(),
        }
    }

    /// Limits the stacks of a window to `bytes` instead of [`MAX_STACK_BYTES`].
    #[must_use]
    pub fn with_stack_bytes(mut self, bytes: usize) -> Self {
        self.budget = StackBudget::new(bytes);
        self
    }

    /// Says which event the samples are of.
    #[must_use]
    pub fn of_event(self, event: EventType) -> Self {
        Self { is_estimated: event.is_estimated(), ..self }
    }

    /// Returns the bytes that the window's stacks take.
    pub fn stack_bytes(&self) -> usize {
        self.budget.bytes()
    }

    /// Sets the limit of series, for those that are still to come.
    pub fn set_limit(&mut self, limit: Option<SeriesLimit>) {
        self.limit = limit;
        self.series_of.clear();
    }

    /// Returns the window's stacks with the samples that each counts for, as they are now.
    pub fn stacks(&self) -> impl Iterator<Item = (&[Arc<Frame>], u64)> {
        let all = self.series.iter().map(|(_, stacks)| stacks).chain(self.unlabelled.values());
        all.flatten().map(|(key, stack)| (&*key.frames, stack.weight.count))
    }

    /// Returns the number of samples that went into the series of the rest, since the start.
    pub fn over_limit(&self) -> u64 {
        self.over_limit
    }

    /// Sets the time of the events that are counted from now on, in milliseconds since the window's
    /// start: it is kept with their stack.
    pub fn set_time(&mut self, now_ms: Option<i32>) {
        self.times.now_ms = now_ms;
    }

    /// Says that the window has begun so much later than the kept times are counted from.
    pub fn move_times(&mut self, later_ms: i32) {
        let all = self.series.iter_mut().map(|(_, stacks)| stacks).chain(self.unlabelled.values_mut());
        for stack in all.flat_map(HashMap::values_mut) {
            stack.times.iter_mut().for_each(|time| *time = time.saturating_sub(later_ms));
        }
    }

    /// Counts an event with its stack.
    pub fn add(
        &mut self,
        labels: &Arc<LabelSet>,
        label_key: K,
        stack: NamedStack,
        weight: impl Into<SampleWeight>,
    ) {
        let address = Arc::as_ptr(labels).addr();
        let (series, is_over_limit) = match self.series_of.get(&address) {
            Some(found) => (found.series, found.is_over_limit),
            None => self.insert_series(labels),
        };
        let weight = weight.into();
        self.over_limit += if is_over_limit { weight.events } else { 0 };
        let process = self.is_estimated.then(|| label_key.process_number());
        let (stacks, times) = (&mut self.series[series].1, &mut self.times);
        count(stacks, &mut self.budget, times, (label_key, process), stack, weight);
    }

    /// Returns the index of the series that these labels' samples go to, and true if that is the
    /// series of the rest.
    fn insert_series(&mut self, labels: &Arc<LabelSet>) -> (usize, bool) {
        let (own, is_over_limit) = labels_within_limit(&self.by_labels, self.limit.as_ref(), labels);
        let series = match self.by_labels.get(own) {
            Some(series) => *series,
            None => {
                self.series.push((Arc::clone(own), Stacks::default()));
                self.by_labels.insert(Arc::clone(own), self.series.len() - 1);
                self.series.len() - 1
            }
        };
        if self.series_of.len() < MAX_LABEL_SETS {
            let found = SeriesOfLabels { _labels: Arc::clone(labels), series, is_over_limit };
            self.series_of.insert(Arc::as_ptr(labels).addr(), found);
        }
        (series, is_over_limit)
    }

    /// Counts an event with its stack, whose labels aren't known yet.
    pub fn add_unlabelled(&mut self, label_key: K, stack: NamedStack, weight: impl Into<SampleWeight>) {
        // The stacks of a label key are of one process.
        let (stacks, times) = (self.unlabelled.entry(label_key).or_default(), &mut self.times);
        count(stacks, &mut self.budget, times, (label_key, None), stack, weight.into());
    }

    /// Returns the number of samples since the start whose stacks exceeded the budget.
    pub fn over_capacity(&self) -> u64 {
        self.budget.refused
    }

    /// Returns the label keys of samples without labels, some of them several times.
    pub fn unlabelled_keys(&self) -> impl Iterator<Item = K> + '_ {
        self.unlabelled
            .keys()
            .chain(self.ended_windows.iter().flat_map(|window| window.unlabelled.keys()))
            .copied()
    }

    /// Returns the number of different stacks without labels.
    pub fn unlabelled_stacks(&self) -> usize {
        let late = self
            .ended_windows
            .iter()
            .flat_map(|window| window.unlabelled.values())
            .map(Vec::len)
            .sum::<usize>();
        late + self.unlabelled.values().map(HashMap::len).sum::<usize>()
    }

    /// Returns true if there are no samples, of this window or of earlier ones.
    pub fn is_empty(&self) -> bool {
        self.window_is_empty() && self.ended_windows.is_empty()
    }

    /// Returns true if nothing was counted since the window began.
    pub fn window_is_empty(&self) -> bool {
        self.series.is_empty() && self.unlabelled.is_empty()
    }

    /// Ends the window, which was `window`, and begins the next one. `finish` may name the frames
    /// of each pending stack a last time. `labels` is called with each label key whose stacks have
    /// no labels yet, and the number of their samples; while it answers
    /// [`LabelDecision::Awaited`], they stay.
    pub fn flush(
        &mut self,
        window: Window,
        finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, u64) -> LabelDecision,
    ) -> Batch {
        self.flush_estimated(window, finish, labels, |_, weight| (weight.count, weight.value))
    }

    /// Ends the window as [`Self::flush`] does. `estimate` returns the count and value that what
    /// was counted stands for.
    pub fn flush_estimated(
        &mut self,
        window: Window,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, u64) -> LabelDecision,
        mut estimate: impl FnMut(K, SampleWeight) -> (u64, u64),
    ) -> Batch {
        self.by_labels.clear();
        self.series_of.clear();
        let mut by_labels: HashMap<Arc<LabelSet>, Vec<Sample>> = std::mem::take(&mut self.series)
            .into_iter()
            .map(|(labels, stacks)| (labels, into_samples(stacks, &mut finish, &mut estimate)))
            .collect();
        let mut unlabelled = std::mem::take(&mut self.unlabelled)
            .into_iter()
            .map(|(label_key, stacks)| (label_key, into_samples(stacks, &mut finish, &mut estimate)))
            .collect();
        for (labels, samples) in take_labelled_keys(&mut unlabelled, labels) {
            self.over_limit += extend_series(&mut by_labels, self.limit.as_ref(), &labels, samples);
        }
        self.budget.clear();
        self.times.clear();
        if !unlabelled.is_empty() {
            self.ended_windows.push(EndedWindow { window, unlabelled, limit: self.limit.clone() });
        }
        window.batch(series(by_labels))
    }

    /// Returns the samples of ended windows whose labels are known by now: a batch for each window.
    pub fn take_labelled(&mut self, mut labels: impl FnMut(K, u64) -> LabelDecision) -> Vec<Batch> {
        let mut batches = Vec::new();
        for window in &mut self.ended_windows {
            let mut by_labels: HashMap<Arc<LabelSet>, Vec<Sample>> = HashMap::new();
            for (labels, samples) in take_labelled_keys(&mut window.unlabelled, &mut labels) {
                self.over_limit += extend_series(&mut by_labels, window.limit.as_ref(), &labels, samples);
            }
            if !by_labels.is_empty() {
                batches.push(window.window.batch(series(by_labels)));
            }
        }
        self.ended_windows.retain(|window| !window.unlabelled.is_empty());
        batches
    }
}

/// Returns the labels under which a sample is counted, and true if they are those of the rest,
/// because the limit of series is reached.
fn labels_within_limit<'a, T, S: BuildHasher>(
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

/// Adds samples, and returns the number of those that went to the rest.
fn extend_series(
    series: &mut HashMap<Arc<LabelSet>, Vec<Sample>>,
    limit: Option<&SeriesLimit>,
    labels: &Arc<LabelSet>,
    samples: Vec<Sample>,
) -> u64 {
    let (labels, over) = labels_within_limit(series, limit, labels);
    let count = if over { samples.iter().map(|sample| sample.events).sum() } else { 0 };
    series.entry(Arc::clone(labels)).or_default().extend(samples);
    count
}

/// Counts an event with its stack. With a process, a stack beyond the budget is counted as one of
/// that process.
fn count<K>(
    stacks: &mut Stacks<K>,
    budget: &mut StackBudget,
    times: &mut EventTimes,
    (label_key, process): (K, Option<u64>),
    stack: NamedStack,
    weight: SampleWeight,
) {
    let NamedStack { frames, labels, pending } = stack;
    let key = StackKey::new(frames, labels, weight.stratum);
    if let Some(counted) = stacks.get_mut(&key) {
        counted.add(weight);
        times.push(&mut counted.times, budget);
        return;
    }
    let fits = budget.allocate(key.frames.len(), size_of::<(StackKey, StackCount<K>)>());
    budget.refused += if fits { 0 } else { weight.events };
    let (key, pending) = if fits {
        (key, pending)
    } else {
        let marker = StackKey::new([budget.marker()].into(), SampleLabels::default(), weight.stratum);
        (marker.of_process(process), false)
    };
    let none = SampleWeight { stratum: weight.stratum, events: 0, count: 0, value: 0 };
    let counted =
        stacks.entry(key).or_insert(StackCount { weight: none, label_key, pending, times: Vec::new() });
    counted.add(weight);
    times.push(&mut counted.times, budget);
}

fn into_samples<K: Copy>(
    stacks: Stacks<K>,
    finish: &mut impl FnMut(K, &mut [Arc<Frame>]),
    estimate: &mut impl FnMut(K, SampleWeight) -> (u64, u64),
) -> Vec<Sample> {
    let mut finish = |(StackKey { mut frames, labels, .. }, counted): (StackKey, StackCount<K>)| {
        if counted.pending {
            finish(counted.label_key, Arc::make_mut(&mut frames));
        }
        let (count, value) = estimate(counted.label_key, counted.weight);
        Sample { frames, labels, events: counted.weight.events, count, value, times: counted.times }
    };
    // The part of an event that comes to nothing is left out.
    let is_something = |sample: &Sample| sample.events > 0 || sample.count > 0 || sample.value > 0;
    stacks.into_iter().map(&mut finish).filter(is_something).collect()
}

/// Removes the samples of label keys whose labels are known by now, and returns those to be kept.
fn take_labelled_keys<K: Copy + Eq + Hash>(
    unlabelled: &mut HashMap<K, Vec<Sample>>,
    mut labels: impl FnMut(K, u64) -> LabelDecision,
) -> Vec<(Arc<LabelSet>, Vec<Sample>)> {
    let mut labelled = Vec::new();
    unlabelled.retain(|label_key, samples| {
        match labels(*label_key, samples.iter().map(|sample| sample.events).sum()) {
            LabelDecision::Awaited => return true,
            LabelDecision::Dropped => {}
            LabelDecision::Labels(labels) => labelled.push((labels, std::mem::take(samples))),
        }
        false
    });
    labelled
}

fn series(by_labels: HashMap<Arc<LabelSet>, Vec<Sample>>) -> Vec<Series> {
    let series = |(labels, samples)| Series { labels: Arc::unwrap_or_clone(labels), samples };
    by_labels.into_iter().map(series).collect()
}

#[cfg(test)]
mod tests;
