//! The index of series and profiles, in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::label_limits::label_set_bytes;
use super::types::{ProfileRef, SumEntry, SumPeriod, UnixNanos};
use crate::profile::model::LabelSet;

/// File systems allocate in blocks of this size; many profiles are smaller than one.
const BLOCK: u64 = 4096;

pub(super) fn in_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// One profile of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProfileEntry {
    pub(super) start: UnixNanos,
    /// Unique in the store; orders profiles that began at the same time.
    pub(super) number: u64,
    pub(super) duration_ns: u64,
    pub(super) samples: u64,
    pub(super) bytes: u64,
}

impl ProfileEntry {
    pub(super) fn reference(&self, series: &SeriesEntry) -> ProfileRef {
        ProfileRef {
            fingerprint: series.fingerprint.to_string(),
            start: self.start,
            duration: Duration::from_nanos(self.duration_ns),
            samples: self.samples,
            bytes: self.bytes,
            number: self.number,
        }
    }
}

/// One label set and its profiles.
#[derive(Debug)]
pub(super) struct SeriesEntry {
    pub(super) fingerprint: Arc<str>,
    pub(super) labels: Arc<LabelSet>,
    /// Of the file, in blocks.
    label_file_bytes: u64,
    entries: BTreeMap<(UnixNanos, u64), ProfileEntry>,
    sums: BTreeMap<SumPeriod, SumEntry>,
}

impl SeriesEntry {
    /// Returns the profiles, oldest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &ProfileEntry> {
        self.entries.values()
    }

    /// Returns the profiles that began at `start` or later, oldest first.
    pub(super) fn entries_from(&self, start: UnixNanos) -> impl Iterator<Item = &ProfileEntry> {
        self.entries.range((start, 0)..).map(|(_, entry)| entry)
    }

    pub(super) fn sum(&self, period: SumPeriod) -> Option<&SumEntry> {
        self.sums.get(&period)
    }
}

/// All series and profiles of a store.
#[derive(Debug, Default)]
pub(super) struct StoreIndex {
    by_fingerprint: HashMap<Arc<str>, SeriesEntry>,
    /// Every profile, oldest first: the order of removal. The series is part of it, because copied
    /// files share a number.
    by_age: BTreeSet<(UnixNanos, u64, Arc<str>)>,
    used_bytes: u64,
    /// Of the labels of all series, in memory.
    label_bytes: u64,
    next_number: u64,
}

impl StoreIndex {
    pub(super) fn series(&self) -> impl Iterator<Item = &SeriesEntry> {
        self.by_fingerprint.values()
    }

    pub(super) fn get(&self, fingerprint: &str) -> Option<&SeriesEntry> {
        self.by_fingerprint.get(fingerprint)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn label_bytes(&self) -> u64 {
        self.label_bytes
    }

    /// A number that no profile of this store has had.
    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number = self.next_number.saturating_add(1);
        number
    }

    pub(super) fn add_series(&mut self, fingerprint: &str, labels: Arc<LabelSet>, file_bytes: u64) {
        let fingerprint: Arc<str> = fingerprint.into();
        let series = SeriesEntry {
            fingerprint: Arc::clone(&fingerprint),
            labels,
            label_file_bytes: in_blocks(file_bytes),
            entries: BTreeMap::new(),
            sums: BTreeMap::new(),
        };
        self.used_bytes = self.used_bytes.saturating_add(series.label_file_bytes);
        self.label_bytes = self.label_bytes.saturating_add(label_set_bytes(&series.labels) as u64);
        if let Some(replaced) = self.by_fingerprint.insert(fingerprint, series) {
            self.subtract_labels(&replaced);
        }
    }

    fn subtract_labels(&mut self, of: &SeriesEntry) {
        self.used_bytes = self.used_bytes.saturating_sub(of.label_file_bytes);
        self.label_bytes = self.label_bytes.saturating_sub(label_set_bytes(&of.labels) as u64);
    }

    /// Adds a profile to a series that is known; nothing happens if it isn't.
    pub(super) fn add_profile(&mut self, fingerprint: &str, entry: ProfileEntry) {
        let Some(series) = self.by_fingerprint.get_mut(fingerprint) else { return };
        self.next_number = self.next_number.max(entry.number.saturating_add(1));
        self.used_bytes = self.used_bytes.saturating_add(in_blocks(entry.bytes));
        series.entries.insert((entry.start, entry.number), entry);
        self.by_age.insert((entry.start, entry.number, Arc::clone(&series.fingerprint)));
    }

    /// Adds a sum to a series that is known; nothing happens if it isn't.
    pub(super) fn add_sum(&mut self, fingerprint: &str, entry: SumEntry) {
        self.remove_sum(fingerprint, entry.period);
        let Some(series) = self.by_fingerprint.get_mut(fingerprint) else { return };
        self.next_number = self.next_number.max(entry.number.saturating_add(1));
        self.used_bytes = self.used_bytes.saturating_add(in_blocks(entry.bytes));
        series.sums.insert(entry.period, entry);
    }

    /// Forgets a sum and returns it, if it is known.
    pub(super) fn remove_sum(&mut self, fingerprint: &str, period: SumPeriod) -> Option<SumEntry> {
        let removed = self.by_fingerprint.get_mut(fingerprint)?.sums.remove(&period)?;
        self.used_bytes = self.used_bytes.saturating_sub(in_blocks(removed.bytes));
        Some(removed)
    }

    /// The profile that is to go first.
    pub(super) fn oldest(&self) -> Option<ProfileRef> {
        let (start, number, fingerprint) = self.by_age.first()?;
        let series = self.by_fingerprint.get(&**fingerprint)?;
        series.entries.get(&(*start, *number)).map(|entry| entry.reference(series))
    }

    /// Forgets a profile; true if its series has no other, and was forgotten too.
    pub(super) fn remove_profile(&mut self, profile: &ProfileRef) -> bool {
        let Some(series) = self.by_fingerprint.get_mut(&*profile.fingerprint) else { return false };
        self.by_age.remove(&(profile.start, profile.number, Arc::clone(&series.fingerprint)));
        if let Some(entry) = series.entries.remove(&(profile.start, profile.number)) {
            self.used_bytes = self.used_bytes.saturating_sub(in_blocks(entry.bytes));
        }
        series.entries.is_empty() && self.remove_series(&profile.fingerprint)
    }

    pub(super) fn remove_series_if_empty(&mut self, fingerprint: &str) {
        if self.by_fingerprint.get(fingerprint).is_some_and(|series| series.entries.is_empty()) {
            self.remove_series(fingerprint);
        }
    }

    fn remove_series(&mut self, fingerprint: &str) -> bool {
        let Some(series) = self.by_fingerprint.remove(fingerprint) else { return false };
        self.subtract_labels(&series);
        true
    }
}
