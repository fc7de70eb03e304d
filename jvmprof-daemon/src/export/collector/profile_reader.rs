//! Reads many stored profiles for one answer, within limits of bytes and time, and no
//! further than anybody waits for.

mod decode_ahead;
mod summed;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prost::Message as _;
use serde::Serialize;

use super::sample_timeline::ActivityTimeline;
use super::selection::{Group, Query, Selection};
use super::sums::stored_sum::StoredSum;
use crate::event_type::{EventType, ShownUnit};
use crate::export::store::{NAME_LABEL, ProfileRef, SeriesInfo, Store, TimeRange};
use crate::profile::call_tree::{CallTree, PAGE_NODES, PprofSeries, TreeBuilder};
use crate::profile::comparison::ComparedSide;
use crate::profile::gzip;
use crate::profile::model::LabelSet;
use crate::profile::pprof::merge::{MergeLimits, Merger};
use crate::profile::pprof::{add_cpu_time, sampled_events};
use crate::proto::pprof::Profile;

use decode_ahead::for_each_profile;
use summed::{divide, for_each_sum};

/// Limits of what one request may cost.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Bytes of stored (gzipped) profiles.
    pub bytes: u64,
    pub profiles: usize,
    pub time: Duration,
    /// Nodes of an answer's tree.
    pub nodes: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { bytes: 256 << 20, profiles: 50_000, time: Duration::from_secs(30), nodes: PAGE_NODES }
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
    #[error("the client has closed the request")]
    Cancelled,
    #[error("compressing the merged profile: {0}")]
    Compress(#[from] std::io::Error),
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
    /// When the samples were taken, by what JVMs spent them on; `None` where that isn't counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) activities: Option<ActivityTimeline>,
}

/// What is counted in one step: a profile, or the sum of several of one series.
enum Taken<'a> {
    One(&'a ProfileRef, &'a Profile),
    Sum(&'a [&'a ProfileRef], &'a StoredSum),
}

impl Taken<'_> {
    fn first(&self) -> &ProfileRef {
        match self {
            Self::One(reference, _) => reference,
            Self::Sum(profiles, _) => profiles[0],
        }
    }

    fn profile(&self) -> &Profile {
        match self {
            Self::One(_, profile) => profile,
            Self::Sum(_, sum) => &sum.profile,
        }
    }
}

/// What is known of a selection's profiles that were read.
#[derive(Debug)]
struct ReadSelection {
    cpu_time: CpuTime,
    events: u64,
    duration_ns: u64,
    profiles: usize,
    unreadable: usize,
    series: usize,
    activities: ActivityTimeline,
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
        let mut builder = TreeBuilder::under(query.under.clone());
        let base = query.base.as_ref();
        let unit = ShownUnit::of_sample_type(query.sample_type.as_deref());
        let has_activities = unit == ShownUnit::Samples && self.is_cpu_time(query);
        if has_activities {
            builder.count_activities();
        }
        let group = query.group.as_ref().filter(|by| self.has_several(query, by));
        let base = base.map(|base| {
            builder.count_base(true);
            let read = self.add_selection(&mut builder, base, query, group);
            builder.count_base(false);
            read
        });
        let base = base.transpose()?;
        let main = self.add_selection(&mut builder, &query.selection, query, group)?;
        let tree = builder.finish(self.limits.nodes);
        let [base_total, total] = tree.totals();
        let sides = base.as_ref().map(|base| [base.side(base_total, unit), main.side(total, unit)]);
        Ok(FlameGraph {
            period_ns: main.cpu_time.period_ns(),
            unit,
            sides,
            profiles: main.profiles,
            unreadable: main.unreadable + base.map_or(0, |base| base.unreadable),
            series: main.series,
            activities: has_activities.then_some(main.activities),
            tree,
        })
    }

    /// Returns true unless stacks would be grouped by program and there is only one.
    fn has_several(&self, query: &Query, by: &Group) -> bool {
        let selections = std::iter::once(&query.selection).chain(&query.base);
        let series: Vec<_> = selections.flat_map(|of| of.series(&self.store)).collect();
        let programs: BTreeSet<_> = by.names(&series).into_values().collect();
        *by != Group::Program || programs.len() > 1
    }

    /// Returns true if all that is selected counts CPU time.
    fn is_cpu_time(&self, query: &Query) -> bool {
        let cpu = EventType::Cpu.descriptor().series;
        let is_cpu = |info: &SeriesInfo| info.labels.get(NAME_LABEL).is_some_and(|name| name == cpu);
        query.selection.series(&self.store).iter().all(is_cpu)
    }

    /// Counts the profiles of a selection in the tree.
    fn add_selection(
        &self,
        builder: &mut TreeBuilder,
        selection: &Selection,
        query: &Query,
        group: Option<&Group>,
    ) -> Result<ReadSelection, ReadError> {
        let series = selection.series(&self.store);
        let profiles = selection.profiles(&self.store);
        let groups = group.map(|by| by.names(&series));
        let labels: HashMap<&str, &LabelSet> =
            series.iter().map(|series| (series.fingerprint.as_str(), &series.labels)).collect();
        let sample_type = query.sample_type.as_deref();
        let mut activities = ActivityTimeline::new(selection.range);
        builder.take_activity_totals();
        let (mut cpu_time, mut events) = (CpuTime::default(), 0_u64);
        // What a filter of stacks leaves of each profile is known only from the profile.
        let has_sums = query.under.is_empty() && sample_type.is_none_or(|name| name == "samples");
        let range = has_sums.then_some(selection.range);
        let mut take = |taken: Taken<'_>| {
            let reference = taken.first();
            let group = groups.as_ref().and_then(|groups| groups.get(&*reference.fingerprint));
            let labels = labels.get(&*reference.fingerprint).copied();
            let series = PprofSeries { group: group.map(|group| &**group), labels, sample_type };
            builder.add_pprof(taken.profile(), &series).map_err(|error| error.to_string())?;
            let totals = builder.take_activity_totals();
            match &taken {
                Taken::One(reference, profile) => {
                    activities.add(reference, totals);
                    cpu_time.add(reference.samples, profile.period);
                    let of = sampled_events(profile, sample_type.unwrap_or("samples"));
                    events = events.saturating_add(of);
                }
                Taken::Sum(profiles, sum) => {
                    for (reference, part) in profiles.iter().zip(&sum.parts) {
                        activities.add(reference, part.activities);
                        cpu_time.add(part.samples, part.period);
                    }
                    events = events.saturating_add(sum.events);
                }
            }
            Ok(())
        };
        let (read, unreadable) = self.each_or_sum(&profiles, range, &mut take)?;
        let series = series.len();
        let duration_ns = covered_time(&profiles);
        Ok(ReadSelection { cpu_time, events, duration_ns, profiles: read, unreadable, series, activities })
    }

    /// # Errors
    /// See [`ReadError`].
    pub(super) fn pprof(&self, query: &Query) -> Result<MergedPprof, ReadError> {
        let profiles = query.selection.profiles(&self.store);
        let limits = MergeLimits::default();
        let mut merger = Merger::new(limits);
        let mut full = false;
        let (_, unreadable) = self.each(&profiles, Instant::now(), |_, mut profile| {
            add_cpu_time(&mut profile);
            merger.add(&profile).map_err(|error| {
                full |= error.is_limit_of_the_whole();
                error.to_string()
            })
        })?;
        if full {
            let mib = |bytes: u64| bytes >> 20;
            return Err(ReadError::TooMuch {
                profiles: profiles.len(),
                mib: mib(bytes_of(&profiles)),
                max_profiles: self.limits.profiles,
                max_mib: mib(limits.max_bytes as u64),
            });
        }
        Ok(MergedPprof { bytes: gzip::compress(&merger.finish().encode_to_vec())?, unreadable })
    }

    /// Hands every profile to `take`, in sums where there are any if a range is given, and says how
    /// many it took and how many it or the store refused.
    fn each_or_sum(
        &self,
        profiles: &[ProfileRef],
        range: Option<TimeRange>,
        take: &mut impl FnMut(Taken<'_>) -> Result<(), String>,
    ) -> Result<(usize, usize), ReadError> {
        let start = Instant::now();
        let Some(range) = range else {
            return self.each(profiles, start, |reference, profile| take(Taken::One(reference, &profile)));
        };
        let (summed, single) = divide(&self.store, profiles, range);
        let mut single: Vec<ProfileRef> = single.into_iter().cloned().collect();
        let bytes: u64 = summed.iter().map(|sum| sum.bytes).sum();
        self.check_numbers(summed.len() + single.len(), bytes.saturating_add(bytes_of(&single)))?;
        let mut read = 0;
        for_each_sum(&self.store, &summed, |of, sum| {
            self.check_progress(start, summed.len())?;
            let taken = sum.is_some_and(|sum| take(Taken::Sum(&of.profiles, &sum)).is_ok());
            if taken {
                read += of.profiles.len();
            } else {
                single.extend(of.profiles.iter().map(|profile| (*profile).clone()));
            }
            Ok::<(), ReadError>(())
        })?;
        single.sort_by_key(|profile| (profile.start, profile.number()));
        let (read_single, unreadable) =
            self.each(&single, start, |reference, profile| take(Taken::One(reference, &profile)))?;
        Ok((read + read_single, unreadable))
    }

    /// Hands every profile to `take`, and says how many it took and how many it or the store
    /// refused. `start` is when the request began.
    fn each(
        &self,
        profiles: &[ProfileRef],
        start: Instant,
        mut take: impl FnMut(&ProfileRef, Profile) -> Result<(), String>,
    ) -> Result<(usize, usize), ReadError> {
        self.check_numbers(profiles.len(), bytes_of(profiles))?;
        let (mut read, mut unreadable) = (0, 0);
        for_each_profile(&self.store, profiles, |reference, profile| {
            self.check_progress(start, profiles.len())?;
            match profile.and_then(|profile| take(reference, profile)) {
                Ok(()) => read += 1,
                Err(error) => {
                    unreadable += 1;
                    let series = &*reference.fingerprint;
                    tracing::warn!(series, error, "stored profile left out of an answer");
                }
            }
            Ok::<(), ReadError>(())
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

fn bytes_of(profiles: &[ProfileRef]) -> u64 {
    profiles.iter().map(|profile| profile.bytes).sum()
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

    fn period_ns(&self) -> u64 {
        let period = self.nanos.checked_div(u128::from(self.samples)).unwrap_or(0);
        u64::try_from(period).unwrap_or(u64::MAX)
    }
}
