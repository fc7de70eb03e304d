//! Makes the sum of one period: up to an hour from its profiles, longer ones from the sums of their
//! hours.

use super::stored_sum::{self, EncodeError, StoredSum, SumContent, SumDetail, SummedPart};
use crate::event_type::EventType;
use crate::export::store::{HOUR, MissingSum, NAME_LABEL, ProfileRef, Store, StoreError, SumPeriod};
use crate::profile::call_tree::{ActivitySamples, PprofSeries, TreeBuilder};
use crate::profile::jvm_activity::is_jvm;
use crate::profile::model::LabelSet;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use crate::profile::pprof::sampled_events;
use crate::profile::pprof::stack_sum::{StackSum, SumError};
use crate::proto::pprof::Profile;

/// Nodes of the tree of an hour's sum. A page draws 20,000 nodes of all series and hours: those
/// that are heavy over the time are among the heaviest of most hours.
const HOUR_NODES: f64 = 2_000.0;

/// The sample type whose graphs are made of sums.
const SUMMED_TYPE: &str = "samples";

/// A sum that can't be made.
#[derive(Debug, thiserror::Error)]
pub(in crate::export::collector) enum PeriodSumError {
    #[error(transparent)]
    Sum(#[from] SumError),
    #[error("reading a profile that is to be summed: {0}")]
    Unread(#[source] StoreError),
    #[error("decoding a profile that is to be summed: {0}")]
    Part(String),
    #[error("a profile has no sample type {SUMMED_TYPE}, the only one whose graphs are made of sums")]
    OtherTypes,
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Returns how many nodes the tree of a sum has that is so many nanoseconds long: as the square
/// root of its time. Where the n-th heaviest node has a share of 1/n of the samples, that is how
/// many nodes of each length lose least together.
#[allow(clippy::cast_sign_loss, reason = "lengths of periods are above zero")]
pub(in crate::export::collector) fn tree_nodes(length: i64) -> usize {
    (HOUR_NODES * (length as f64 / HOUR as f64).sqrt()) as usize
}

/// Adds up the profiles of a period, and returns the bytes of its [`StoredSum`].
///
/// # Errors
/// One of them can't be read, or there is no exact sum.
pub(in crate::export::collector) fn sum_period(
    store: &Store,
    sum: &MissingSum,
) -> Result<Vec<u8>, PeriodSumError> {
    let series = SummedSeries {
        store,
        labels: &sum.labels,
        is_cpu: sum.labels.get(NAME_LABEL).is_some_and(|name| name == EventType::Cpu.descriptor().series),
    };
    let profiles: Vec<_> = sum.parts.iter().collect();
    if sum.period.length > HOUR {
        series.of_hours(sum, &profiles)
    } else {
        series.of_profiles(sum, &profiles)
    }
}

/// The series whose profiles are added up.
struct SummedSeries<'a> {
    store: &'a Store,
    labels: &'a LabelSet,
    is_cpu: bool,
}

/// All stacks of some profiles.
struct SummedStacks {
    stacks: Profile,
    parts: Vec<SummedPart>,
    events: u64,
}

impl SummedSeries<'_> {
    fn of_profiles(&self, sum: &MissingSum, profiles: &[&ProfileRef]) -> Result<Vec<u8>, PeriodSumError> {
        let SummedStacks { stacks, parts, events } = self.stacks(profiles)?;
        let mut builder = self.builder();
        self.add_stacks(&mut builder, &stacks)?;
        let tree = builder.into_counts(tree_nodes(sum.period.length));
        let stacks = (!tree.is_whole()).then_some(&stacks);
        Ok(stored_sum::encode(profiles, &parts, events, &tree, stacks)?)
    }

    /// One hour after the other is in memory.
    fn of_hours(&self, sum: &MissingSum, profiles: &[&ProfileRef]) -> Result<Vec<u8>, PeriodSumError> {
        let mut builder = self.builder();
        let (mut parts, mut events, mut lacking) = (Vec::new(), 0_u64, 0_u64);
        let hour = |profile: &ProfileRef| SumPeriod::of(profile.start, HOUR);
        for profiles in profiles.chunk_by(|one, next| hour(one) == hour(next)) {
            let of_hour = match self.read(hour(profiles[0]), profiles) {
                Some(StoredSum { parts, events, content: SumContent::Tree(tree) }) => {
                    lacking = lacking.saturating_add(tree.most_lacking());
                    builder.add_counts(*tree, None);
                    (parts, events)
                }
                Some(StoredSum { parts, events, content: SumContent::Stacks(stacks) }) => {
                    self.add_stacks(&mut builder, &stacks)?;
                    (parts, events)
                }
                None => {
                    let SummedStacks { stacks, parts, events } = self.stacks(profiles)?;
                    self.add_stacks(&mut builder, &stacks)?;
                    (parts, events)
                }
            };
            parts.extend(of_hour.0);
            events = events.saturating_add(of_hour.1);
        }
        let mut tree = builder.into_counts(tree_nodes(sum.period.length));
        tree.add_lacking(lacking);
        Ok(stored_sum::encode(profiles, &parts, events, &tree, None)?)
    }

    /// Reads the sum of these profiles with as much as it has.
    fn read(&self, period: SumPeriod, profiles: &[&ProfileRef]) -> Option<StoredSum> {
        let fingerprint = &profiles.first()?.fingerprint;
        [SumDetail::All, SumDetail::Tree(usize::MAX)].into_iter().find_map(|detail| {
            let file = self.store.open_sum(fingerprint, period).ok()?;
            stored_sum::parse(file, profiles, detail).ok()
        })
    }

    fn stacks(&self, profiles: &[&ProfileRef]) -> Result<SummedStacks, PeriodSumError> {
        let mut stacks = StackSum::of_series(is_jvm(self.labels));
        let (mut parts, mut events) = (Vec::new(), 0_u64);
        for reference in profiles {
            let bytes = self.store.read(reference).map_err(PeriodSumError::Unread)?;
            let profile = decode(&bytes, DecodeLimits::default())
                .map_err(|error| PeriodSumError::Part(error.to_string()))?;
            let text = |index: i64| usize::try_from(index).ok().and_then(|at| profile.string_table.get(at));
            if !profile.sample_type.iter().any(|of| text(of.r#type).is_some_and(|name| name == SUMMED_TYPE)) {
                return Err(PeriodSumError::OtherTypes);
            }
            stacks.add(&profile)?;
            events = events.saturating_add(sampled_events(&profile, SUMMED_TYPE));
            let activities =
                if self.is_cpu { self.activities(&profile)? } else { ActivitySamples::default() };
            parts.push(SummedPart { period: profile.period, activities });
        }
        Ok(SummedStacks { stacks: stacks.finish(), parts, events })
    }

    fn builder(&self) -> TreeBuilder {
        let mut builder = TreeBuilder::default();
        if self.is_cpu {
            builder.count_activities();
        }
        builder
    }

    fn add_stacks(&self, builder: &mut TreeBuilder, stacks: &Profile) -> Result<(), PeriodSumError> {
        let series = PprofSeries {
            labels: Some(self.labels),
            sample_type: Some(SUMMED_TYPE),
            ..PprofSeries::default()
        };
        builder.add_pprof(stacks, &series).map_err(|error| PeriodSumError::Part(error.to_string()))
    }

    /// Returns what the samples of a profile of CPU time were taken in.
    fn activities(&self, profile: &Profile) -> Result<ActivitySamples, PeriodSumError> {
        // One for each profile: a builder keeps every function that it has seen.
        let mut builder = self.builder();
        let series = PprofSeries { labels: Some(self.labels), ..PprofSeries::default() };
        builder.add_pprof(profile, &series).map_err(|error| PeriodSumError::Part(error.to_string()))?;
        Ok(builder.take_activity_totals())
    }
}
