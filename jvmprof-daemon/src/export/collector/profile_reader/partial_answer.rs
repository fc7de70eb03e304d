//! The part of an answer that one thread counts of a selection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::covering_sums::{FileToRead, SummedProfiles, read_sum};
use super::decode_ahead::{ReadProfile, decode_large, read};
use super::plan::{ReadPlan, RequestContext};
use super::{CpuTime, ReadError, keep_in_range};
use crate::export::collector::sample_timeline::ActivityTimeline;
use crate::export::collector::sums::stored_sum::{StoredSum, SumContent, SumDetail};
use crate::export::collector::sums::sum_of_period::tree_nodes;
use crate::export::store::{ProfileRef, TimeRange, UnixNanos};
use crate::profile::call_tree::{PprofSeries, TreeBuilder};
use crate::profile::pprof::sample_times::TimesInRange;
use crate::profile::pprof::sampled_events;
use crate::proto::pprof::Profile;

/// Samples whose times an answer has, at most: a page of them has some 4 MB.
const MAX_TIMED_SAMPLES: usize = 1_000_000;

/// Nodes that all trees of sums together add to an answer, and each at least.
const MAX_NODES: usize = 600_000;
const MIN_NODES: usize = 100;

/// The counts of one thread; those of all are added up.
pub(super) struct PartialAnswer {
    pub(super) builder: TreeBuilder,
    pub(super) cpu_time: CpuTime,
    pub(super) events: u64,
    pub(super) profiles: usize,
    pub(super) unreadable: usize,
    pub(super) activities: ActivityTimeline,
    /// The most samples that a node of a group may lack; `None`: a node of any.
    lacking: BTreeMap<Option<String>, u64>,
    /// What the builder takes for samples that a node may lack, though no other thread has any of
    /// the nodes that it gave up.
    given_up: u64,
}

impl PartialAnswer {
    /// Returns the most samples that a node of any group may lack.
    pub(super) fn most_lacking(&self) -> u64 {
        let of = |is_group: bool| self.lacking.iter().filter(move |(group, _)| group.is_some() == is_group);
        let of_group = of(true).map(|(_, samples)| *samples).max().unwrap_or(0);
        let of_all: u64 = of(false).map(|(_, samples)| *samples).sum();
        let of_builder = self.builder.most_lacking().saturating_sub(self.given_up);
        of_builder.saturating_add(of_group).saturating_add(of_all)
    }

    fn add_lacking(&mut self, group: Option<&str>, samples: u64) {
        let sum = self.lacking.entry(group.map(str::to_owned)).or_default();
        *sum = sum.saturating_add(samples);
    }

    pub(super) fn add(mut self, other: Self) -> Self {
        let Self { builder, cpu_time, events, profiles, unreadable, activities, lacking, given_up } = other;
        let counts = builder.into_counts(usize::MAX);
        self.add_lacking(None, counts.most_lacking().saturating_sub(given_up));
        self.builder.add_counts(counts, None);
        self.cpu_time.add_all(&cpu_time);
        self.events = self.events.saturating_add(events);
        self.profiles += profiles;
        self.unreadable += unreadable;
        self.activities.add_all(&activities);
        for (group, samples) in lacking {
            *self.lacking.entry(group).or_default() += samples;
        }
        self
    }
}

/// Data that the threads that count a selection have in common.
pub(super) struct SelectionContext<'a, 'b> {
    request: &'b RequestContext<'a>,
    plan: &'b ReadPlan<'a>,
    /// Else the heaviest nodes of sums are counted.
    has_all_stacks: bool,
    is_base: bool,
    /// Profiles that are read themselves.
    single: usize,
    nodes_of_sums: usize,
    /// No group is counted by several threads.
    is_disjoint: bool,
    /// Profiles that are read because a sum can't be.
    extra: AtomicUsize,
    /// Samples that were counted by their times.
    timed: AtomicUsize,
    /// Held while a large profile is in memory.
    large: Mutex<()>,
}

impl<'a, 'b> SelectionContext<'a, 'b> {
    pub(super) fn new(
        request: &'b RequestContext<'a>,
        plan: &'b ReadPlan<'a>,
        has_all_stacks: bool,
        is_base: bool,
        is_disjoint: bool,
    ) -> Self {
        let (single, nodes_of_sums) = (plan.single(), plan.nodes_of_sums());
        Self {
            request,
            plan,
            has_all_stacks,
            is_base,
            single,
            nodes_of_sums,
            is_disjoint,
            extra: AtomicUsize::new(0),
            timed: AtomicUsize::new(0),
            large: Mutex::default(),
        }
    }
}

impl SelectionContext<'_, '_> {
    pub(super) fn empty_answer(&self) -> PartialAnswer {
        let mut builder = self.builder();
        builder.count_base(self.is_base);
        PartialAnswer {
            builder,
            cpu_time: CpuTime::default(),
            events: 0,
            profiles: 0,
            unreadable: 0,
            activities: ActivityTimeline::new(self.plan.selected_range()),
            lacking: BTreeMap::new(),
            given_up: 0,
        }
    }

    fn builder(&self) -> TreeBuilder {
        let mut stacks = self.request.query.stacks.clone();
        if !self.request.has_activities {
            // Samples of waits have no activity that could be among those wanted.
            stacks.activities.clear();
        }
        let mut builder = TreeBuilder::of_stacks(stacks);
        if self.request.has_thread_kinds {
            builder.count_activities();
        }
        builder
    }

    /// Counts files, those of a series side by side.
    pub(super) fn count(&self, items: &[FileToRead<'_>]) -> Result<PartialAnswer, ReadError> {
        let mut answer = self.empty_answer();
        for of_series in items.chunk_by(|one, next| one.first().fingerprint == next.first().fingerprint) {
            let group = self.plan.group(of_series[0].first());
            if self.has_all_stacks {
                of_series.iter().try_for_each(|item| self.count_item(&mut answer, item, group))?;
            } else {
                self.count_series(&mut answer, of_series, group)?;
            }
        }
        if self.is_disjoint && !self.has_all_stacks {
            // What isn't among the heaviest here isn't among those of all.
            let before = answer.builder.most_lacking();
            answer.builder.cut(self.request.reader.limits.nodes);
            answer.given_up = answer.builder.most_lacking() - before;
        }
        answer.builder.count_base(false);
        Ok(answer)
    }

    /// Counts a series in a tree of its own, of which the heaviest nodes are counted in the tree of
    /// all: most of what profiles of minutes have is too light for a page of a long time.
    fn count_series(
        &self,
        answer: &mut PartialAnswer,
        items: &[FileToRead<'_>],
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        let all_series = std::mem::replace(&mut answer.builder, self.builder());
        let done = items.iter().try_for_each(|item| self.count_item(answer, item, None));
        let series = std::mem::replace(&mut answer.builder, all_series);
        let counts = series.into_counts(self.plan.nodes_of_series());
        answer.add_lacking(group, counts.most_lacking());
        answer.builder.add_counts(counts, group);
        done
    }

    fn count_item(
        &self,
        answer: &mut PartialAnswer,
        item: &FileToRead<'_>,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        match item {
            FileToRead::One(reference) => self.count_profile(answer, reference, group),
            FileToRead::Sum(of) => self.count_sum(answer, of, group),
        }
    }

    fn check_progress(&self) -> Result<(), ReadError> {
        self.request.reader.check_progress(self.request.begin, self.plan.items.len())
    }

    fn detail(&self, sum: &SummedProfiles<'_>) -> SumDetail {
        if self.has_all_stacks {
            return SumDetail::All;
        }
        let nodes = tree_nodes(sum.period.length) * MAX_NODES / self.nodes_of_sums.max(MAX_NODES);
        SumDetail::Tree(nodes.max(MIN_NODES))
    }

    /// Counts a sum, or else its profiles.
    fn count_sum(
        &self,
        answer: &mut PartialAnswer,
        of: &SummedProfiles<'_>,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        self.check_progress()?;
        let sum = read_sum(&self.request.reader.store, of, self.detail(of));
        if sum.is_some_and(|sum| self.take_sum(answer, of, sum, group).is_ok()) {
            answer.profiles += of.profiles.len();
            return Ok(());
        }
        let extra = self.extra.fetch_add(of.profiles.len(), Ordering::Relaxed) + of.profiles.len();
        self.request.reader.check_numbers(extra + self.single, 0)?;
        of.profiles.iter().try_for_each(|reference| self.count_profile(answer, reference, group))
    }

    fn take_sum(
        &self,
        answer: &mut PartialAnswer,
        of: &SummedProfiles<'_>,
        sum: StoredSum,
        group: Option<&str>,
    ) -> Result<(), String> {
        let first = of.profiles[0];
        match sum.content {
            SumContent::Tree(tree) => {
                answer.add_lacking(self.plan.group(first), tree.most_lacking());
                answer.builder.add_counts(*tree, group);
            }
            SumContent::Stacks(stacks) => self.add_stacks(answer, first, &stacks, None, group)?,
        }
        answer.builder.take_activity_totals();
        for (reference, part) in of.profiles.iter().zip(&sum.parts) {
            answer.activities.add(reference, part.activities);
            answer.cpu_time.add(reference.samples, part.period);
        }
        answer.events = answer.events.saturating_add(sum.events);
        Ok(())
    }

    fn count_profile(
        &self,
        answer: &mut PartialAnswer,
        reference: &ProfileRef,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        self.check_progress()?;
        let taken = match read(&self.request.reader.store, reference) {
            ReadProfile::Decoded(profile) => {
                profile.and_then(|mut profile| self.take_profile(answer, reference, &mut profile, group))
            }
            ReadProfile::Undecoded(bytes) => {
                let _one = self.large.lock().unwrap_or_else(PoisonError::into_inner);
                decode_large(&bytes)
                    .and_then(|mut profile| self.take_profile(answer, reference, &mut profile, group))
            }
        };
        if self.timed.load(Ordering::Relaxed) > MAX_TIMED_SAMPLES {
            return Err(ReadError::TooManyTimes { max: MAX_TIMED_SAMPLES });
        }
        match taken {
            Ok(()) => answer.profiles += 1,
            Err(error) => {
                answer.unreadable += 1;
                let series = &*reference.fingerprint;
                tracing::warn!(series, error, "stored profile left out of an answer");
            }
        }
        Ok(())
    }

    fn take_profile(
        &self,
        answer: &mut PartialAnswer,
        reference: &ProfileRef,
        profile: &mut Profile,
        group: Option<&str>,
    ) -> Result<(), String> {
        if self.request.query.by_times {
            return self.take_by_times(answer, reference, profile, group);
        }
        self.add_stacks(answer, reference, profile, None, group)?;
        answer.activities.add(reference, answer.builder.take_activity_totals());
        answer.cpu_time.add(reference.samples, profile.period);
        let sample_type = self.request.query.sample_type.as_deref().unwrap_or("samples");
        answer.events = answer.events.saturating_add(sampled_events(profile, sample_type));
        Ok(())
    }

    /// Counts those of a profile's samples that were taken in the range.
    fn take_by_times(
        &self,
        answer: &mut PartialAnswer,
        reference: &ProfileRef,
        profile: &mut Profile,
        group: Option<&str>,
    ) -> Result<(), String> {
        let range = self.request.query.counted_range();
        let times = keep_in_range(profile, reference, self.request.query)?;
        self.timed.fetch_add(times.len(), Ordering::Relaxed);
        let before = answer.builder.total();
        self.add_stacks(answer, reference, profile, Some(&times), group)?;
        let counted = answer.builder.total() - before;
        let activities = answer.builder.take_activity_totals();
        answer.activities.add(&part_in(reference, range), activities);
        answer.cpu_time.add(counted, profile.period);
        answer.events = answer.events.saturating_add(counted);
        Ok(())
    }

    fn add_stacks(
        &self,
        answer: &mut PartialAnswer,
        reference: &ProfileRef,
        stacks: &Profile,
        times: Option<&TimesInRange>,
        group: Option<&str>,
    ) -> Result<(), String> {
        let series = PprofSeries {
            group,
            by_thread_kind: self.request.is_by_thread_kind(),
            labels: self.plan.labels.get(&*reference.fingerprint).copied(),
            sample_type: self.request.query.sample_type.as_deref(),
            times,
        };
        answer.builder.add_pprof(stacks, &series).map_err(|error| error.to_string())
    }
}

/// Returns a profile with the time of it that lies in the range: what comes late has the end of it.
fn part_in(reference: &ProfileRef, range: TimeRange) -> ProfileRef {
    let start = reference.start.0.clamp(range.start.0, range.end.0);
    let end = reference.start.plus(reference.duration).0.clamp(start, range.end.0);
    let mut part = reference.clone();
    (part.start, part.duration) = (UnixNanos(start), Duration::from_nanos(end.abs_diff(start)));
    part
}
