//! Sums of the profiles of one series and one period, beside the profiles.
//!
//! ```text
//! DIR/sums/<fingerprint>/<start>-<length>-<number>-<digest>.sum
//! ```
//! A sum is in the index only as long as the profiles of its period are those that it was made of:
//! the digest in its name says which ones. Whoever adds a profile to a period or removes one of it
//! removes its sums first; what a crash leaves behind doesn't fit the digest any more. The folder
//! is one that earlier versions don't read.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::index::{ProfileEntry, SeriesEntry, in_blocks};
use super::staged_files::{self, StagedFile};
use super::types::{ProfileRef, SumEntry, SumPeriod, TimeRange, UnixNanos};
use super::{Store, StoreError, file_names};
use crate::profile::model::LabelSet;

const NANOS: i64 = 1_000_000_000;

/// An hour in nanoseconds: longer sums are made of those of hours.
pub const HOUR: i64 = 3_600 * NANOS;

/// Lengths of periods in nanoseconds, the longest first. Periods begin at multiples of them, and
/// each consists of whole periods of the next length.
pub const SUM_PERIODS: [i64; 4] = [24 * HOUR, 6 * HOUR, HOUR, 300 * NANOS];

/// Fewer profiles aren't summed: reading them costs as much.
const MIN_PARTS: usize = 4;

/// The same of periods of the next length that have profiles, for a sum that is longer than an
/// hour: a JVM that ran for some minutes shall not have three sums of nearly the same.
const MIN_SHORTER: usize = 3;

/// A sum takes at most such a part of its profiles' bytes, or one that is longer than an hour.
const MAX_PART: u64 = 2;
const MAX_PART_OF_LONG: u64 = 10;

const SUM: &str = ".sum";

/// The version of the program that computes sums and lays them out: another version may classify
/// stacks differently, so that its sums are removed and made again.
pub const SUM_MAKER: &str = concat!("6 ", env!("CARGO_PKG_VERSION"));

/// Profiles that have no sum yet.
#[derive(Debug)]
pub struct MissingSum {
    pub period: SumPeriod,
    /// Labels of the series.
    pub labels: LabelSet,
    /// Oldest first, of one series; at least one.
    pub parts: Vec<ProfileRef>,
}

impl MissingSum {
    /// Returns the number of the newest profile: a later one makes the sum worth another try.
    pub fn newest(&self) -> Option<u64> {
        self.parts.iter().map(ProfileRef::number).max()
    }
}

/// The result of storing a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumWrite {
    Stored,
    /// The profiles of its period are others by now, or are somebody else's to sum.
    Outdated,
    /// It takes more than half of its profiles' bytes, or more than a tenth if it is longer than an
    /// hour: it isn't worth its place.
    TooLarge,
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

/// Returns the digest of a sum of these profiles.
pub fn digest_of(profiles: &[&ProfileRef]) -> u64 {
    digest(profiles.iter().map(|profile| {
        let duration_ns = u64::try_from(profile.duration.as_nanos()).unwrap_or(u64::MAX);
        let ProfileRef { start, number, samples, bytes, .. } = **profile;
        ProfileEntry { start, number, duration_ns, samples, bytes }
    }))
}

/// FNV-1a, 64 bits, of who makes sums and of what the index knows of these profiles.
fn digest(parts: impl Iterator<Item = ProfileEntry>) -> u64 {
    let words = parts.flat_map(|part| {
        [part.start.0.cast_unsigned(), part.number, part.duration_ns, part.samples, part.bytes]
    });
    let bytes = SUM_MAKER.bytes().chain(words.flat_map(u64::to_le_bytes));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Store {
    /// Returns up to `max` periods that ended before `until` and have profiles of a series but no
    /// sum, newest first; those that are longer than an hour behind all others, of whose sums
    /// theirs are made. Nothing if this store isn't its directory's writer. Left out are those
    /// that `is_refused`, which is given the series' fingerprint, the period and its newest
    /// profile's number.
    ///
    /// The period in which the store begins isn't among them: its profiles are the next to be
    /// removed.
    pub fn missing_sums(
        &self,
        until: UnixNanos,
        max: usize,
        is_refused: impl Fn(&str, SumPeriod, u64) -> bool,
    ) -> Vec<MissingSum> {
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
                    if period.start < oldest.start || series.sum(period).is_some() {
                        continue;
                    }
                    let newest = parts(series, period).map(|part| part.number).max().unwrap_or(0);
                    if has_enough_profiles(series, period) && !is_refused(&series.fingerprint, period, newest)
                    {
                        missing.push((period, series));
                    }
                }
            }
        }
        missing
            .sort_by_key(|(period, _)| (period.length.max(HOUR), Reverse(period.range().end), period.length));
        missing.truncate(max);
        let of = |(period, series): (SumPeriod, &SeriesEntry)| MissingSum {
            period,
            labels: LabelSet::clone(&series.labels),
            parts: parts(series, period).map(|entry| entry.reference(series)).collect(),
        };
        missing.into_iter().map(of).collect()
    }

    /// Stores the sum of these profiles. Nobody waits while its bytes are written.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_sum(&self, sum: &MissingSum, bytes: &[u8]) -> Result<SumWrite, StoreError> {
        let Some(first) = sum.parts.first() else { return Ok(SumWrite::Outdated) };
        let of_parts = sum.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(in_blocks(part.bytes)));
        let max_part = if sum.period.length > HOUR { MAX_PART_OF_LONG } else { MAX_PART };
        if in_blocks(bytes.len() as u64).saturating_mul(max_part) > of_parts {
            return Ok(SumWrite::TooLarge);
        }
        let Some(digest) = self.digest_of_missing(sum) else { return Ok(SumWrite::Outdated) };
        // Larger than those of its profiles.
        let number = self.state().index.take_number();
        let entry = SumEntry { period: sum.period, number, digest, bytes: bytes.len() as u64 };
        let dir = sums_dir(&self.dir, &first.fingerprint);
        staged_files::create_dir(&dir)?;
        let mut staged = StagedFile::write(&dir, &sum_name(&entry), bytes)?;
        staged.sync()?;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_none() || self.digest_of_missing(sum) != Some(digest) {
            return Ok(SumWrite::Outdated);
        }
        // The folder isn't synced: a sum whose name a power cut takes is made again.
        staged.publish()?;
        self.state().index.add_sum(&first.fingerprint, entry);
        self.remove_over_limit();
        Ok(SumWrite::Stored)
    }

    /// Returns the digest of a sum that is still missing, if its profiles are still those of its
    /// period.
    fn digest_of_missing(&self, sum: &MissingSum) -> Option<u64> {
        let state = self.state();
        let series = state.index.get(&sum.parts.first()?.fingerprint)?;
        let is_missing = series.sum(sum.period).is_none();
        let references = parts(series, sum.period).map(|entry| entry.reference(series));
        (is_missing && references.eq(sum.parts.iter().cloned()))
            .then(|| digest(parts(series, sum.period).copied()))
    }

    /// Removes a sum whose file can't be read, so that it is made again. Nothing happens if this
    /// store isn't its directory's writer, or is writing.
    pub fn remove_broken_sum(&self, fingerprint: &str, period: SumPeriod) {
        if let Ok(writer) = self.writer.try_lock()
            && writer.is_some()
        {
            self.remove_sum(fingerprint, period);
        }
    }

    /// Returns which of these periods of a series have a sum, with its size in bytes.
    pub fn sum_bytes(&self, fingerprint: &str, period: SumPeriod) -> Option<u64> {
        self.state().index.get(fingerprint)?.sum(period).map(|sum| sum.bytes)
    }

    /// Opens the sum of a period as it was stored.
    ///
    /// # Errors
    /// There is none, or its file is gone or can't be opened.
    pub fn open_sum(&self, fingerprint: &str, period: SumPeriod) -> Result<File, StoreError> {
        let entry = self.state().index.get(fingerprint).and_then(|series| series.sum(period).copied());
        let dir = sums_dir(&self.dir, fingerprint);
        let path = entry.map_or(dir.clone(), |entry| dir.join(sum_name(&entry)));
        File::open(&path).map_err(StoreError::io("open", &path))
    }

    /// Removes the sums of which a profile that begins at this time is, or would be, a part. For
    /// the writer alone.
    pub(super) fn remove_sums_of(&self, fingerprint: &str, start: UnixNanos) {
        for length in SUM_PERIODS {
            self.remove_sum(fingerprint, SumPeriod::of(start, length));
        }
    }

    fn remove_sum(&self, fingerprint: &str, period: SumPeriod) {
        let removed = self.state().index.remove_sum(fingerprint, period);
        if let Some(entry) = removed {
            let dir = sums_dir(&self.dir, fingerprint);
            staged_files::remove(&dir.join(sum_name(&entry)));
            // Fails as long as there are others.
            let _ = fs::remove_dir(&dir);
        }
    }
}

fn parts(series: &SeriesEntry, period: SumPeriod) -> impl Iterator<Item = &ProfileEntry> {
    let TimeRange { start, end } = period.range();
    series.entries_from(start).take_while(move |entry| entry.start < end)
}

/// Returns true if a period has enough profiles for a sum.
fn has_enough_profiles(series: &SeriesEntry, period: SumPeriod) -> bool {
    let shorter = SUM_PERIODS.into_iter().find(|length| period.length > HOUR && *length < period.length);
    let Some(length) = shorter else { return parts(series, period).nth(MIN_PARTS - 1).is_some() };
    let mut periods: Vec<_> = parts(series, period).map(|part| SumPeriod::of(part.start, length)).collect();
    periods.dedup();
    periods.len() >= MIN_SHORTER
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
                index.get(&fingerprint).is_some_and(|series| {
                    let is_only = series.sum(entry.period).is_none();
                    is_only && digest(parts(series, entry.period).copied()) == entry.digest
                })
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
