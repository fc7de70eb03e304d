//! Time off the CPU: what kept waits count for, and what their threads waited for.
//!
//! | file | what |
//! |---|---|
//! | `causes` | the cause of a wait, by the rules of `cause_rules` |
//! | `idle` | which waits are idle, by the rules of `idle_rules.toml` and of users |
//! | `pace` | how often waits are kept |
//! | `still_waiting` | waits that go on when a window ends |
//! | `wait_frames` | stacks and labels that name the cause |
//!
//! A wait's cause is named when its window ends: only then the functions of its stack have their
//! names. `docs/offcpu.md` explains why the sums are right.

mod cause;
mod cause_rules;
mod causes;
mod idle;
mod pace;
mod still_waiting;
mod wait_frames;

use std::time::Instant;

use jvmprof_common::off_cpu::{OffCpuSettings, WaitRecord, WaitTotals, is_runnable};

use crate::clock::monotonic_ns;
use crate::profile::aggregate::{NamedStack, SampleWeight};
use crate::profile::model::Batch;
use crate::sampler::{OffCpuMaps, SamplerError, StackSample};
pub use cause::Cause;
use causes::Evidence;
pub use idle::IdleRule;
use idle::IdleRules;
use pace::Pace;
use still_waiting::{Began, StillWaiting};
use wait_frames::WaitFrames;
pub use wait_frames::{is_idle, wait_of};

/// What is wanted of waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCpuOptions {
    /// Shorter waits aren't profiled, ns.
    pub least_ns: u64,
    /// The mean distance of the points in waiting time that keep a wait, ns.
    pub interval: u64,
    /// Kept waits a second: beyond, the distance grows.
    pub max_events: u32,
    /// Rules of users for idle waits.
    pub idle: Vec<IdleRule>,
}

impl Default for OffCpuOptions {
    fn default() -> Self {
        Self { least_ns: 1_000_000, interval: 10_000_000, max_events: 1000, idle: Vec::new() }
    }
}

/// What was counted of waits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCpuCounts {
    /// Waits that have ended, kept or not, and their time.
    pub waits: u64,
    pub waited_ns: u64,
    /// Those of them that were too short for a profile.
    pub short_waits: u64,
    pub short_ns: u64,
    /// Switches of threads that could not be followed, since too many are.
    pub unfollowed_switches: u64,
    /// Kept waits whose stacks could not be taken.
    pub lost_waits: u64,
    /// Parts of waits that go on, of threads that can't be inspected or are too many.
    pub unreported_parts: u64,
    /// (nanoseconds, switches) of the kernel programs, where the kernel measures them.
    pub run_time: Option<(u64, u64)>,
}

/// Profiles waits.
#[derive(Debug)]
pub(super) struct OffCpuProfiler {
    options: OffCpuOptions,
    maps: OffCpuMaps,
    pace: Pace,
    frames: WaitFrames,
    idle: IdleRules,
    still_waiting: StillWaiting,
    /// Samples that were taken of threads that waited on.
    inspected: u64,
    began: Began,
}

/// Counts are kept in parts of one, so that rounding makes no difference.
const COUNT_PARTS: f64 = 1024.0;

impl OffCpuProfiler {
    /// Begins to keep waits.
    ///
    /// # Errors
    /// The kernel refused the settings.
    pub(super) fn start(options: OffCpuOptions, maps: OffCpuMaps) -> Result<Self, SamplerError> {
        let pace = Pace::new(&options);
        let idle = IdleRules::with(&options.idle);
        let mut profiler = Self {
            options,
            maps,
            pace,
            frames: WaitFrames::default(),
            idle,
            still_waiting: StillWaiting::default(),
            inspected: 0,
            began: Began::now(),
        };
        profiler.set_interval(profiler.pace.interval())?;
        Ok(profiler)
    }

    pub(super) const fn options(&self) -> &OffCpuOptions {
        &self.options
    }

    /// Returns the mean distance of points now, ns.
    pub(super) const fn interval(&self) -> u64 {
        self.pace.interval()
    }

    fn set_interval(&mut self, interval: u64) -> Result<(), SamplerError> {
        self.maps.set(OffCpuSettings { least_ns: self.options.least_ns, interval })
    }

    /// Switches are seen from now on.
    pub(super) fn begin(&mut self) {
        self.began = Began::now();
    }

    /// Adjusts how much is kept. To be called some times a second.
    pub(super) fn maintain(&mut self) {
        if self.began.is_recent() {
            self.still_waiting.adopt(&mut self.maps, self.began);
        }
        if let Some(interval) = self.pace.adjust(Instant::now())
            && let Err(error) = self.set_interval(interval)
        {
            tracing::warn!(%error, "the distance of kept waits stays as it is");
        }
    }

    /// Returns samples of the threads that have waited for long, and wait on.
    pub(super) fn inspect_waiting(&mut self) -> Vec<StackSample> {
        let is_chosen = |part_ns: u64, interval: u64| rand::random::<f64>() < probability(part_ns, interval);
        let (interval, now) = (self.pace.interval(), monotonic_ns());
        let samples = self.still_waiting.inspect(&mut self.maps, interval, self.began, now, is_chosen);
        self.inspected += samples.len() as u64;
        samples
    }

    /// Returns how many samples [`Self::inspect_waiting`] has taken.
    pub(super) const fn inspected(&self) -> u64 {
        self.inspected
    }

    /// Returns the stacks of a wait with what they count for: one of the time in which the thread
    /// waited, and, if that was long enough, one of the time in which it could run and didn't.
    pub(super) fn weigh(
        &mut self,
        record: &WaitRecord,
        stack: NamedStack,
    ) -> ((NamedStack, SampleWeight), Option<(NamedStack, SampleWeight)>) {
        self.pace.count();
        let waited = record.waited_ns.max(1);
        let weight = 1.0 / probability(waited, record.interval);
        let value = |part: u64| (part as f64 * weight) as u64;
        let count = (weight * COUNT_PARTS) as u64;
        let queued = record.queued_ns.min(waited);
        let is_runnable = is_runnable(record.state as u32);
        let own = if is_runnable { Evidence::Runnable } else { evidence(record) };
        let is_divided = !is_runnable && queued >= self.options.least_ns && queued < waited;
        let own_part = if is_divided { waited - queued } else { waited };
        let runnable = is_divided.then(|| {
            // The wait is counted once.
            let weight = SampleWeight { stratum: 0, events: 0, count: 0, value: value(queued) };
            (self.frames.mark(Evidence::Runnable, stack.clone()), weight)
        });
        let weight = SampleWeight { stratum: 0, events: 1, count, value: value(own_part) };
        ((self.frames.mark(own, stack), weight), runnable)
    }

    /// Names the causes of a window's waits, in frames and labels.
    pub(super) fn name_causes(&mut self, batch: &mut Batch) {
        self.frames.name_causes(batch, &self.idle);
    }

    pub(super) fn counts(&self, run_time: Option<(u64, u64)>) -> OffCpuCounts {
        let WaitTotals { waits, waited_ns, short_waits, short_ns, unfollowed_switches, lost_waits } =
            self.maps.totals();
        OffCpuCounts {
            waits,
            waited_ns,
            short_waits,
            short_ns,
            unfollowed_switches,
            lost_waits,
            unreported_parts: self.still_waiting.unreported(),
            run_time,
        }
    }
}

/// Returns the probability that a point lies in a wait: that there is none is
/// exp(-waited / interval).
fn probability(waited_ns: u64, interval: u64) -> f64 {
    -f64::exp_m1(-(waited_ns as f64) / interval.max(1) as f64)
}

/// Returns the count and value that waits stand for.
pub(super) fn estimate(weight: SampleWeight) -> (u64, u64) {
    ((weight.count as f64 / COUNT_PARTS).round() as u64, weight.value)
}

fn evidence(record: &WaitRecord) -> Evidence {
    match u32::try_from(record.system_call) {
        // Numbers of other kinds of calls have a bit above these.
        Ok(number) if number < 1 << 16 => Evidence::SystemCall(number),
        _ => Evidence::NoSystemCall,
    }
}
