//! The window that samples are counted in, and its start and duration.
//!
//! Samples of different events or periods have different weights: each event and period has
//! profiles of its own. A window's start is computed at its end, from the clock as it is set then,
//! so that a clock that was wrong before doesn't misplace profiles.

mod flush;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::event_type::{EventType, SamplesByEvent};
use crate::profile::aggregate::{
    Aggregator, LabelDecision, LabelKeyOfProcess, SampleWeight, SeriesLimit, Window,
};
use crate::profile::model::{Batch, Frame};

/// Distance of the times of profiles that are of one window and differ in their period alone.
const APART: Duration = Duration::from_millis(1);
/// Difference between the clocks that is tolerated; more is a step or a suspend.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Readings of the clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Time that the host ran (`CLOCK_MONOTONIC`).
    monotonic: Duration,
    /// Time that the host ran or was suspended (`CLOCK_BOOTTIME`).
    boot: Duration,
    wall: SystemTime,
}

impl Clocks {
    fn now() -> Self {
        let read = |clock| clock_gettime(clock).unwrap_or(TimeSpec::new(0, 0)).into();
        Self {
            monotonic: read(ClockId::CLOCK_MONOTONIC),
            boot: read(ClockId::CLOCK_BOOTTIME),
            wall: SystemTime::now(),
        }
    }

    /// Returns the clocks' deviation from each other since an earlier reading.
    fn deviation_since(&self, earlier: &Self) -> ClockDeviation {
        let (ran, passed) =
            (self.monotonic.saturating_sub(earlier.monotonic), self.boot.saturating_sub(earlier.boot));
        let expected = earlier.wall + passed;
        let off = self.wall.duration_since(expected).unwrap_or_else(|error| error.duration());
        ClockDeviation { was_set: off > TOLERANCE, was_suspended: passed.saturating_sub(ran) > TOLERANCE }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockDeviation {
    was_set: bool,
    was_suspended: bool,
}

/// The profiles of a window that has ended.
#[derive(Clone, Debug)]
pub struct WindowProfiles {
    /// The window's profile of CPU time. Empty if nothing was sampled.
    pub batch: Batch,
    /// Profiles of other events, and of samples of an earlier period; mostly empty.
    pub other_batches: Vec<Batch>,
}

impl WindowProfiles {
    pub fn into_batches(self) -> impl Iterator<Item = Batch> {
        std::iter::once(self.batch).chain(self.other_batches)
    }
}

/// Counters of the clocks' jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockCounts {
    pub steps: u64,
    pub suspends: u64,
}

/// Properties that the samples of one profile share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProfileKey {
    event: EventType,
    /// Value of [`Batch::period`].
    period: u64,
}

/// The open window, and the samples of earlier ones that still have no labels. `K` identifies the
/// label key of a sample.
#[derive(Debug)]
pub(super) struct Windows<K> {
    aggregators: BTreeMap<ProfileKey, Aggregator<K>>,
    /// Key of samples of CPU time.
    cpu: ProfileKey,
    limit: Option<SeriesLimit>,
    /// Memory limit of the stacks of each aggregator.
    stack_bytes: usize,
    /// Samples over the limit of series, in dropped aggregators.
    over_limit: u64,
    /// Samples whose stacks exceeded the budget, in dropped aggregators.
    over_capacity: u64,
    /// When the window of CPU time began, and that of all other events: later, if the frequency was
    /// changed before.
    began: Clocks,
    others_began: Clocks,
    /// The clocks when they were read last.
    last_read: Clocks,
    /// Key of the window with the previous period, until its last profile has been taken, and the
    /// clocks at its end.
    previous_period: Option<(ProfileKey, Clocks)>,
    /// When no more samples were taken, if that was before the last profile.
    sampling_ended: Option<Clocks>,
    counts: ClockCounts,
    /// True if events of CPU time keep their time.
    keeps_times: bool,
}

impl<K: LabelKeyOfProcess> Windows<K> {
    /// Makes empty windows. `limit` is that of series in each profile, `stack_bytes` the memory for
    /// the stacks of each.
    pub(super) fn new(period_ns: u64, limit: Option<SeriesLimit>, stack_bytes: usize) -> Self {
        let now = Clocks::now();
        Self {
            aggregators: BTreeMap::new(),
            cpu: ProfileKey { event: EventType::Cpu, period: period_ns },
            limit,
            stack_bytes,
            over_limit: 0,
            over_capacity: 0,
            began: now,
            others_began: now,
            last_read: now,
            previous_period: None,
            sampling_ended: None,
            counts: ClockCounts::default(),
            keeps_times: false,
        }
    }

    /// Begins the first window.
    pub(super) fn begin(&mut self) {
        self.began = Clocks::now();
        (self.others_began, self.last_read) = (self.began, self.began);
    }

    /// Returns the aggregator of an event's samples with this period.
    pub(super) fn aggregator(&mut self, event: EventType, period: u64) -> &mut Aggregator<K> {
        let (limit, bytes) = (&self.limit, self.stack_bytes);
        let new = || Aggregator::new(limit.clone()).with_stack_bytes(bytes).of_event(event);
        self.aggregators.entry(ProfileKey { event, period }).or_insert_with(new)
    }

    /// The same for an event at this time of `CLOCK_MONOTONIC`, which is kept if it is to be.
    pub(super) fn aggregator_at(
        &mut self,
        event: EventType,
        period: u64,
        time_ns: u64,
    ) -> &mut Aggregator<K> {
        let is_kept = self.keeps_times && event == EventType::Cpu;
        let time = is_kept.then(|| millis_between(self.began_ns(), time_ns));
        let aggregator = self.aggregator(event, period);
        aggregator.set_time(time);
        aggregator
    }

    /// Returns the stacks of CPU time that were counted since the window began.
    pub(super) fn cpu_stacks(&self) -> impl Iterator<Item = (&[Arc<Frame>], u64)> {
        self.aggregators.get(&self.cpu).into_iter().flat_map(Aggregator::stacks)
    }

    /// Says whether the time of each event of CPU time is kept from now on.
    pub(super) fn keep_times(&mut self, are_kept: bool) {
        self.keeps_times = are_kept;
    }

    /// Returns when the window of CPU time began, in ns of `CLOCK_MONOTONIC`.
    pub(super) fn began_ns(&self) -> u64 {
        u64::try_from(self.began.monotonic.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sets another limit of series.
    pub(super) fn set_limit(&mut self, limit: Option<SeriesLimit>) {
        for aggregator in self.aggregators.values_mut() {
            aggregator.set_limit(limit.clone());
        }
        self.limit = limit;
    }

    /// Returns the number of samples beyond the limit of series, since the start.
    pub(super) fn over_limit(&self) -> u64 {
        self.over_limit + self.aggregators.values().map(Aggregator::over_limit).sum::<u64>()
    }

    /// Returns the number of samples since the start whose stacks exceeded their window's budget.
    pub(super) fn over_capacity(&self) -> u64 {
        self.over_capacity + self.aggregators.values().map(Aggregator::over_capacity).sum::<u64>()
    }

    /// Returns the bytes that stacks of open windows take.
    pub(super) fn stack_bytes(&self) -> usize {
        self.aggregators.values().map(Aggregator::stack_bytes).sum()
    }

    /// Returns the label keys of unlabelled samples: see [`Aggregator::unlabelled_keys`].
    pub(super) fn unlabelled_keys(&self) -> impl Iterator<Item = K> + '_ {
        self.aggregators.values().flat_map(Aggregator::unlabelled_keys)
    }

    /// Returns the number of unlabelled stacks: see [`Aggregator::unlabelled_stacks`].
    pub(super) fn unlabelled_stacks(&self) -> usize {
        self.aggregators.values().map(Aggregator::unlabelled_stacks).sum()
    }

    /// Ends the open window as of now: what is still counted in it was sampled before.
    pub(super) fn end_sampling(&mut self) {
        self.sampling_ended.get_or_insert_with(Clocks::now);
    }

    /// Sets another period of samples of CPU time. The next flush ends the window of the old one,
    /// as of now; samples with the new period stay for the flush after that.
    pub(super) fn change_period(&mut self, period_ns: u64) {
        if period_ns != self.cpu.period && self.previous_period.is_none() {
            self.previous_period = Some((self.cpu, Clocks::now()));
        }
        self.cpu.period = period_ns;
    }

    /// Reads the clocks. Returns true if the host was suspended: the window should end then.
    pub(super) fn check_clocks(&mut self) -> bool {
        self.check_clocks_at(Clocks::now())
    }

    fn check_clocks_at(&mut self, now: Clocks) -> bool {
        let deviation = now.deviation_since(&self.last_read);
        self.last_read = now;
        self.counts.steps += u64::from(deviation.was_set);
        self.counts.suspends += u64::from(deviation.was_suspended);
        if deviation.was_set {
            tracing::warn!("the host's clock was set: the open window is stamped by the new time");
        }
        if deviation.was_suspended {
            tracing::info!("the host was suspended");
        }
        deviation.was_suspended
    }

    /// Returns whether nothing was counted since the window began.
    pub(super) fn is_empty(&self) -> bool {
        self.aggregators.values().all(Aggregator::window_is_empty)
    }

    pub(super) fn clock_counts(&self) -> ClockCounts {
        self.counts
    }

    /// Ends the window and begins the next one. For `finish`, `labels` and `estimate` see
    /// [`Aggregator::flush`]; the last is for events with estimated weights.
    pub(super) fn flush(
        &mut self,
        finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
        estimate: impl FnMut(EventType, K, SampleWeight) -> (u64, u64),
    ) -> WindowProfiles {
        self.flush_at(Clocks::now(), finish, labels, estimate)
    }

    fn flush_at(
        &mut self,
        now: Clocks,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
        mut labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
        mut estimate: impl FnMut(EventType, K, SampleWeight) -> (u64, u64),
    ) -> WindowProfiles {
        let sampled_until = self.sampling_ended.unwrap_or(now);
        let (cpu, end) = self.previous_period.take().unwrap_or((self.cpu, sampled_until));
        let stays = |key| key == self.cpu && key != cpu;
        // Begins are computed back from the clock as it is set now.
        let span = |began: Clocks, end: Clocks| {
            let start = now.wall.checked_sub(now.boot.saturating_sub(began.boot));
            let duration = end.monotonic.saturating_sub(began.monotonic);
            (start.unwrap_or(SystemTime::UNIX_EPOCH), duration)
        };
        let (start, duration) = span(self.began, end);
        // Other events have no period that ends: all so far are in their profiles.
        let of_others = span(self.others_began, sampled_until);
        (self.began, self.others_began) = (end, sampled_until);
        let mut start_apart = start;
        // A backend may count profiles of one series and one time once, and the period is no label.
        let mut window = |key: ProfileKey| {
            let (start, duration) = match key.event {
                EventType::Cpu if key == cpu => (start, duration),
                EventType::Cpu => {
                    start_apart += APART;
                    (start_apart, duration)
                }
                _ => of_others,
            };
            Window { event: key.event, start, duration, period: key.period }
        };
        let (mut batch, mut other_batches) = (window(cpu).batch(Vec::new()), Vec::new());
        for (&key, aggregator) in self.aggregators.iter_mut().filter(|(key, _)| !stays(**key)) {
            let labels = of_event(key.event, &mut labels);
            let flushed = if key.event.is_estimated() {
                let estimate = |label_key, weight| estimate(key.event, label_key, weight);
                aggregator.flush_estimated(window(key), &mut finish, labels, estimate)
            } else {
                aggregator.flush(window(key), &mut finish, labels)
            };
            if key == cpu {
                batch = flushed;
            } else if !flushed.series.is_empty() {
                other_batches.push(flushed);
            }
        }
        if self.keeps_times {
            // They were counted from the begin of the window that has ended.
            let later_ms = i32::try_from(duration.as_millis()).unwrap_or(i32::MAX);
            let staying = self.aggregators.iter_mut().filter(|(key, _)| stays(**key));
            staying.for_each(|(_, aggregator)| aggregator.move_times(later_ms));
        }
        self.remove_empty();
        WindowProfiles { batch, other_batches }
    }

    /// Returns batches of samples whose labels are there: see [`Aggregator::take_labelled`].
    pub(super) fn take_labelled(
        &mut self,
        mut labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
    ) -> Vec<Batch> {
        let take =
            |(key, it): (&ProfileKey, &mut Aggregator<K>)| it.take_labelled(of_event(key.event, &mut labels));
        let labelled = self.aggregators.iter_mut().flat_map(take).collect();
        self.remove_empty();
        labelled
    }

    fn remove_empty(&mut self) {
        let (over_limit, over_capacity) = (&mut self.over_limit, &mut self.over_capacity);
        self.aggregators.retain(|_, aggregator| {
            if aggregator.is_empty() {
                *over_limit += aggregator.over_limit();
                *over_capacity += aggregator.over_capacity();
            }
            !aggregator.is_empty()
        });
    }
}

/// Returns the milliseconds from one time to another, below zero if that was before.
fn millis_between(from_ns: u64, to_ns: u64) -> i32 {
    let millis = (i128::from(to_ns) - i128::from(from_ns)).div_euclid(1_000_000);
    i32::try_from(millis).unwrap_or(if millis < 0 { i32::MIN } else { i32::MAX })
}

/// Returns a function that decides on samples of one event by one that does of any.
fn of_event<K>(
    event: EventType,
    labels: &mut impl FnMut(K, SamplesByEvent) -> LabelDecision,
) -> impl FnMut(K, u64) -> LabelDecision {
    move |label_key, samples| labels(label_key, SamplesByEvent::of(event, samples))
}

#[cfg(test)]
mod tests;
