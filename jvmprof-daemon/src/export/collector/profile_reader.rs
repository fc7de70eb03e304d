//! Reads many stored profiles for one answer, within limits of bytes and time, and no
//! further than anybody waits for.

mod count_selection;
mod covering_sums;
mod decode_ahead;
mod partial_answer;
mod pause_timeline;
mod plan;
mod thread_timeline;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message as _;
use serde::Serialize;

use super::sample_timeline::ActivityTimeline;
use super::selection::{Query, StackGrouping};
use crate::event_type::{EventType, ShownUnit};
use crate::export::store::{NAME_LABEL, ProfileRef, SeriesInfo, Store, TimeRange};
use crate::profile::call_tree::{CallTree, PAGE_NODES, SampleTimes};
use crate::profile::comparison::ComparedSide;
use crate::profile::gzip;
use crate::profile::pprof::add_cpu_time;
use crate::profile::pprof::merge::{MAX_BYTES, MergeError, Merger};
use crate::profile::pprof::sample_times::{TimesInRange, keep_within};
use crate::proto::pprof::Profile;

use decode_ahead::for_each_profile;
pub(super) use pause_timeline::PauseTimeline;
use plan::{RequestContext, SelectedProfiles};
pub(super) use thread_timeline::ThreadTimeline;

/// Limits of what one request may cost.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of stored (gzipped) profiles.
    pub bytes: u64,
    pub profiles: usize,
    pub time: Duration,
    /// Nodes of an answer's tree.
    pub nodes: usize,
    /// Bytes of sums of which all stacks are counted. Of more sums the heaviest nodes are.
    pub stack_bytes: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            profiles: 50_000,
            time: Duration::from_secs(30),
            nodes: PAGE_NODES,
            // A second's work.
            stack_bytes: 4 << 20,
        }
    }
}

/// The reason why an answer couldn't be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(
        "{profiles} profiles with {mib} MiB are in this range, which is more than one request may read \
         ({max_profiles} profiles, {max_mib} MiB): choose a shorter range or fewer series"
    )]
    TooMuch { profiles: usize, mib: u64, max_profiles: usize, max_mib: u64 },
    #[error(
        "reading {profiles} profiles takes longer than {seconds} s: choose a shorter range or fewer series"
    )]
    TooSlow { profiles: usize, seconds: u64 },
    #[error(
        "more than {max} samples have times in this range, which is more than a page shows: choose a shorter \
         range or fewer series"
    )]
    TooManyTimes { max: usize },
    #[error(
        "profiles of different sample types are in this range, and one pprof file has the same of all \
         samples: {expected} beside {found}; choose fewer series or another type"
    )]
    OtherTypes { expected: String, found: String },
    #[error("the client has closed the request")]
    Cancelled,
    #[error("compressing the merged profile: {0}")]
    Compress(#[from] std::io::Error),
}

/// The reason why a profile isn't part of an answer.
#[derive(Debug)]
enum Refusal {
    /// It can't be read: the answer lacks it.
    OfProfile(String),
    /// There is no answer.
    OfAll(ReadError),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::OfProfile(reason)
    }
}

/// A flame graph and what it was made of.
#[derive(Debug, Serialize)]
pub(super) struct FlameGraph {
    pub(super) tree: CallTree,
    /// Nanoseconds that a sample stands for, on average.
    pub(super) period_ns: u64,
    /// What is counted.
    pub(super) unit: ShownUnit,
    /// What the numbers of the base and of the tree are compared by, if there is a base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sides: Option<[ComparedSide; 2]>,
    pub(super) profiles: usize,
    /// Profiles that couldn't be read: the answer lacks their samples.
    pub(super) unreadable: usize,
    pub(super) series: usize,
    /// Samples that a node may lack, at most: those of times in which it was among the lightest are
    /// its callers' `[pruned]`.
    pub(super) most_lacking: u64,
    /// When the samples were taken, by what JVMs spent them on; `None` where that isn't counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) activities: Option<ActivityTimeline>,
    /// The same one by one, in milliseconds since the range's start, if samples count by their own
    /// times. `None` of a part and of what is below a node, too: who asks for these has it of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<SampleTimes>,
}

/// State of a selection's profiles that were read.
#[derive(Debug)]
struct ReadSelection {
    cpu_time: CpuTime,
    events: u64,
    duration_ns: u64,
    profiles: usize,
    unreadable: usize,
    series: usize,
    activities: ActivityTimeline,
    most_lacking: u64,
}

impl ReadSelection {
    fn side(&self, total: u64, unit: ShownUnit) -> ComparedSide {
        let period_ns = if unit == ShownUnit::Samples { self.cpu_time.period_ns() } else { 0 };
        ComparedSide { period_ns, duration_ns: self.duration_ns, events: self.events, total }
    }
}

/// A merged profile, gzipped.
#[derive(Debug)]
pub(super) struct MergedPprof {
    pub(super) bytes: Vec<u8>,
    pub(super) unreadable: usize,
}

/// One request's reading. Blocking: for `spawn_blocking`.
#[derive(Debug)]
pub(super) struct ProfileReader {
    pub(super) store: Arc<Store>,
    pub(super) limits: ReadLimits,
    /// Set when nobody waits any more.
    pub(super) is_cancelled: Arc<AtomicBool>,
}

impl ProfileReader {
    /// # Errors
    /// See [`ReadError`].
    pub(super) fn flame_graph(&self, query: &Query) -> Result<FlameGraph, ReadError> {
        let unit = ShownUnit::of_sample_type(query.sample_type.as_deref());
        let selected = SelectedProfiles::of_query(query, &self.store);
        let selected_base = SelectedProfiles::of_base(query, &self.store);
        let series = [Some(&selected), selected_base.as_ref()];
        let series = series.into_iter().flatten().flat_map(|of| &of.series).cloned().collect::<Vec<_>>();
        let group = query.group.as_ref().filter(|by| has_several(&series, by));
        let has_activities = unit == ShownUnit::Samples && is_cpu_time(&selected.series);
        let has_thread_kinds = has_activities || unit.is_of_waits();
        let begin = Instant::now();
        let request = RequestContext { reader: self, query, group, has_activities, has_thread_kinds, begin };
        let mut plan = request.plan(&selected);
        let mut base_plan = selected_base.as_ref().map(|base| request.plan(base));
        let mut plans: Vec<_> = base_plan.iter_mut().chain([&mut plan]).collect();
        let has_all_stacks = request.decide(&mut plans)?;
        let (mut builder, main) = request.count(&plan, has_all_stacks, false)?;
        let base = base_plan.map(|plan| {
            let (of_base, read) = request.count(&plan, has_all_stacks, true)?;
            builder.compare();
            builder.add_counts(of_base.into_counts(usize::MAX), None);
            Ok::<_, ReadError>(read)
        });
        let base = base.transpose()?;
        let has_times = query.by_times && query.is_whole();
        let times = has_times.then(|| builder.take_times(self.limits.nodes));
        let tree = builder.finish(self.limits.nodes);
        let [base_total, total] = tree.totals();
        let sides = base.as_ref().map(|base| [base.side(base_total, unit), main.side(total, unit)]);
        Ok(FlameGraph {
            period_ns: main.cpu_time.period_ns(),
            unit,
            sides,
            profiles: main.profiles,
            unreadable: main.unreadable + base.as_ref().map_or(0, |base| base.unreadable),
            series: main.series,
            most_lacking: main.most_lacking + base.as_ref().map_or(0, |base| base.most_lacking),
            activities: has_activities.then_some(main.activities),
            times,
            tree,
        })
    }

    /// # Errors
    /// See [`ReadError`].
    pub(super) fn pprof(&self, query: &Query) -> Result<MergedPprof, ReadError> {
        let (_, profiles) = query.selected(&self.store);
        let mut merger = Merger::new(MAX_BYTES);
        let too_much = || {
            let mib = |bytes: u64| bytes >> 20;
            ReadError::TooMuch {
                profiles: profiles.len(),
                mib: mib(bytes_of(&profiles)),
                max_profiles: self.limits.profiles,
                max_mib: mib(MAX_BYTES as u64),
            }
        };
        let (_, unreadable) = self.each(&profiles, Instant::now(), |reference, mut profile| {
            if query.by_times {
                keep_in_range(&mut profile, reference, query)?;
            }
            add_cpu_time(&mut profile);
            merger.add(&profile).map_err(|error| match error {
                MergeError::Incompatible { found, expected } => {
                    Refusal::OfAll(ReadError::OtherTypes { expected, found })
                }
                MergeError::Full { .. } => Refusal::OfAll(too_much()),
                error => Refusal::OfProfile(error.to_string()),
            })
        })?;
        if unreadable > 0 {
            let all = profiles.len();
            merger.comment(&format!("missing, since they could not be read: {unreadable} of {all} profiles"));
        }
        Ok(MergedPprof { bytes: gzip::compress(&merger.finish().encode_to_vec())?, unreadable })
    }

    /// Hands every profile to `take`, and says how many it took and how many it or the store
    /// refused. `start` is when the request began.
    fn each<R: Into<Refusal>>(
        &self,
        profiles: &[ProfileRef],
        start: Instant,
        mut take: impl FnMut(&ProfileRef, Profile) -> Result<(), R>,
    ) -> Result<(usize, usize), ReadError> {
        self.check_numbers(profiles.len(), bytes_of(profiles))?;
        let (mut read, mut unreadable) = (0, 0);
        for_each_profile(&self.store, profiles, |reference, profile| {
            self.check_progress(start, profiles.len())?;
            let taken = profile.map_err(Refusal::OfProfile);
            match taken.and_then(|profile| take(reference, profile).map_err(R::into)) {
                Ok(()) => read += 1,
                Err(Refusal::OfAll(error)) => return Err(error),
                Err(Refusal::OfProfile(error)) => {
                    unreadable += 1;
                    let series = &*reference.fingerprint;
                    tracing::warn!(series, error, "stored profile left out of an answer");
                }
            }
            Ok(())
        })?;
        Ok((read, unreadable))
    }

    /// Refuses to go on for a client that has gone, or for too long.
    fn check_progress(&self, start: Instant, profiles: usize) -> Result<(), ReadError> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(ReadError::Cancelled);
        }
        if start.elapsed() > self.limits.time {
            return Err(ReadError::TooSlow { profiles, seconds: self.limits.time.as_secs() });
        }
        Ok(())
    }

    fn check_numbers(&self, profiles: usize, bytes: u64) -> Result<(), ReadError> {
        if bytes <= self.limits.bytes && profiles <= self.limits.profiles {
            return Ok(());
        }
        Err(ReadError::TooMuch {
            profiles,
            mib: bytes.div_ceil(1 << 20),
            max_profiles: self.limits.profiles,
            max_mib: self.limits.bytes >> 20,
        })
    }
}

/// Returns true unless stacks would be grouped by program and there is only one.
fn has_several(series: &[SeriesInfo], by: &StackGrouping) -> bool {
    *by != StackGrouping::Program || by.names(series).into_values().collect::<BTreeSet<_>>().len() > 1
}

/// Returns true if all of these count CPU time.
fn is_cpu_time(series: &[SeriesInfo]) -> bool {
    let cpu = EventType::Cpu.descriptor().series;
    series.iter().all(|info| info.labels.get(NAME_LABEL).is_some_and(|name| name == cpu))
}

fn bytes_of<'a>(profiles: impl IntoIterator<Item = &'a ProfileRef>) -> u64 {
    profiles.into_iter().map(|profile| profile.bytes).sum()
}

/// Keeps the events of a profile that were taken in the range; where that isn't known, those of a
/// profile that began in it, if the query has such. Returns when they were, as far as it is known.
fn keep_in_range(
    profile: &mut Profile,
    reference: &ProfileRef,
    query: &Query,
) -> Result<TimesInRange, String> {
    let TimeRange { start, end } = query.counted_range();
    let has_untimed = query.has_untimed && start <= reference.start && reference.start < end;
    keep_within(profile, &(start.0..end.0), has_untimed).map_err(|error| error.to_string())
}

/// Returns the time in which at least one of the profiles, oldest first, was taken.
fn covered_time(profiles: &[ProfileRef]) -> u64 {
    let (mut covered, mut until) = (0_u64, i64::MIN);
    for profile in profiles {
        let end = profile.start.plus(profile.duration).0;
        let start = profile.start.0.max(until);
        covered += u64::try_from(end.saturating_sub(start)).unwrap_or(0);
        until = until.max(end);
    }
    covered
}

/// Time that samples stand for, over profiles with different periods.
#[derive(Debug, Default)]
struct CpuTime {
    samples: u64,
    nanos: u128,
}

impl CpuTime {
    fn add(&mut self, samples: u64, period: i64) {
        self.samples = self.samples.saturating_add(samples);
        self.nanos += u128::from(samples) * u128::try_from(period).unwrap_or(0);
    }

    fn add_all(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.nanos += other.nanos;
    }

    fn period_ns(&self) -> u64 {
        let period = self.nanos.checked_div(u128::from(self.samples)).unwrap_or(0);
        u64::try_from(period).unwrap_or(u64::MAX)
    }
}
