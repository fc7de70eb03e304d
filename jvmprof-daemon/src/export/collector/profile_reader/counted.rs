//! What one thread counts of a selection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::decode_ahead::{Ahead, decode_large, read};
use super::plan::{Counting, Plan};
use super::summed::{Item, SummedProfiles, read_sum};
use super::{CpuTime, ReadError};
use crate::export::collector::sample_timeline::ActivityTimeline;
use crate::export::collector::sums::stored_sum::{StoredSum, SumContent, SumDetail};
use crate::export::collector::sums::sum_of_period::tree_nodes;
use crate::export::store::ProfileRef;
use crate::profile::call_tree::{PprofSeries, TreeBuilder};
use crate::profile::pprof::sampled_events;
use crate::proto::pprof::Profile;

/// Nodes that all trees of sums together add to an answer, and each at least.
const MAX_NODES: usize = 600_000;
const MIN_NODES: usize = 100;

/// What a thread has counted.
pub(super) struct Counted {
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

impl Counted {
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

/// What the threads of a selection share.
pub(super) struct Shared<'a, 'b> {
    counting: &'b Counting<'a>,
    plan: &'b Plan<'a>,
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
    /// Held while a large profile is in memory.
    large: Mutex<()>,
}

impl<'a, 'b> Shared<'a, 'b> {
    pub(super) fn new(
        counting: &'b Counting<'a>,
        plan: &'b Plan<'a>,
        has_all_stacks: bool,
        is_base: bool,
        is_disjoint: bool,
    ) -> Self {
        let (single, nodes_of_sums) = (plan.single(), plan.nodes_of_sums());
        let (extra, large) = (AtomicUsize::new(0), Mutex::default());
        Self { counting, plan, has_all_stacks, is_base, single, nodes_of_sums, is_disjoint, extra, large }
    }
}

impl Shared<'_, '_> {
    pub(super) fn nothing(&self) -> Counted {
        let mut builder = self.builder();
        builder.count_base(self.is_base);
        Counted {
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
        let mut builder = TreeBuilder::under(self.counting.query.under.clone());
        if self.counting.has_activities {
            builder.count_activities();
        }
        builder
    }

    /// Counts files, those of a series side by side.
    pub(super) fn count(&self, items: &[Item<'_>]) -> Result<Counted, ReadError> {
        let mut counted = self.nothing();
        for of_series in items.chunk_by(|one, next| one.first().fingerprint == next.first().fingerprint) {
            let group = self.plan.group(of_series[0].first());
            if self.has_all_stacks {
                of_series.iter().try_for_each(|item| self.count_item(&mut counted, item, group))?;
            } else {
                self.count_series(&mut counted, of_series, group)?;
            }
        }
        if self.is_disjoint && !self.has_all_stacks {
            // What isn't among the heaviest here isn't among those of all.
            let before = counted.builder.most_lacking();
            counted.builder.cut(self.counting.reader.limits.nodes);
            counted.given_up = counted.builder.most_lacking() - before;
        }
        counted.builder.count_base(false);
        Ok(counted)
    }

    /// Counts a series in a tree of its own, of which the heaviest nodes are counted in the tree of
    /// all: most of what profiles of minutes have is too light for a page of a long time.
    fn count_series(
        &self,
        counted: &mut Counted,
        items: &[Item<'_>],
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        let all_series = std::mem::replace(&mut counted.builder, self.builder());
        let done = items.iter().try_for_each(|item| self.count_item(counted, item, None));
        let series = std::mem::replace(&mut counted.builder, all_series);
        let counts = series.into_counts(self.plan.nodes_of_series());
        counted.add_lacking(group, counts.most_lacking());
        counted.builder.add_counts(counts, group);
        done
    }

    fn count_item(
        &self,
        counted: &mut Counted,
        item: &Item<'_>,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        match item {
            Item::One(reference) => self.count_profile(counted, reference, group),
            Item::Sum(of) => self.count_sum(counted, of, group),
        }
    }

    fn check_progress(&self) -> Result<(), ReadError> {
        self.counting.reader.check_progress(self.counting.begin, self.plan.items.len())
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
        counted: &mut Counted,
        of: &SummedProfiles<'_>,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        self.check_progress()?;
        let sum = read_sum(&self.counting.reader.store, of, self.detail(of));
        if sum.is_some_and(|sum| self.take_sum(counted, of, sum, group).is_ok()) {
            counted.profiles += of.profiles.len();
            return Ok(());
        }
        let extra = self.extra.fetch_add(of.profiles.len(), Ordering::Relaxed) + of.profiles.len();
        self.counting.reader.check_numbers(extra + self.single, 0)?;
        of.profiles.iter().try_for_each(|reference| self.count_profile(counted, reference, group))
    }

    fn take_sum(
        &self,
        counted: &mut Counted,
        of: &SummedProfiles<'_>,
        sum: StoredSum,
        group: Option<&str>,
    ) -> Result<(), String> {
        let first = of.profiles[0];
        match sum.content {
            SumContent::Tree(tree) => {
                counted.add_lacking(self.plan.group(first), tree.most_lacking());
                counted.builder.add_counts(*tree, group);
            }
            SumContent::Stacks(stacks) => self.add_stacks(counted, first, &stacks, group)?,
        }
        counted.builder.take_activity_totals();
        for (reference, part) in of.profiles.iter().zip(&sum.parts) {
            counted.activities.add(reference, part.activities);
            counted.cpu_time.add(reference.samples, part.period);
        }
        counted.events = counted.events.saturating_add(sum.events);
        Ok(())
    }

    fn count_profile(
        &self,
        counted: &mut Counted,
        reference: &ProfileRef,
        group: Option<&str>,
    ) -> Result<(), ReadError> {
        self.check_progress()?;
        let taken = match read(&self.counting.reader.store, reference) {
            Ahead::Decoded(profile) => {
                profile.and_then(|profile| self.take_profile(counted, reference, &profile, group))
            }
            Ahead::Large(bytes) => {
                let _one = self.large.lock().unwrap_or_else(PoisonError::into_inner);
                decode_large(&bytes)
                    .and_then(|profile| self.take_profile(counted, reference, &profile, group))
            }
        };
        match taken {
            Ok(()) => counted.profiles += 1,
            Err(error) => {
                counted.unreadable += 1;
                let series = &*reference.fingerprint;
                tracing::warn!(series, error, "stored profile left out of an answer");
            }
        }
        Ok(())
    }

    fn take_profile(
        &self,
        counted: &mut Counted,
        reference: &ProfileRef,
        profile: &Profile,
        group: Option<&str>,
    ) -> Result<(), String> {
        self.add_stacks(counted, reference, profile, group)?;
        counted.activities.add(reference, counted.builder.take_activity_totals());
        counted.cpu_time.add(reference.samples, profile.period);
        let sample_type = self.counting.query.sample_type.as_deref().unwrap_or("samples");
        counted.events = counted.events.saturating_add(sampled_events(profile, sample_type));
        Ok(())
    }

    fn add_stacks(
        &self,
        counted: &mut Counted,
        reference: &ProfileRef,
        stacks: &Profile,
        group: Option<&str>,
    ) -> Result<(), String> {
        let series = PprofSeries {
            group,
            by_thread_kind: self.counting.is_by_thread_kind(),
            labels: self.plan.labels.get(&*reference.fingerprint).copied(),
            sample_type: self.counting.query.sample_type.as_deref(),
        };
        counted.builder.add_pprof(stacks, &series).map_err(|error| error.to_string())
    }
}
