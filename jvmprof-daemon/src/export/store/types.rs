//! Times, ranges and label matchers that a store is queried by, and what queries return.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::profile::model::LabelSet;

/// Nanoseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Returns this time and `duration` later, at most the last time there is.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// A range of time from `start` up to, but without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub start: UnixNanos,
    pub end: UnixNanos,
}

impl TimeRange {
    pub const ALL: Self = Self { start: UnixNanos(i64::MIN), end: UnixNanos(i64::MAX) };

    /// Returns true if a profile that began at `start` belongs to the range: ranges side by side
    /// then share no profile and miss none.
    pub(super) fn contains(&self, start: UnixNanos) -> bool {
        self.start <= start && start < self.end
    }
}

/// One condition on a label set: the label's value must, or mustn't, be one of some values. As in
/// Prometheus, a label that isn't there has the value `""`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub values: BTreeSet<String>,
    /// None of the values matches.
    pub is_negated: bool,
}

impl Matcher {
    /// Returns a matcher of label sets in which the label has the value.
    pub fn equal(label: impl Into<String>, value: impl Into<String>) -> Self {
        Self { label: label.into(), values: [value.into()].into(), is_negated: false }
    }

    /// Returns true if the label set fulfils the condition.
    pub fn matches(&self, labels: &LabelSet) -> bool {
        self.values.contains(labels.get(&self.label).map_or("", String::as_str)) != self.is_negated
    }
}

/// A series and its profiles in a time range.
#[derive(Clone, Debug)]
pub struct SeriesInfo {
    /// Name of its folder; changes never as long as the series has profiles.
    pub fingerprint: String,
    /// `__name__` included.
    pub labels: LabelSet,
    pub profiles: usize,
    /// Sum of the first value (a count) of all samples.
    pub samples: u64,
    /// The time at which the first of these profiles began.
    pub first: UnixNanos,
    /// The time at which the last of these profiles ended.
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

impl ProfileRef {
    /// Returns what sets it apart from other profiles of the store.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The period of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SumPeriod {
    pub start: UnixNanos,
    /// Nanoseconds.
    pub length: i64,
}

impl SumPeriod {
    /// Returns the period of this length in which a time lies.
    pub fn of(time: UnixNanos, length: i64) -> Self {
        Self { start: UnixNanos(time.0.saturating_sub(time.0.rem_euclid(length))), length }
    }

    /// Returns the period's time.
    pub fn range(&self) -> TimeRange {
        TimeRange { start: self.start, end: UnixNanos(self.start.0.saturating_add(self.length)) }
    }
}

/// The file of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SumEntry {
    pub(super) period: SumPeriod,
    /// Larger than those of its profiles: no later profile gets one of these.
    pub(super) number: u64,
    /// Of all profiles of the period.
    pub(super) digest: u64,
    pub(super) bytes: u64,
}
