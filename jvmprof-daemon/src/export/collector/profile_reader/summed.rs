//! Which profiles of an answer are read as sums.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::export::collector::sums::stored_sum::{self, StoredSum, StoredSumError};
use crate::export::store::{ProfileRef, SUM_PERIODS, Store, SumPeriod, TimeRange};

/// Threads that read sums for one request.
const MAX_THREADS: usize = 4;

/// Profiles, oldest first and of one series, of which there may be a sum.
pub(super) struct SummedProfiles<'a> {
    pub(super) profiles: Vec<&'a ProfileRef>,
    period: SumPeriod,
    pub(super) bytes: u64,
}

/// Divides profiles, oldest first, into those that sums stand for and all others. A sum stands only
/// for a period that lies in the range as a whole.
pub(super) fn divide<'a>(
    store: &Store,
    profiles: &'a [ProfileRef],
    range: TimeRange,
) -> (Vec<SummedProfiles<'a>>, Vec<&'a ProfileRef>) {
    // In an order that is always the same: it decides among equals what a page has room for.
    let mut by_series: BTreeMap<&str, Vec<&ProfileRef>> = BTreeMap::new();
    for profile in profiles {
        by_series.entry(&profile.fingerprint).or_default().push(profile);
    }
    let (mut summed, mut single) = (Vec::new(), Vec::new());
    for (fingerprint, of_series) in by_series {
        let mut rest = of_series.as_slice();
        while let Some(first) = rest.first() {
            let found = SUM_PERIODS.iter().find_map(|length| {
                let period = SumPeriod::of(first.start, *length);
                let TimeRange { start, end } = period.range();
                let is_inside = range.start <= start && end <= range.end;
                let bytes = is_inside.then(|| store.sum_bytes(fingerprint, period)).flatten()?;
                Some((period, bytes))
            });
            let Some((period, bytes)) = found else {
                single.push(*first);
                rest = &rest[1..];
                continue;
            };
            let end = period.range().end;
            let (parts, others) = rest.split_at(rest.partition_point(|profile| profile.start < end));
            summed.push(SummedProfiles { profiles: parts.to_vec(), period, bytes });
            rest = others;
        }
    }
    (summed, single)
}

/// Hands over every sum, read on several threads; `None` where the profiles themselves have to be
/// read.
pub(super) fn for_each_sum<E>(
    store: &Store,
    summed: &[SummedProfiles<'_>],
    mut take: impl FnMut(&SummedProfiles<'_>, Option<StoredSum>) -> Result<(), E>,
) -> Result<(), E> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    thread::scope(|scope| {
        let receivers: Vec<_> = (0..threads.min(summed.len()))
            .map(|first| {
                let (sender, receiver) = sync_channel(0);
                let own = summed.iter().skip(first).step_by(threads);
                let send = move || {
                    for sum in own {
                        if sender.send(read(store, sum)).is_err() {
                            return;
                        }
                    }
                };
                if let Err(error) = thread::Builder::new().spawn_scoped(scope, send) {
                    tracing::warn!(%error, "no thread to read sums ahead");
                }
                receiver
            })
            .collect();
        for (sum, receiver) in summed.iter().zip(receivers.iter().cycle()) {
            take(sum, receiver.recv().unwrap_or_else(|_| read(store, sum)))?;
        }
        Ok(())
    })
}

fn read(store: &Store, sum: &SummedProfiles<'_>) -> Option<StoredSum> {
    let fingerprint = &sum.profiles.first()?.fingerprint;
    let bytes = store
        .read_sum(fingerprint, sum.period)
        .map_err(|error| StoredSumError::Unreadable(error.to_string()));
    let parsed = bytes.and_then(|bytes| stored_sum::parse(&bytes, &sum.profiles));
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
