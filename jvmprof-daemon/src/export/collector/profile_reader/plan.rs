//! Choice of the files that are read for an answer, and division among threads.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::covering_sums::{FileToRead, divide};
use super::{ProfileReader, ReadError};
use crate::export::collector::selection::{Query, Selection, StackGrouping};
use crate::export::collector::sums::sum_of_period::tree_nodes;
use crate::export::store::{HOUR, ProfileRef, SUM_PERIODS, SeriesInfo, Store, TimeRange};
use crate::profile::model::LabelSet;
use crate::types::FastHasher;

/// Nodes that all series together add to an answer of which the heaviest nodes of sums are counted,
/// and each at least.
const MAX_SERIES_NODES: usize = 500_000;
const MIN_SERIES_NODES: usize = 1_000;

/// Threads count whole groups if each has so many: else one might have most of the work.
const GROUPS_OF_THREAD: usize = 4;

/// The profiles of a selection that are to be counted.
pub(super) struct SelectedProfiles {
    selection: Selection,
    pub(super) series: Vec<SeriesInfo>,
    /// Oldest first.
    pub(super) profiles: Vec<ProfileRef>,
}

impl SelectedProfiles {
    /// The profiles that a request selects.
    pub(super) fn of_query(query: &Query, store: &Store) -> Self {
        let (series, profiles) = query.selected(store);
        Self { selection: query.selection.clone(), series, profiles }
    }

    /// Returns the profiles that a query compares them with, if it does.
    pub(super) fn of_base(query: &Query, store: &Store) -> Option<Self> {
        let base = query.base.as_ref()?;
        Some(Self { selection: base.clone(), series: base.series(store), profiles: base.profiles(store) })
    }
}

/// Data that all selections of a request have in common.
pub(super) struct RequestContext<'a> {
    pub(super) reader: &'a ProfileReader,
    pub(super) query: &'a Query,
    pub(super) group: Option<&'a StackGrouping>,
    /// Samples say what JVMs did in them.
    pub(super) has_activities: bool,
    /// Samples say by which kinds of threads they were taken, which is counted.
    pub(super) has_thread_kinds: bool,
    pub(super) begin: Instant,
}

/// A selection by the files that are read for it.
pub(super) struct ReadPlan<'a> {
    pub(super) selected: &'a SelectedProfiles,
    groups: Option<HashMap<&'a str, String>>,
    pub(super) labels: HashMap<&'a str, &'a LabelSet>,
    /// By group and series, each oldest first: neighbours have most functions and nodes in common.
    by_series: Vec<Vec<&'a ProfileRef>>,
    pub(super) items: Vec<FileToRead<'a>>,
}

impl<'a> ReadPlan<'a> {
    pub(super) fn selected_range(&self) -> TimeRange {
        self.selected.selection.range
    }

    pub(super) fn group(&self, profile: &ProfileRef) -> Option<&str> {
        self.groups.as_ref()?.get(&*profile.fingerprint).map(String::as_str)
    }

    /// Chooses sums of these lengths instead of profiles.
    fn divide(&mut self, store: &Store, lengths: &[i64]) {
        let range = self.selected_range();
        let items = self.by_series.iter().flat_map(|profiles| divide(store, profiles, range, lengths));
        self.items = items.collect();
    }

    /// Returns where the files of each thread begin and end, and true if no group is divided among
    /// several: then their trees have nothing in common but the root.
    pub(super) fn bounds(&self, threads: usize) -> (Vec<usize>, bool) {
        let group = |at: usize| self.group(self.items[at].first());
        let of_series = |profiles: &Vec<&ProfileRef>| profiles.first().map(|first| self.group(first));
        let groups = self.by_series.chunk_by(|one, next| of_series(one) == of_series(next)).count();
        let is_disjoint = groups >= GROUPS_OF_THREAD * threads;
        let files = self.items.len();
        let inner = (1..threads).map(|thread| files * thread / threads).map(|at| {
            let next_group = (at.max(1)..files).find(|next| group(next - 1) != group(*next));
            if is_disjoint { next_group.unwrap_or(files) } else { at }
        });
        (std::iter::once(0).chain(inner).chain([files]).collect(), is_disjoint)
    }

    fn sum_bytes(&self) -> u64 {
        let bytes = |item: &FileToRead<'_>| if let FileToRead::Sum(sum) = item { sum.bytes } else { 0 };
        self.items.iter().map(bytes).sum()
    }

    /// Profiles that are read themselves.
    pub(super) fn single(&self) -> usize {
        self.items.iter().filter(|item| matches!(item, FileToRead::One(_))).count()
    }

    /// Nodes of the trees of all sums, at most, as they are stored.
    pub(super) fn nodes_of_sums(&self) -> usize {
        let of = |item: &FileToRead<'_>| {
            if let FileToRead::Sum(sum) = item { tree_nodes(sum.period.length) } else { 0 }
        };
        self.items.iter().map(of).sum()
    }

    /// Returns how many nodes a series adds of whose sums the heaviest nodes are counted.
    pub(super) fn nodes_of_series(&self) -> usize {
        (MAX_SERIES_NODES / self.by_series.len().max(1)).max(MIN_SERIES_NODES)
    }
}

impl<'a> RequestContext<'a> {
    /// Returns true if stacks of one profile are in several groups.
    pub(super) fn is_by_thread_kind(&self) -> bool {
        self.group == Some(&StackGrouping::ThreadKind)
    }

    /// Lists the files of a selection that are read if all stacks of its sums are.
    pub(super) fn plan(&self, selected: &'a SelectedProfiles) -> ReadPlan<'a> {
        let SelectedProfiles { series, profiles, .. } = selected;
        let groups = self.group.and_then(StackGrouping::of_series).map(|by| by.names(series));
        let mut of_series: HashMap<&str, Vec<&ProfileRef>, FastHasher> = HashMap::default();
        for profile in profiles {
            of_series.entry(&profile.fingerprint).or_default().push(profile);
        }
        let group = |fingerprint: &str| groups.as_ref().and_then(|groups| groups.get(fingerprint));
        let of_series = of_series.into_iter();
        let sorted: BTreeMap<_, _> = of_series.map(|(of, profiles)| ((group(of), of), profiles)).collect();
        // What a filter of stacks leaves of each profile, whose threads' they are, and when they
        // were taken, is known only from the profile.
        let sample_type = self.query.sample_type.as_deref();
        let has_sums = self.query.stacks.takes_all()
            && sample_type.is_none_or(|name| name == "samples")
            && !self.is_by_thread_kind()
            && !self.query.by_times;
        let wanted = &self.query.under_groups;
        let has_nodes = !self.query.stacks.under.is_empty() && !wanted.is_empty();
        let is_wanted =
            |group: Option<&String>| !has_nodes || group.is_none_or(|group| wanted.contains(group));
        let sorted = sorted.into_iter().filter(|((group, _), _)| is_wanted(*group));
        let by_series = sorted.map(|(_, profiles)| profiles).collect();
        let labels = series.iter().map(|series| (series.fingerprint.as_str(), &series.labels)).collect();
        let mut plan = ReadPlan { selected, groups, labels, by_series, items: Vec::new() };
        // Longer sums have no stacks.
        let lengths = SUM_PERIODS.into_iter().filter(|length| has_sums && *length <= HOUR);
        plan.divide(&self.reader.store, &lengths.collect::<Vec<_>>());
        plan
    }

    /// Decides whether all stacks of sums are counted, or the heaviest nodes of longer ones: the
    /// same for both sides of a comparison.
    ///
    /// # Errors
    /// They are too many.
    pub(super) fn decide(&self, plans: &mut [&mut ReadPlan<'a>]) -> Result<bool, ReadError> {
        let bytes: u64 = plans.iter().map(|plan| plan.sum_bytes()).sum();
        let is_all = bytes <= self.reader.limits.stack_bytes;
        for plan in plans {
            if !is_all {
                plan.divide(&self.reader.store, &SUM_PERIODS);
            }
            let bytes = plan.items.iter().map(FileToRead::bytes).sum();
            self.reader.check_numbers(plan.items.len(), bytes)?;
        }
        Ok(is_all)
    }
}
