//! Choice of the profiles of an answer that are read as sums.

use crate::export::collector::sums::stored_sum::{self, StoredSum, StoredSumError, SumDetail};
use crate::export::store::{ProfileRef, Store, SumPeriod, TimeRange};

/// Profiles, oldest first, at least one and of one series, of which there may be a sum.
pub(super) struct SummedProfiles<'a> {
    pub(super) profiles: Vec<&'a ProfileRef>,
    pub(super) period: SumPeriod,
    pub(super) bytes: u64,
}

/// A file that is read.
pub(super) enum FileToRead<'a> {
    Sum(SummedProfiles<'a>),
    One(&'a ProfileRef),
}

impl<'a> FileToRead<'a> {
    pub(super) fn first(&self) -> &'a ProfileRef {
        match self {
            Self::Sum(sum) => sum.profiles[0],
            Self::One(profile) => profile,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Sum(sum) => sum.bytes,
            Self::One(profile) => profile.bytes,
        }
    }
}

/// Divides the profiles of a series, oldest first, into those that sums of these lengths stand for,
/// the longest first, and all others. A sum stands only for a period that lies in the range as a
/// whole.
pub(super) fn divide<'a>(
    store: &Store,
    of_series: &[&'a ProfileRef],
    range: TimeRange,
    lengths: &[i64],
) -> Vec<FileToRead<'a>> {
    let mut items = Vec::new();
    let mut rest = of_series;
    while let Some(first) = rest.first() {
        let found = lengths.iter().find_map(|length| {
            let period = SumPeriod::of(first.start, *length);
            let TimeRange { start, end } = period.range();
            let is_inside = range.start <= start && end <= range.end;
            let bytes = is_inside.then(|| store.sum_bytes(&first.fingerprint, period)).flatten()?;
            Some((period, bytes))
        });
        let Some((period, bytes)) = found else {
            items.push(FileToRead::One(first));
            rest = &rest[1..];
            continue;
        };
        let end = period.range().end;
        let (parts, others) = rest.split_at(rest.partition_point(|profile| profile.start < end));
        items.push(FileToRead::Sum(SummedProfiles { profiles: parts.to_vec(), period, bytes }));
        rest = others;
    }
    items
}

/// Reads a sum; `None` where the profiles themselves have to be read.
pub(super) fn read_sum(store: &Store, sum: &SummedProfiles<'_>, detail: SumDetail) -> Option<StoredSum> {
    let fingerprint = &sum.profiles.first()?.fingerprint;
    let file = store
        .open_sum(fingerprint, sum.period)
        .map_err(|error| StoredSumError::Unreadable(error.to_string()));
    let parsed = file.and_then(|file| stored_sum::parse(file, &sum.profiles, detail));
    parsed
        .inspect_err(|error| {
            tracing::debug!(%error, "profiles are read instead of their sum");
            // Not for other profiles: one may have come or gone since the index was asked.
            if matches!(error, StoredSumError::Unreadable(_)) {
                store.remove_broken_sum(fingerprint, sum.period);
            }
        })
        .ok()
}
