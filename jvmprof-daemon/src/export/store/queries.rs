//! Reading from a store: which series, which profiles, and their bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::index::{Entry, SeriesEntry};
use super::{Store, StoreError, file_names};
use crate::profile::model::LabelSet;
use crate::profile::pprof::merge::{MergeLimits, Merger};
use crate::proto::pprof;

/// Nanoseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixNanos(pub i64);

impl From<SystemTime> for UnixNanos {
    /// Times that don't fit (before 1677 or after 2262) become the nearest that does.
    fn from(time: SystemTime) -> Self {
        let clamp = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Self(clamp(after.as_nanos())),
            Err(before) => Self(-clamp(before.duration().as_nanos())),
        }
    }
}

impl UnixNanos {
    /// This time and `duration` later, at most the last time there is.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// From `start` up to, but without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub start: UnixNanos,
    pub end: UnixNanos,
}

impl TimeRange {
    pub const ALL: Self = Self { start: UnixNanos(i64::MIN), end: UnixNanos(i64::MAX) };

    /// A profile belongs to the range in which it began: ranges side by side then share none and
    /// miss none.
    fn holds(&self, entry: &Entry) -> bool {
        self.start <= entry.start && entry.start < self.end
    }
}

/// How a label's value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MatcherKind {
    #[serde(rename = "=")]
    Equal,
    #[serde(rename = "!=")]
    NotEqual,
}

/// One condition on a label set. As in Prometheus, a label that isn't there has the value `""`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matcher {
    pub name: String,
    pub kind: MatcherKind,
    pub value: String,
}

impl Matcher {
    pub fn equal(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), kind: MatcherKind::Equal, value: value.into() }
    }

    pub fn not_equal(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), kind: MatcherKind::NotEqual, value: value.into() }
    }

    pub fn matches(&self, labels: &LabelSet) -> bool {
        let value = labels.get(&self.name).map_or("", String::as_str);
        match self.kind {
            MatcherKind::Equal => value == self.value,
            MatcherKind::NotEqual => value != self.value,
        }
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = match self.kind {
            MatcherKind::Equal => "=",
            MatcherKind::NotEqual => "!=",
        };
        write!(f, "{}{operator}{:?}", self.name, self.value)
    }
}

/// A series and what a time range holds of it.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesInfo {
    /// Name of its folder; changes never as long as the series has profiles.
    pub fingerprint: String,
    /// `__name__` included.
    pub labels: LabelSet,
    pub profiles: usize,
    /// Sum of the first value (a count) of all samples.
    pub samples: u64,
    /// When the first of these profiles began.
    pub first: UnixNanos,
    /// When the last of these profiles ended.
    pub last: UnixNanos,
}

/// One stored profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRef {
    pub fingerprint: String,
    pub start: UnixNanos,
    pub duration: Duration,
    /// Sum of the first value (a count) of its samples.
    pub samples: u64,
    /// Bytes on disk, gzipped.
    pub bytes: u64,
    pub(super) number: u64,
}

/// The profiles of a range as one.
#[derive(Clone, Debug)]
pub struct Merged {
    pub profile: pprof::Profile,
    /// How many profiles went in.
    pub profiles: usize,
    /// How many were left out because they couldn't be read; each is logged.
    pub unreadable: usize,
    /// Whether a limit stopped the merge before the last profile.
    pub cut_short: bool,
}

impl Store {
    /// Names of all labels that any series has, sorted.
    pub fn label_names(&self) -> Vec<String> {
        let state = self.state();
        let names: BTreeSet<&String> = state.index.series().flat_map(|series| series.labels.keys()).collect();
        names.into_iter().cloned().collect()
    }

    /// Values that the label has in any series, sorted.
    pub fn label_values(&self, name: &str) -> Vec<String> {
        let state = self.state();
        let values: BTreeSet<&String> =
            state.index.series().filter_map(|series| series.labels.get(name)).collect();
        values.into_iter().cloned().collect()
    }

    /// Series that match and have profiles in the range, sorted by label set.
    pub fn series(&self, range: TimeRange, matchers: &[Matcher]) -> Vec<SeriesInfo> {
        let state = self.state();
        let mut found: Vec<SeriesInfo> =
            matching(state.index.series(), matchers).filter_map(|series| info(series, range)).collect();
        found.sort_by(|a, b| a.labels.cmp(&b.labels));
        found
    }

    /// Profiles of the series that match in the range, oldest first.
    pub fn profiles(&self, range: TimeRange, matchers: &[Matcher]) -> Vec<ProfileRef> {
        let state = self.state();
        let mut found: Vec<ProfileRef> = matching(state.index.series(), matchers)
            .flat_map(|series| {
                series.entries().filter(|entry| range.holds(entry)).map(|entry| entry.reference(series))
            })
            .collect();
        found.sort_by_key(|profile| (profile.start, profile.number));
        found
    }

    /// The profile as it was stored, gzipped.
    ///
    /// # Errors
    /// Its file is gone (removed because of the limit since it was listed) or can't be read.
    pub fn read(&self, profile: &ProfileRef) -> Result<Vec<u8>, StoreError> {
        let path = file_names::profile_path(&self.dir, profile);
        fs::read(&path).map_err(StoreError::io("read", &path))
    }

    /// All profiles of a range as one. What can't be read is logged, counted and left out.
    pub fn merged(&self, range: TimeRange, matchers: &[Matcher], limits: MergeLimits) -> Merged {
        let mut merger = Merger::new(limits);
        let (mut profiles, mut unreadable, mut cut_short) = (0, 0, false);
        for reference in self.profiles(range, matchers) {
            let added = self.read(&reference).map_err(|error| error.to_string()).and_then(|bytes| {
                merger.add_bytes(&bytes).map_err(|error| {
                    cut_short |= error.is_limit_of_the_whole();
                    error.to_string()
                })
            });
            match added {
                Ok(()) => profiles += 1,
                Err(error) if cut_short => {
                    tracing::warn!(profiles, error, "merging of stored profiles stopped early");
                    break;
                }
                Err(error) => {
                    unreadable += 1;
                    let path = file_names::profile_path(&self.dir, &reference);
                    tracing::error!(path = %path.display(), error, "stored profile left out");
                }
            }
        }
        Merged { profile: merger.finish(), profiles, unreadable, cut_short }
    }
}

fn matching<'a>(
    series: impl Iterator<Item = &'a SeriesEntry>,
    matchers: &'a [Matcher],
) -> impl Iterator<Item = &'a SeriesEntry> {
    series.filter(|series| matchers.iter().all(|matcher| matcher.matches(&series.labels)))
}

fn info(series: &SeriesEntry, range: TimeRange) -> Option<SeriesInfo> {
    let mut entries = series.entries().filter(|entry| range.holds(entry)).peekable();
    let first = entries.peek()?.start;
    let mut info = SeriesInfo {
        fingerprint: series.fingerprint.to_string(),
        labels: series.labels.clone(),
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
