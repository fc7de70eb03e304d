//! Adding profiles to a store, and removing the oldest ones when it is full.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message as _;

use super::file_names;
use super::index::{ProfileEntry, StoreIndex};
use super::label_limits::{MAX_LABEL_SET_BYTES, SHOWN_CHARACTERS, label_set_bytes};
use super::parallel_sync;
use super::staged_files::{self, StagedFile};
use super::types::{ProfileRef, UnixNanos};
use super::{NAME_LABEL, Store, StoreError, with_name};
use crate::profile::gzip::GzipCompressor;
use crate::profile::model::{Batch, LabelSet, Series};
use crate::profile::pprof;

/// A profile that is to be stored.
#[derive(Clone, Debug)]
pub struct NewProfile {
    /// With `__name__`. Shared by the profiles of a series, and by the index.
    pub labels: Arc<LabelSet>,
    pub start: UnixNanos,
    pub duration: Duration,
    /// Sum of the first value (a count) of its samples.
    pub samples: u64,
    /// pprof, gzipped.
    pub pprof: bytes::Bytes,
}

impl NewProfile {
    /// The profiles that would be pushed for the series of a batch, with the times of samples if
    /// they are known.
    ///
    /// # Errors
    /// None that writing to memory could have.
    pub fn of_batch(batch: &Batch) -> io::Result<Vec<Self>> {
        let mut compressor = GzipCompressor::default();
        batch.series.iter().map(|series| Self::of_series(batch, series, &mut compressor)).collect()
    }

    fn of_series(batch: &Batch, series: &Series, compressor: &mut GzipCompressor) -> io::Result<Self> {
        let profile = pprof::PushEncoder::new(batch).with_times(true).encode(series);
        Ok(Self {
            labels: with_name(&series.labels, batch.event.descriptor().series).into(),
            start: UnixNanos(profile.time_nanos),
            duration: batch.duration,
            samples: pprof::total(&profile),
            pprof: compressor.compress(&profile.encode_to_vec())?.into(),
        })
    }
}

/// Label sets that the index doesn't have yet, by their folders.
type NewSeries<'a> = BTreeMap<String, &'a Arc<LabelSet>>;

/// A profile on its way: where it goes, and its entry once it is there.
struct PlannedWrite {
    fingerprint: String,
    entry: ProfileEntry,
}

impl Store {
    /// Stores all of these profiles or none: whoever sends them again after an error counts nothing
    /// twice.
    ///
    /// Returns when they would survive a power cut.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing was stored.
    pub fn append(&self, profiles: &[NewProfile]) -> Result<(), StoreError> {
        // One writer at a time, without keeping readers of the index waiting for the disk.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.become_writer(&mut writer)?;
        self.check(profiles)?;
        let (plans, new_series) = self.plan(profiles);
        for plan in &plans {
            self.remove_sums_of(&plan.fingerprint, plan.entry.start);
        }
        let written = self.write_files(profiles, &plans, &new_series).inspect_err(|_| {
            for fingerprint in new_series.keys() {
                self.remove_series_dir(fingerprint);
            }
        });
        self.add_to_index(profiles, plans, new_series, &written?);
        self.remove_over_limit();
        Ok(())
    }

    /// Stores all series of a batch, or none.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing was stored.
    #[cfg(test)]
    pub(crate) fn append_batch(&self, batch: &Batch) -> Result<(), StoreError> {
        self.append(&NewProfile::of_batch(batch).expect("written to memory"))
    }

    fn check(&self, profiles: &[NewProfile]) -> Result<(), StoreError> {
        let limit = self.options.limit_bytes;
        for profile in profiles {
            if profile.labels.get(NAME_LABEL).is_none_or(String::is_empty) {
                return Err(StoreError::NoName);
            }
            let bytes = profile.pprof.len() as u64;
            if bytes > limit {
                return Err(StoreError::TooLarge { bytes, limit });
            }
        }
        self.label_refusals(profiles).into_iter().next().map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Returns which of these profiles can't be stored because of their labels, by their positions,
    /// and why. The others can be, together.
    pub fn label_refusals(&self, profiles: &[NewProfile]) -> Vec<(usize, StoreError)> {
        let state = self.state();
        let limit = self.options.max_label_bytes;
        let mut new = BTreeSet::<&LabelSet>::new();
        let mut used = state.index.label_bytes();
        let mut refusals = Vec::new();
        for (position, profile) in profiles.iter().enumerate() {
            let labels = &*profile.labels;
            let bytes = label_set_bytes(labels);
            if bytes > MAX_LABEL_SET_BYTES {
                let name = labels.get(NAME_LABEL).map_or("", String::as_str);
                let series = name.chars().take(SHOWN_CHARACTERS).collect();
                let refusal = StoreError::LabelSetTooLarge { series, bytes, limit: MAX_LABEL_SET_BYTES };
                refusals.push((position, refusal));
                continue;
            }
            let folder = folder_for(&state.index, &NewSeries::new(), labels);
            if state.index.get(&folder).is_some() || new.contains(labels) {
                continue;
            }
            let bytes = bytes as u64;
            if used.saturating_add(bytes) > limit {
                let refusal = StoreError::NoRoomForLabels { dir: self.dir.clone(), bytes, used, limit };
                refusals.push((position, refusal));
                continue;
            }
            used += bytes;
            new.insert(labels);
        }
        refusals
    }

    fn plan<'a>(&self, profiles: &'a [NewProfile]) -> (Vec<PlannedWrite>, NewSeries<'a>) {
        let mut state = self.state();
        let mut new_series = BTreeMap::new();
        let plan = |profile: &'a NewProfile| {
            let fingerprint = folder_for(&state.index, &new_series, &profile.labels);
            if state.index.get(&fingerprint).is_none() {
                new_series.insert(fingerprint.clone(), &profile.labels);
            }
            let entry = ProfileEntry {
                start: profile.start,
                number: state.index.take_number(),
                duration_ns: u64::try_from(profile.duration.as_nanos()).unwrap_or(u64::MAX),
                samples: profile.samples,
                bytes: profile.pprof.len() as u64,
            };
            PlannedWrite { fingerprint, entry }
        };
        let plans = profiles.iter().map(plan).collect();
        (plans, new_series)
    }

    /// Writes everything; takes all of it back on an error. Returns the size of each new
    /// `labels.json`.
    fn write_files(
        &self,
        profiles: &[NewProfile],
        plans: &[PlannedWrite],
        new_series: &NewSeries<'_>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut staged = Vec::new();
        let result = self.stage(profiles, plans, new_series, &mut staged).and_then(|label_bytes| {
            staged.iter_mut().try_for_each(StagedFile::publish)?;
            let touched: BTreeSet<&String> = plans.iter().map(|plan| &plan.fingerprint).collect();
            let mut touched: Vec<_> = touched.into_iter().collect();
            parallel_sync::try_for_each(&mut touched, |fingerprint| {
                staged_files::sync_dir(&file_names::series_dir(&self.dir, fingerprint))
            })?;
            if !new_series.is_empty() {
                staged_files::sync_dir(&file_names::series_root(&self.dir))?;
            }
            Ok(label_bytes)
        });
        if result.is_err() {
            staged.into_iter().for_each(StagedFile::discard);
        }
        result
    }

    /// Writes and syncs everything under temporary names.
    fn stage(
        &self,
        profiles: &[NewProfile],
        plans: &[PlannedWrite],
        new_series: &NewSeries<'_>,
        staged: &mut Vec<StagedFile>,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut label_bytes = BTreeMap::new();
        // Labels first: a profile never has its name in a folder that doesn't say whose it is.
        for (fingerprint, labels) in new_series {
            let dir = file_names::series_dir(&self.dir, fingerprint);
            staged_files::create_dir(&dir)?;
            let json = serde_json::to_vec_pretty::<LabelSet>(labels)?;
            label_bytes.insert(fingerprint.clone(), json.len() as u64);
            stage_file(staged, &dir, file_names::LABELS, &json)?;
        }
        for (profile, plan) in profiles.iter().zip(plans) {
            let dir = file_names::series_dir(&self.dir, &plan.fingerprint);
            stage_file(staged, &dir, &file_names::profile_name(&plan.entry), &profile.pprof)?;
        }
        let open = staged.len() % SYNCED_TOGETHER;
        let first = staged.len() - open;
        parallel_sync::try_for_each(&mut staged[first..], StagedFile::sync)?;
        Ok(label_bytes)
    }

    fn add_to_index(
        &self,
        profiles: &[NewProfile],
        plans: Vec<PlannedWrite>,
        new_series: NewSeries<'_>,
        label_bytes: &BTreeMap<String, u64>,
    ) {
        let mut state = self.state();
        for (fingerprint, labels) in new_series {
            let bytes = label_bytes.get(&fingerprint).copied().unwrap_or(0);
            state.index.add_series(&fingerprint, Arc::clone(labels), bytes);
        }
        for (plan, profile) in plans.into_iter().zip(profiles) {
            state.index.add_profile(&plan.fingerprint, plan.entry);
            state.counters.stored_profiles += 1;
            state.counters.stored_bytes += profile.pprof.len() as u64;
        }
    }

    /// Removes the oldest profiles until the files fit the limit. For the writer alone.
    pub(super) fn remove_over_limit(&self) {
        let (mut profiles, mut bytes) = (0_u64, 0_u64);
        while let Some(oldest) = self.oldest_over_limit() {
            self.remove(&oldest);
            profiles += 1;
            bytes += oldest.bytes;
        }
        if profiles > 0 {
            let limit = self.options.limit_bytes;
            tracing::info!(profiles, bytes, limit, dir = %self.dir.display(), "oldest profiles removed: store is full");
            let mut state = self.state();
            state.counters.removed_profiles += profiles;
            state.counters.removed_bytes += bytes;
        }
    }

    fn oldest_over_limit(&self) -> Option<ProfileRef> {
        let state = self.state();
        (state.index.used_bytes() > self.options.limit_bytes).then(|| state.index.oldest()).flatten()
    }

    /// Removes the entry, even if its file can't be removed: else the same file would be tried for
    /// ever.
    fn remove(&self, profile: &ProfileRef) {
        self.remove_sums_of(&profile.fingerprint, profile.start);
        let path = file_names::profile_path(&self.dir, profile);
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "profile can't be removed from the full store");
        }
        let series_is_gone = self.state().index.remove_profile(profile);
        if series_is_gone {
            self.remove_series_dir(&profile.fingerprint);
        }
    }

    fn remove_series_dir(&self, fingerprint: &str) {
        staged_files::remove_series_dir(&file_names::series_dir(&self.dir, fingerprint));
    }
}

/// Files that are open at the same time, waiting to be synced together.
const SYNCED_TOGETHER: usize = 64;

fn stage_file(staged: &mut Vec<StagedFile>, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    staged.push(StagedFile::write(dir, name, bytes)?);
    if staged.len().is_multiple_of(SYNCED_TOGETHER) {
        let first = staged.len() - SYNCED_TOGETHER;
        parallel_sync::try_for_each(&mut staged[first..], StagedFile::sync)?;
    }
    Ok(())
}

/// The folder that has, or is to have, this label set: its fingerprint, numbered if another set has
/// the same one.
fn folder_for(index: &StoreIndex, new: &NewSeries<'_>, labels: &LabelSet) -> String {
    let fingerprint = file_names::fingerprint(labels);
    let mut candidate = fingerprint.clone();
    let mut suffix = 2_u32;
    loop {
        let holder =
            index.get(&candidate).map(|series| &series.labels).or_else(|| new.get(&candidate).copied());
        if holder.is_none_or(|held| **held == *labels) {
            return candidate;
        }
        candidate = format!("{fingerprint}-{suffix}");
        suffix += 1;
    }
}
