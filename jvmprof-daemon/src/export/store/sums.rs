//! Sums of the profiles of one series and one period, beside the profiles.
//!
//! ```text
//! DIR/sums/<fingerprint>/<start>-<length>-<number>-<digest>.sum.gz
//! ```
//! A sum is in the index only as long as the profiles of its period are those that it was made of:
//! the digest in its name says which ones. Whoever adds a profile to a period or removes one of it
//! removes its sums first; what a crash leaves behind doesn't fit the digest any more. The folder
//! is one that earlier versions don't read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::index::{ProfileEntry, SeriesEntry};
use super::staged_files::{self, StagedFile};
use super::types::{ProfileRef, SumEntry, SumPeriod, TimeRange, UnixNanos};
use super::{Store, StoreError, file_names};

const NANOS: i64 = 1_000_000_000;

/// Lengths of periods in nanoseconds, the longest first. Periods begin at multiples of them.
pub const SUM_PERIODS: [i64; 2] = [3_600 * NANOS, 300 * NANOS];

/// Fewer profiles aren't summed: reading them costs as much.
const MIN_PARTS: usize = 4;

const SUM: &str = ".sum.gz";

/// Profiles that have no sum yet.
#[derive(Debug)]
pub struct MissingSum {
    pub period: SumPeriod,
    /// Oldest first, of one series.
    pub parts: Vec<ProfileRef>,
}

fn sums_dir(dir: &Path, fingerprint: &str) -> PathBuf {
    dir.join("sums").join(fingerprint)
}

fn sum_name(entry: &SumEntry) -> String {
    let SumPeriod { start, length } = entry.period;
    format!("{}-{length}-{}-{:016x}{SUM}", start.0, entry.number, entry.digest)
}

fn parse_sum_name(name: &str, bytes: u64) -> Option<SumEntry> {
    let mut parts = name.strip_suffix(SUM)?.rsplitn(4, '-');
    let digest = u64::from_str_radix(parts.next()?, 16).ok()?;
    let number = parts.next()?.parse().ok()?;
    let length = parts.next()?.parse().ok()?;
    let period = SumPeriod { start: UnixNanos(parts.next()?.parse().ok()?), length };
    let entry = SumEntry { period, number, digest, bytes };
    (SUM_PERIODS.contains(&length)
        && SumPeriod::of(period.start, length) == period
        && sum_name(&entry) == name)
        .then_some(entry)
}

/// FNV-1a, 64 bits, of what the index knows of profiles.
fn digest<'a>(parts: impl Iterator<Item = &'a ProfileEntry>) -> u64 {
    let words = parts.flat_map(|part| {
        [part.start.0.cast_unsigned(), part.number, part.duration_ns, part.samples, part.bytes]
    });
    let bytes = words.flat_map(u64::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Store {
    /// Returns up to `max` periods that ended before `until` and have profiles of a series but no
    /// sum, oldest first. Nothing if this store isn't its directory's writer.
    ///
    /// The period in which the store begins isn't among them: its profiles are the next to be
    /// removed.
    pub fn missing_sums(&self, until: UnixNanos, max: usize) -> Vec<MissingSum> {
        if self.writer.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Vec::new();
        }
        let state = self.state();
        let Some(oldest) = state.index.oldest() else { return Vec::new() };
        let mut missing = Vec::new();
        for series in state.index.series() {
            for length in SUM_PERIODS {
                let mut from = oldest.start;
                while let Some(first) = series.entries_from(from).next() {
                    let period = SumPeriod::of(first.start, length);
                    let range = period.range();
                    from = range.end;
                    if range.end > until {
                        break;
                    }
                    let is_whole = period.start >= oldest.start;
                    if is_whole && series.sum(period).is_none() && parts(series, period).count() >= MIN_PARTS
                    {
                        missing.push((period, series));
                    }
                }
            }
        }
        missing.sort_by_key(|(period, _)| (period.range().end, period.length));
        missing.truncate(max);
        let of = |(period, series): (SumPeriod, &SeriesEntry)| MissingSum {
            period,
            parts: parts(series, period).map(|entry| entry.reference(series)).collect(),
        };
        missing.into_iter().map(of).collect()
    }

    /// Stores the sum of these profiles; false if they aren't those of the period any more.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_sum(&self, sum: &MissingSum, bytes: &[u8]) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.become_writer(&mut writer)?;
        let Some(fingerprint) = sum.parts.first().map(|part| part.fingerprint.clone()) else {
            return Ok(false);
        };
        let entry = {
            let mut state = self.state();
            let number = state.index.take_number();
            let Some(series) = state.index.get(&fingerprint) else { return Ok(false) };
            if !parts(series, sum.period).map(|entry| entry.reference(series)).eq(sum.parts.iter().cloned()) {
                return Ok(false);
            }
            let digest = digest(parts(series, sum.period));
            SumEntry { period: sum.period, number, digest, bytes: bytes.len() as u64 }
        };
        let dir = sums_dir(&self.dir, &fingerprint);
        staged_files::create_dir(&dir)?;
        let mut staged = StagedFile::write(&dir, &sum_name(&entry), bytes)?;
        staged.sync()?;
        staged.publish()?;
        staged_files::sync_dir(&dir)?;
        self.state().index.add_sum(&fingerprint, entry);
        self.remove_over_limit();
        Ok(true)
    }

    /// Returns which of these periods of a series have a sum, with its size in bytes.
    pub fn sum_bytes(&self, fingerprint: &str, period: SumPeriod) -> Option<u64> {
        self.state().index.get(fingerprint)?.sum(period).map(|sum| sum.bytes)
    }

    /// Returns the sum of a period as it was stored.
    ///
    /// # Errors
    /// There is none, or its file is gone or can't be read.
    pub fn read_sum(&self, fingerprint: &str, period: SumPeriod) -> Result<Vec<u8>, StoreError> {
        let entry = self.state().index.get(fingerprint).and_then(|series| series.sum(period).copied());
        let dir = sums_dir(&self.dir, fingerprint);
        let path = entry.map_or(dir.clone(), |entry| dir.join(sum_name(&entry)));
        fs::read(&path).map_err(StoreError::io("read", &path))
    }

    /// Removes the sums of which a profile that begins at this time is, or would be, a part. For
    /// the writer alone.
    pub(super) fn remove_sums_of(&self, fingerprint: &str, start: UnixNanos) {
        for length in SUM_PERIODS {
            let removed = self.state().index.remove_sum(fingerprint, SumPeriod::of(start, length));
            if let Some(entry) = removed {
                let dir = sums_dir(&self.dir, fingerprint);
                staged_files::remove(&dir.join(sum_name(&entry)));
                // Fails as long as there are others.
                let _ = fs::remove_dir(&dir);
            }
        }
    }
}

fn parts(series: &SeriesEntry, period: SumPeriod) -> impl Iterator<Item = &ProfileEntry> {
    let TimeRange { start, end } = period.range();
    series.entries_from(start).take_while(move |entry| entry.start < end)
}

/// Adds the sums of a store to its index, whose profiles are known. What belongs to no profiles is
/// removed, if the caller is the writer.
pub(super) fn scan_sums(dir: &Path, index: &mut super::index::StoreIndex, is_writer: bool) {
    let Ok(folders) = fs::read_dir(dir.join("sums")) else { return };
    for folder in folders.flatten() {
        let fingerprint = folder.file_name().to_string_lossy().into_owned();
        let Ok(files) = fs::read_dir(folder.path()) else { continue };
        for file in files.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let bytes = file.metadata().map_or(0, |metadata| metadata.len());
            let entry = parse_sum_name(&name, bytes);
            let is_ours = entry.is_some() || name.ends_with(file_names::TEMPORARY);
            let fits = |entry: &SumEntry| {
                let series = index.get(&fingerprint);
                series.is_some_and(|series| digest(parts(series, entry.period)) == entry.digest)
            };
            match entry.filter(fits) {
                Some(entry) => index.add_sum(&fingerprint, entry),
                None if is_ours && is_writer => staged_files::remove(&file.path()),
                None => {}
            }
        }
        if is_writer {
            // Fails as long as anything is in it.
            let _ = fs::remove_dir(folder.path());
        }
    }
}
