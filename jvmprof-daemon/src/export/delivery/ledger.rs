//! A sink's counts on disk, so that the sums hold beyond the end of a daemon that was killed.
//!
//! The file holds two slots of 4 KiB, written in turn and each with a checksum: whenever the writer
//! dies, one is whole. It has its full length from the beginning, so that a full disk doesn't
//! matter. It isn't synced: what was written outlives the process, and a power cut costs the last
//! seconds.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::counts::DeliveryCounts;
use crate::export::spool::{RecordId, SpoolError, SpoolRecovery};

const NAME: &str = "ledger";
const SLOT_BYTES: usize = 4096;
const FILE_MODE: u32 = 0o640;

/// The counts of a sink at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LedgerEntry {
    /// Grows with each entry.
    pub(super) sequence: u64,
    /// All runs before this one.
    pub earlier: DeliveryCounts,
    pub run: DeliveryCounts,
    /// Samples that the kernel program has taken since this daemon's start.
    pub taken: u64,
    /// The part of them that was lost before it could be handed over, and counted.
    pub lost_before: u64,
    /// The part of them that was handed over to sinks that settings have replaced by this one.
    pub handed_over_before: u64,
    /// The sink was closed in good order: nothing of it is in memory any more.
    pub is_closed: bool,
    /// Samples ever appended to the spool.
    pub(super) appended: u64,
    /// The record of the spool that is being sent, and its samples.
    pub(super) sending: Option<(RecordId, u64)>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    file: File,
    sequence: u64,
}

impl Ledger {
    /// Opens or makes the file; gives the last entry of an earlier daemon, if there is one.
    pub(super) fn open(dir: &Path) -> Result<(Self, Option<LedgerEntry>), SpoolError> {
        let path = dir.join(NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(SpoolError::io("open", &path))?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut bytes).map_err(SpoolError::io("read", &path))?;
        let last = last_entry(&bytes);
        if bytes.len() < 2 * SLOT_BYTES {
            bytes.resize(2 * SLOT_BYTES, 0);
            file.write_all_at(&bytes, 0).map_err(SpoolError::io("write", &path))?;
        }
        let sequence = last.map_or(0, |entry| entry.sequence);
        Ok((Self { path, file, sequence }, last))
    }

    pub(super) fn write(&mut self, entry: &LedgerEntry) -> Result<(), SpoolError> {
        self.sequence += 1;
        let slot = encode(&LedgerEntry { sequence: self.sequence, ..*entry })
            .map_err(|error| SpoolError::io("write", &self.path)(error.into()))?;
        let at = (self.sequence % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&slot, at).map_err(SpoolError::io("write", &self.path))
    }
}

/// Checksum, length, JSON.
fn encode(entry: &LedgerEntry) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(entry)?;
    let mut slot = vec![0; 8];
    slot[0..4].copy_from_slice(&crc32fast::hash(&json).to_le_bytes());
    slot[4..8].copy_from_slice(&u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
    slot.extend(json);
    // About 1.2 KB; 3.7 KB if every number had 20 digits.
    slot.resize(SLOT_BYTES, 0);
    Ok(slot)
}

fn decode(slot: &[u8]) -> Option<LedgerEntry> {
    let (crc, rest) = slot.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let json = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if json.is_empty() || crc32fast::hash(json) != u32::from_le_bytes(*crc) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn last_entry(bytes: &[u8]) -> Option<LedgerEntry> {
    bytes.chunks(SLOT_BYTES).filter_map(decode).max_by_key(|entry| entry.sequence)
}

/// The last entry of the ledger in a spool's folder, whoever writes to it.
///
/// # Errors
/// The file can't be read.
pub fn read(dir: &Path) -> std::io::Result<Option<LedgerEntry>> {
    Ok(last_entry(&std::fs::read(dir.join(NAME))?))
}

impl LedgerEntry {
    /// The sums of all runs up to this entry.
    pub fn total(&self) -> DeliveryCounts {
        self.run.with_earlier(&self.earlier)
    }

    /// Closes the books of a daemon that has ended, with what its spool turned out to hold.
    pub(super) fn reconcile(&self, found: &SpoolRecovery) -> DeliveryCounts {
        let mut total = self.total();
        // It was taken, and neither lost nor handed over: it was in that daemon's memory, unless
        // that has gone on without the sink, or had handed over everything.
        let gone = self.lost_before + self.handed_over_before + self.run.handed_over;
        let before = if self.is_closed { 0 } else { self.taken.saturating_sub(gone) };
        total.handed_over += before;
        let moved = found.appended.saturating_sub(self.appended).min(self.run.waiting);
        let waiting = self.run.waiting - moved;
        let in_flight = self.run.in_flight.min(waiting);
        total.losses.possibly_lost += in_flight;
        total.losses.killed += before + waiting - in_flight;
        (total.waiting, total.in_flight) = (0, 0);

        let mut expected = self.run.spooled + moved;
        if let (Some((_, samples)), Some(delivered)) = (self.sending, found.settled) {
            let delivered = delivered.min(samples);
            total.delivered += delivered;
            total.delivered_late += delivered;
            total.losses.possibly_lost += samples - delivered;
            expected = expected.saturating_sub(samples);
        }
        let interrupted = found.interrupted.min(expected);
        total.losses.possibly_lost += interrupted;
        expected -= interrupted;
        total.losses.spool_damaged += expected.saturating_sub(found.waiting);
        // More than was noted: a power cut took the last entries.
        total.handed_over += found.waiting.saturating_sub(expected);
        total.spooled = found.waiting;
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::delivery::counts::Losses;

    fn entry() -> LedgerEntry {
        let run = DeliveryCounts {
            found: 10,
            handed_over: 100,
            delivered: 50,
            losses: Losses { refused: 5, ..Losses::default() },
            spooled: 25,
            waiting: 30,
            in_flight: 12,
            ..DeliveryCounts::default()
        };
        let earlier = DeliveryCounts { handed_over: 10, spooled: 10, ..DeliveryCounts::default() };
        LedgerEntry { earlier, run, taken: 120, lost_before: 1, appended: 200, ..LedgerEntry::default() }
    }

    #[test]
    fn the_last_whole_entry_is_found_whatever_happened_to_the_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut ledger, none) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(none, None);
        for taken in 1..=5 {
            ledger.write(&LedgerEntry { taken, ..entry() }).expect("written");
        }
        drop(ledger);
        let whole = std::fs::read(dir.path().join(NAME)).expect("readable");
        assert_eq!(read(dir.path()).expect("readable").map(|entry| entry.taken), Some(5));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let last = last_entry(&damaged).expect("the other slot is whole");
            assert!(matches!(last.taken, 4 | 5), "byte {at}: {last:?}");
        }
        // And the next daemon goes on behind it.
        let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(last.map(|entry| entry.taken), Some(5));
        ledger.write(&LedgerEntry { taken: 6, ..entry() }).expect("written");
        assert_eq!(read(dir.path()).expect("readable").map(|entry| entry.taken), Some(6));
    }

    #[test]
    fn every_entry_fits_into_its_slot() {
        let huge = serde_json::to_string(&entry()).expect("JSON");
        let digits = huge.bytes().filter(u8::is_ascii_digit).count();
        let numbers = huge.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty()).count();
        assert!(huge.len() - digits + numbers * 20 + 100 < SLOT_BYTES - 8, "{huge}");
    }

    #[test]
    fn what_a_killed_daemon_held_is_accounted_for() {
        assert_eq!((entry().run.unaccounted(), entry().total().unaccounted()), (0, 0));
        let as_noted = SpoolRecovery { waiting: 25, appended: 200, ..SpoolRecovery::default() };
        // 19 weren't handed over yet.
        let closed = entry().reconcile(&as_noted);
        assert_eq!((closed.losses.killed, closed.losses.possibly_lost), (19 + 18, 12));
        assert_eq!((closed.spooled, closed.unaccounted()), (25, 0));
        // 10 of these had been handed over to the sink that was there before.
        let closed = LedgerEntry { handed_over_before: 10, ..entry() }.reconcile(&as_noted);
        assert_eq!((closed.losses.killed, closed.unaccounted()), (9 + 18, 0));
        // The sink was closed, and the daemon went on.
        let closed = LedgerEntry { is_closed: true, ..entry() }.reconcile(&as_noted);
        assert_eq!((closed.losses.killed, closed.unaccounted()), (18, 0));
        // 30 had got into the spool since.
        let closed = entry().reconcile(&SpoolRecovery { waiting: 55, appended: 230, ..as_noted });
        assert_eq!((closed.losses.killed, closed.losses.possibly_lost, closed.spooled), (19, 0, 55));
        assert_eq!(closed.unaccounted(), 0);
        // A record was being sent, and isn't sent again.
        let closed = entry().reconcile(&SpoolRecovery { waiting: 18, interrupted: 7, ..as_noted });
        assert_eq!((closed.losses.possibly_lost, closed.losses.spool_damaged), (12 + 7, 0));
        assert_eq!(closed.unaccounted(), 0);
        // Its answer had come.
        let sending = LedgerEntry { sending: Some((RecordId { segment: 1, index: 0 }, 7)), ..entry() };
        let closed = sending.reconcile(&SpoolRecovery { waiting: 18, settled: Some(7), ..as_noted });
        assert_eq!((closed.delivered, closed.losses.possibly_lost), (57, 12));
        assert_eq!(closed.unaccounted(), 0);
        // Somebody removed the files.
        let closed = entry().reconcile(&SpoolRecovery::default());
        assert_eq!((closed.losses.spool_damaged, closed.spooled, closed.unaccounted()), (25, 0, 0));
    }
}
