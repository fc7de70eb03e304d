//! Reading from a store: the series and profiles of a time range, and their bytes.

use std::fs;
use std::time::Duration;

use super::index::SeriesEntry;
use super::types::{Matcher, ProfileRef, SeriesInfo, TimeRange};
use super::{Store, StoreError, file_names};
use crate::profile::model::LabelSet;

impl Store {
    /// Returns the series that match and have profiles in the range, sorted by label set.
    pub fn series(&self, range: TimeRange, matchers: &[Matcher]) -> Vec<SeriesInfo> {
        self.refresh_if_stale();
        let state = self.state();
        let mut found: Vec<SeriesInfo> =
            matching(state.index.series(), matchers).filter_map(|series| info(series, range)).collect();
        found.sort_by(|a, b| a.labels.cmp(&b.labels));
        found
    }

    /// Returns the profiles of the matching series in the range, oldest first.
    pub fn profiles(&self, range: TimeRange, matchers: &[Matcher]) -> Vec<ProfileRef> {
        self.refresh_if_stale();
        let state = self.state();
        let mut found: Vec<ProfileRef> = matching(state.index.series(), matchers)
            .flat_map(|series| {
                let entries = series.entries().filter(|entry| range.contains(entry.start));
                entries.map(|entry| entry.reference(series))
            })
            .collect();
        found.sort_by_key(|profile| (profile.start, profile.number));
        found
    }

    /// Returns the profile as it was stored, gzipped.
    ///
    /// # Errors
    /// Its file is gone (removed because of the limit since it was listed) or can't be read.
    pub fn read(&self, profile: &ProfileRef) -> Result<Vec<u8>, StoreError> {
        let path = file_names::profile_path(&self.dir, profile);
        fs::read(&path).map_err(StoreError::io("read", &path))
    }
}

fn matching<'a>(
    series: impl Iterator<Item = &'a SeriesEntry>,
    matchers: &'a [Matcher],
) -> impl Iterator<Item = &'a SeriesEntry> {
    series.filter(|series| matchers.iter().all(|matcher| matcher.matches(&series.labels)))
}

fn info(series: &SeriesEntry, range: TimeRange) -> Option<SeriesInfo> {
    let mut entries = series.entries().filter(|entry| range.contains(entry.start)).peekable();
    let first = entries.peek()?.start;
    let mut info = SeriesInfo {
        fingerprint: series.fingerprint.to_string(),
        labels: LabelSet::clone(&series.labels),
        profiles: 0,
        samples: 0,
        first,
        last: first,
    };
    for entry in entries {
        info.profiles += 1;
        info.samples = info.samples.saturating_add(entry.samples);
        info.last = info.last.max(entry.start.plus(Duration::from_nanos(entry.duration_ns)));
    }
    Some(info)
}
