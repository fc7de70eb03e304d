//! The window that samples are counted in, and its place in time.
//!
//! Samples of different events or periods stand for different amounts: each event and period has
//! profiles of its own. A window's begin is computed at its end, from the clock as it is set then,
//! so that a clock that was wrong before doesn't misplace profiles.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::event_type::{EventType, SamplesByEvent};
use crate::profile::aggregate::{Aggregator, LabelDecision, SampleWeight, SeriesLimit, Window};
use crate::profile::model::{Batch, Frame};

/// The clocks agree to this; more is a step or a suspend.
const TOLERANCE: Duration = Duration::from_secs(1);

/// What the clocks show at one moment.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Time that the host ran.
    monotonic: Duration,
    /// The same with the time that it was suspended.
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

    /// Returns what happened to the clocks since they were read earlier.
    fn jump_since(&self, earlier: &Self) -> Jump {
        let (ran, passed) =
            (self.monotonic.saturating_sub(earlier.monotonic), self.boot.saturating_sub(earlier.boot));
        let expected = earlier.wall + passed;
        let off = self.wall.duration_since(expected).unwrap_or_else(|error| error.duration());
        Jump { was_set: off > TOLERANCE, was_suspended: passed.saturating_sub(ran) > TOLERANCE }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Jump {
    was_set: bool,
    was_suspended: bool,
}

/// What a window's end gives.
#[derive(Clone, Debug)]
pub struct Flushed {
    /// The window's profile of CPU time. Empty if nothing was sampled.
    pub batch: Batch,
    /// Its profiles of other events, and of samples of an earlier period. Mostly there are none.
    pub late: Vec<Batch>,
}

impl Flushed {
    pub fn into_batches(self) -> impl Iterator<Item = Batch> {
        std::iter::once(self.batch).chain(self.late)
    }
}

/// How often the clocks did something else than to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockCounts {
    pub steps: u64,
    pub suspends: u64,
}

/// What the samples of one profile have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProfileKey {
    event: EventType,
    /// See [`Batch::period`].
    period: u64,
}

/// The open window, and the samples of earlier ones that still have no labels. `K` identifies the
/// owner of a sample.
#[derive(Debug)]
pub(super) struct Windows<K> {
    aggregators: BTreeMap<ProfileKey, Aggregator<K>>,
    /// That of samples of CPU time.
    cpu: ProfileKey,
    limit: Option<SeriesLimit>,
    /// For the stacks of each.
    stack_bytes: usize,
    /// Samples over the limit of series, in aggregators that are gone.
    over_limit: u64,
    /// Samples there whose stacks exceeded the budget.
    over_capacity: u64,
    began: Clocks,
    /// The clocks when they were read last.
    last_read: Clocks,
    /// The one before, of another period, until its last profile has been taken, and when it ended.
    ending: Option<(ProfileKey, Clocks)>,
    counts: ClockCounts,
}

impl<K: Copy + Eq + Hash> Windows<K> {
    /// `limit`: of series in each profile. `stack_bytes`: memory for the stacks of each.
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
            last_read: now,
            ending: None,
            counts: ClockCounts::default(),
        }
    }

    /// Samples count from now on.
    pub(super) fn begin(&mut self) {
        self.began = Clocks::now();
        self.last_read = self.began;
    }

    /// Returns the aggregator of an event's samples with this period.
    pub(super) fn aggregator(&mut self, event: EventType, period: u64) -> &mut Aggregator<K> {
        let (limit, bytes) = (&self.limit, self.stack_bytes);
        let new = || Aggregator::new(limit.clone()).with_stack_bytes(bytes);
        self.aggregators.entry(ProfileKey { event, period }).or_insert_with(new)
    }

    /// Another limit of series from now on.
    pub(super) fn set_limit(&mut self, limit: Option<SeriesLimit>) {
        for aggregator in self.aggregators.values_mut() {
            aggregator.set_limit(limit.clone());
        }
        self.limit = limit;
    }

    /// Samples that went into the series of the rest, since the start.
    pub(super) fn over_limit(&self) -> u64 {
        self.over_limit + self.aggregators.values().map(Aggregator::over_limit).sum::<u64>()
    }

    /// Returns the number of samples since the start whose stacks exceeded their window's budget.
    pub(super) fn over_capacity(&self) -> u64 {
        self.over_capacity + self.aggregators.values().map(Aggregator::over_capacity).sum::<u64>()
    }

    /// Bytes that stacks of open windows take.
    pub(super) fn stack_bytes(&self) -> usize {
        self.aggregators.values().map(Aggregator::stack_bytes).sum()
    }

    /// See [`Aggregator::unlabelled_owners`].
    pub(super) fn unlabelled_owners(&self) -> impl Iterator<Item = K> + '_ {
        self.aggregators.values().flat_map(Aggregator::unlabelled_owners)
    }

    /// See [`Aggregator::unlabelled_stacks`].
    pub(super) fn unlabelled_stacks(&self) -> usize {
        self.aggregators.values().map(Aggregator::unlabelled_stacks).sum()
    }

    /// Samples of CPU time have another period from now on. The next flush ends the window of the
    /// old one, as of now; what has the new period already stays for the flush after that.
    pub(super) fn change_period(&mut self, period_ns: u64) {
        if period_ns != self.cpu.period && self.ending.is_none() {
            self.ending = Some((self.cpu, Clocks::now()));
        }
        self.cpu.period = period_ns;
    }

    /// Reads the clocks. Returns true if the host was suspended: the window should end then.
    pub(super) fn check_clocks(&mut self) -> bool {
        self.check_clocks_at(Clocks::now())
    }

    fn check_clocks_at(&mut self, now: Clocks) -> bool {
        let jump = now.jump_since(&self.last_read);
        self.last_read = now;
        self.counts.steps += u64::from(jump.was_set);
        self.counts.suspends += u64::from(jump.was_suspended);
        if jump.was_set {
            tracing::warn!("the host's clock was set: the open window is stamped by the new time");
        }
        if jump.was_suspended {
            tracing::info!("the host was suspended");
        }
        jump.was_suspended
    }

    /// Whether nothing was counted since the window began.
    pub(super) fn is_empty(&self) -> bool {
        self.aggregators.values().all(Aggregator::window_is_empty)
    }

    pub(super) fn counts(&self) -> ClockCounts {
        self.counts
    }

    /// Ends the window and begins the next one. For `finish`, `labels` and `estimate` see
    /// [`Aggregator::flush`]; the last is for events that don't stand for themselves.
    pub(super) fn flush(
        &mut self,
        finish: impl FnMut(K, &mut [Arc<Frame>]),
        labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
        estimate: impl FnMut(K, SampleWeight) -> (u64, u64),
    ) -> Flushed {
        self.flush_at(Clocks::now(), finish, labels, estimate)
    }

    fn flush_at(
        &mut self,
        now: Clocks,
        mut finish: impl FnMut(K, &mut [Arc<Frame>]),
        mut labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
        mut estimate: impl FnMut(K, SampleWeight) -> (u64, u64),
    ) -> Flushed {
        let (cpu, end) = self.ending.take().unwrap_or((self.cpu, now));
        let stays = |key| key == self.cpu && key != cpu;
        // Computed back from the clock as it is set now.
        let start =
            now.wall.checked_sub(now.boot.saturating_sub(self.began.boot)).unwrap_or(SystemTime::UNIX_EPOCH);
        let duration = end.monotonic.saturating_sub(self.began.monotonic);
        self.began = end;
        let window = |ProfileKey { event, period }| Window { event, start, duration, period };
        let (mut batch, mut late) = (window(cpu).batch(Vec::new()), Vec::new());
        for (&key, aggregator) in self.aggregators.iter_mut().filter(|(key, _)| !stays(**key)) {
            let labels = of_event(key.event, &mut labels);
            let flushed = if key.event.is_estimated() {
                aggregator.flush_estimated(window(key), &mut finish, labels, &mut estimate)
            } else {
                aggregator.flush(window(key), &mut finish, labels)
            };
            if key == cpu {
                batch = flushed;
            } else if !flushed.series.is_empty() {
                late.push(flushed);
            }
        }
        self.remove_empty();
        Flushed { batch, late }
    }

    /// See [`Aggregator::take_labelled`].
    pub(super) fn take_labelled(
        &mut self,
        mut labels: impl FnMut(K, SamplesByEvent) -> LabelDecision,
    ) -> Vec<Batch> {
        let take =
            |(key, it): (&ProfileKey, &mut Aggregator<K>)| it.take_labelled(of_event(key.event, &mut labels));
        let late = self.aggregators.iter_mut().flat_map(take).collect();
        self.remove_empty();
        late
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

/// What decides on samples of any event, for those of one.
fn of_event<K>(
    event: EventType,
    labels: &mut impl FnMut(K, SamplesByEvent) -> LabelDecision,
) -> impl FnMut(K, u64) -> LabelDecision {
    move |owner, samples| labels(owner, SamplesByEvent::of(event, samples))
}

#[cfg(test)]
mod tests;
