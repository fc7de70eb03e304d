//! A sink's counts on disk, so that the sums hold beyond the end of a daemon that was killed.
//!
//! The file holds two slots of 16 KiB, written in turn and each with a checksum: whenever the
//! writer dies, one is whole. It has its full length from the beginning, so that a full disk
//! doesn't matter. It isn't synced: what was written outlives the process, and a power cut costs
//! the last seconds.
//!
//! A slot is a checksum, a length, and an entry as JSON, with its version. Version 1 had slots of 4
//! KiB and no counts by event: its numbers are read as samples of CPU time, which was all that was
//! sampled by default. Version 2 had slots of 8 KiB and knew a single record in transit.
//!
//! Daemons of earlier versions don't read entries of this one, and begin a sum of their own in the
//! first slot. So that none of them finds what it had written long ago, what is left of them is
//! erased as soon as an entry of this version is there. Beside an entry that was written after that
//! ([`LedgerEntry::is_alone`]), those of an earlier version are later than it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::counts::DeliveryCounts;
use crate::event_type::SamplesByEvent;
use crate::export::spool::{RecordId, SpoolError, SpoolRecovery};

const NAME: &str = "ledger";
/// The version of entries that are written; later ones aren't read.
const VERSION: u32 = 3;
const SLOT_BYTES: usize = 16_384;
/// Distance of slots in version 1, a divisor of those since: where an entry may begin.
const OLD_SLOT_BYTES: usize = 4096;
const FILE_MODE: u32 = 0o640;
/// Offset of the entries of earlier versions: in slots of 4 or 8 KiB, in place of the first one.
const EARLIER_BYTES: usize = SLOT_BYTES;

/// The counts of a sink at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LedgerEntry {
    /// 0 in the first version, which didn't write it.
    pub(super) version: u32,
    /// Grows with each entry.
    pub(super) sequence: u64,
    /// No entry of an earlier version was left in the file when this was written.
    pub(super) is_alone: bool,
    /// All runs before this one.
    pub earlier: DeliveryCounts,
    pub run: DeliveryCounts,
    /// Samples that were taken since this daemon's start.
    pub taken: SamplesByEvent,
    /// The part of them that the daemon has taken itself, and not the kernel program: of threads
    /// that still waited.
    pub taken_by_daemon: SamplesByEvent,
    /// The part of them that was lost before it could be handed over, and counted.
    pub lost_before: SamplesByEvent,
    /// The part of them that was handed over to sinks that settings have replaced by this one.
    pub handed_over_before: SamplesByEvent,
    /// The sink was closed in good order: nothing of it is in memory any more.
    pub is_closed: bool,
    /// Samples ever appended to the spool.
    pub(super) appended: SamplesByEvent,
    /// The records of the spool that are being sent, and their samples.
    pub(super) in_transit: Vec<(RecordId, SamplesByEvent)>,
    /// The same in version 2, which sent one at a time.
    #[serde(rename = "sending", skip_serializing)]
    pub(super) only_in_transit: Option<(RecordId, SamplesByEvent)>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    file: File,
    sequence: u64,
    /// Offset of the slot that isn't needed any more.
    next: u64,
    /// Entries of earlier versions may be left.
    has_earlier: bool,
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
        if last.is_none() && bytes.iter().any(|byte| *byte != 0) {
            tracing::error!(path = %path.display(), "the ledger holds no entry that this version can read: the sums begin anew");
        }
        if bytes.len() < 2 * SLOT_BYTES {
            bytes.resize(2 * SLOT_BYTES, 0);
            // Without space the next entry has none either, which is reported then.
            if let Err(error) = file.write_all_at(&bytes, 0) {
                tracing::error!(path = %path.display(), %error, "the ledger can't be made larger");
            }
        }
        let sequence = last.as_ref().map_or(0, |(_, entry)| entry.sequence);
        // Those of the versions before lie in the first one.
        let next = last.as_ref().map_or(0, |(at, _)| if *at < SLOT_BYTES { SLOT_BYTES as u64 } else { 0 });
        let has_earlier = entries(&bytes).any(|(_, entry)| entry.version < VERSION);
        Ok((Self { path, file, sequence, next, has_earlier }, last.map(|(_, entry)| entry)))
    }

    pub(super) fn write(&mut self, entry: &LedgerEntry) -> Result<(), SpoolError> {
        self.sequence += 1;
        let (version, sequence, is_alone) = (VERSION, self.sequence, !self.has_earlier);
        let slot = encode(&LedgerEntry { version, sequence, is_alone, ..entry.clone() })
            .map_err(|error| SpoolError::io("write", &self.path)(error.into()))?;
        if slot.len() > SLOT_BYTES {
            return Err(SpoolError::io("write", &self.path)(io::ErrorKind::FileTooLarge.into()));
        }
        self.file.write_all_at(&slot, self.next).map_err(SpoolError::io("write", &self.path))?;
        let from = if self.next == 0 { slot.len() } else { 0 };
        self.next = if self.next == 0 { SLOT_BYTES as u64 } else { 0 };
        if !self.has_earlier {
            return Ok(());
        }
        let erased = self.file.write_all_at(&vec![0; EARLIER_BYTES - from], from as u64);
        erased.map_err(SpoolError::io("erase earlier entries of", &self.path))?;
        self.has_earlier = false;
        // And entries that say so, in both slots: an earlier version would write over the first.
        self.write(entry)?;
        self.write(entry)
    }
}

/// Checksum, length, JSON.
fn encode(entry: &LedgerEntry) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(entry)?;
    let mut slot = vec![0; 8];
    slot[0..4].copy_from_slice(&crc32fast::hash(&json).to_le_bytes());
    slot[4..8].copy_from_slice(&u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
    // About 1.5 KB; 10 KB with the most records in transit, if every number had 20 digits. What an
    // earlier entry left behind it isn't read.
    slot.extend(json);
    Ok(slot)
}

fn decode(slot: &[u8]) -> Option<LedgerEntry> {
    let (crc, rest) = slot.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let json = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if json.is_empty() || crc32fast::hash(json) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut entry: LedgerEntry = serde_json::from_slice(json).ok()?;
    entry.in_transit.extend(entry.only_in_transit.take());
    (entry.version <= VERSION).then_some(entry)
}

/// The entries that this version can read, and their offsets.
fn entries(bytes: &[u8]) -> impl Iterator<Item = (usize, LedgerEntry)> {
    let slots = (0..bytes.len()).step_by(OLD_SLOT_BYTES);
    slots.filter_map(|at| Some((at, decode(&bytes[at..])?)))
}

/// The last entry and its offset.
fn last_entry(bytes: &[u8]) -> Option<(usize, LedgerEntry)> {
    // An earlier version that came after this one has numbered its entries anew.
    let came_after = entries(bytes).any(|(_, entry)| entry.is_alone);
    let is_later = |entry: &LedgerEntry| came_after && entry.version < VERSION;
    entries(bytes).max_by_key(|(_, entry)| (is_later(entry), entry.sequence))
}

/// The last entry of the ledger in a spool's folder, whoever writes to it.
///
/// # Errors
/// The file can't be read.
pub fn read(dir: &Path) -> std::io::Result<Option<LedgerEntry>> {
    Ok(last_entry(&std::fs::read(dir.join(NAME))?).map(|(_, entry)| entry))
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
        let before = if self.is_closed { SamplesByEvent::NONE } else { self.taken.saturating_sub(gone) };
        total.handed_over += before;
        let moved = found.appended.saturating_sub(self.appended).min(self.run.waiting);
        let waiting = self.run.waiting - moved;
        let in_flight = self.run.in_flight.min(waiting);
        total.losses.possibly_lost += in_flight;
        total.losses.killed += before + waiting - in_flight;
        (total.waiting, total.in_flight) = (SamplesByEvent::NONE, SamplesByEvent::NONE);

        let mut expected = self.run.spooled + moved;
        for (id, samples) in &self.in_transit {
            let Some((_, delivered)) = found.finished.iter().find(|(finished, _)| finished == id) else {
                continue;
            };
            let (samples, delivered) = (*samples, (*delivered).min(*samples));
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
    use crate::event_type::EventType;
    use crate::export::delivery::counts::Losses;
    use crate::export::delivery::options::MAX_CONCURRENCY;

    const OLD: &[u8] = include_bytes!("../../../tests/fixtures/spool-version-1/ledger");

    fn cpu(samples: u64) -> SamplesByEvent {
        SamplesByEvent::of(EventType::Cpu, samples)
    }

    /// Returns as many samples of CPU time, and twice as many allocations.
    fn both(samples: u64) -> SamplesByEvent {
        cpu(samples) + SamplesByEvent::of(EventType::Allocation, 2 * samples)
    }

    fn entry() -> LedgerEntry {
        let run = DeliveryCounts {
            found: both(10),
            handed_over: both(100),
            delivered: both(50),
            losses: Losses { refused: both(5), ..Losses::default() },
            spooled: both(25),
            waiting: both(30),
            in_flight: both(12),
            ..DeliveryCounts::default()
        };
        let earlier =
            DeliveryCounts { handed_over: both(10), spooled: both(10), ..DeliveryCounts::default() };
        LedgerEntry {
            earlier,
            run,
            taken: both(120),
            lost_before: both(1),
            appended: both(200),
            ..LedgerEntry::default()
        }
    }

    fn taken(entry: Option<LedgerEntry>) -> Option<SamplesByEvent> {
        entry.map(|entry| entry.taken)
    }

    #[test]
    fn the_last_whole_entry_is_found_whatever_happened_to_the_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut ledger, none) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(none, None);
        for taken in 1..=5 {
            ledger.write(&LedgerEntry { taken: both(taken), ..entry() }).expect("written");
        }
        drop(ledger);
        let whole = std::fs::read(dir.path().join(NAME)).expect("readable");
        assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(5)));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let (_, last) = last_entry(&damaged).expect("the other slot is whole");
            assert!(last.taken == both(4) || last.taken == both(5), "byte {at}: {last:?}");
        }
        // And the next daemon goes on behind it.
        let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(taken(last), Some(both(5)));
        ledger.write(&LedgerEntry { taken: both(6), ..entry() }).expect("written");
        assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(6)));
        let both_slots = std::fs::read(dir.path().join(NAME)).expect("readable");
        let other = if both_slots[..SLOT_BYTES] == whole[..SLOT_BYTES] { 0 } else { SLOT_BYTES };
        let kept = decode(&both_slots[other..]).expect("the entry before is still there");
        assert_eq!(kept.taken, both(5));
    }

    #[test]
    fn the_first_version_is_read_as_cpu_time_and_erased_when_the_next_entry_is_there() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(NAME), OLD).expect("written");
        let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
        let last = last.expect("an entry");
        assert_eq!(
            (last.sequence, last.taken, last.lost_before, last.appended),
            (21, cpu(30), cpu(2), cpu(20))
        );
        let total = last.total();
        assert_eq!((total.handed_over, total.delivered, total.spooled), (cpu(24), cpu(3), cpu(20)));
        assert_eq!((total.losses.refused, total.unaccounted()), (cpu(1), 0));
        ledger.write(&LedgerEntry { taken: both(31), ..last.clone() }).expect("written");
        assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(31)));
        for taken_then in 32..36 {
            ledger.write(&LedgerEntry { taken: both(taken_then), ..last.clone() }).expect("written");
            assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(taken_then)));
        }
    }

    #[test]
    fn the_record_that_version_2_was_sending_is_known() {
        let sending = (RecordId { segment: 3, index: 4 }, both(7));
        let mut json = serde_json::to_value(LedgerEntry { version: 2, ..entry() }).expect("JSON");
        let fields = json.as_object_mut().expect("an object");
        fields.remove("in_transit");
        fields.insert("sending".to_owned(), serde_json::to_value(sending).expect("JSON"));
        let text = json.to_string();
        let mut slot = crc32fast::hash(text.as_bytes()).to_le_bytes().to_vec();
        slot.extend((text.len() as u32).to_le_bytes());
        slot.extend(text.bytes());
        let read = decode(&slot).expect("readable");
        assert_eq!((read.in_transit, read.run), (vec![sending], entry().run));
    }

    /// The slot of an entry of version 2.
    fn slot_of_version_2(entry: &LedgerEntry) -> Vec<u8> {
        let json = serde_json::to_value(LedgerEntry { version: 2, ..entry.clone() }).expect("JSON");
        let mut fields = json.as_object().expect("an object").clone();
        fields.remove("in_transit");
        fields.remove("is_alone");
        let text = serde_json::Value::from(fields).to_string();
        let mut slot = crc32fast::hash(text.as_bytes()).to_le_bytes().to_vec();
        slot.extend((text.len() as u32).to_le_bytes());
        slot.extend(text.bytes());
        slot
    }

    /// Writes entries as a daemon of version 2: it goes on behind the last entry that it can read,
    /// and in its first slot if there is none. Gives the number of that entry.
    fn write_as_version_2(path: &Path, count: u64, entry: &LedgerEntry) -> Option<u64> {
        const SLOT: usize = 8192;
        let bytes = std::fs::read(path).expect("readable");
        let own = [0, SLOT].into_iter().filter_map(|at| Some((at, decode(bytes.get(at..)?)?)));
        let last = own.filter(|(_, entry)| entry.version <= 2).max_by_key(|(_, entry)| entry.sequence);
        let mut at = last.as_ref().map_or(0, |(at, _)| if *at == 0 { SLOT } else { 0 });
        let found = last.map(|(_, entry)| entry.sequence);
        let file = OpenOptions::new().write(true).open(path).expect("writable");
        for sequence in (found.unwrap_or(0) + 1..).take(count as usize) {
            let slot = slot_of_version_2(&LedgerEntry { sequence, taken: cpu(sequence), ..entry.clone() });
            file.write_all_at(&slot, at as u64).expect("written");
            at = SLOT - at;
        }
        found
    }

    #[test]
    fn an_older_daemon_that_comes_between_begins_anew_and_what_it_wrote_is_what_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(NAME);
        std::fs::write(&path, vec![0; 2 * 8192]).expect("written");
        // Version 2 first, as it was before the update: its sums go on.
        assert_eq!(write_as_version_2(&path, 1000, &entry()), None);
        let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(taken(last), Some(cpu(1000)));
        for number in 1..=4 {
            ledger.write(&LedgerEntry { taken: both(number), ..entry() }).expect("written");
            assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(number)));
        }
        drop(ledger);
        // And back: it finds nothing, neither what this version wrote nor its own old sums.
        for entries in 1..=3 {
            assert_eq!(write_as_version_2(&path, entries, &entry()), None);
            let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
            assert_eq!(taken(last), Some(cpu(entries)), "those of the daemon that ran last");
            // A kill right after the first entry of this version, and then some more.
            for number in 1..=entries {
                ledger.write(&LedgerEntry { taken: both(number), ..entry() }).expect("written");
                assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(number)));
            }
        }
    }

    #[test]
    fn a_daemon_killed_between_its_first_entry_and_the_erasure_has_written_the_last_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(NAME);
        std::fs::write(&path, vec![0; 2 * 8192]).expect("written");
        write_as_version_2(&path, 7, &entry());
        let earlier = std::fs::read(&path).expect("readable");
        // Its first entry is the eighth, behind those of the earlier version.
        let first = LedgerEntry { version: VERSION, sequence: 8, taken: both(8), ..entry() };
        let mut bytes = earlier;
        bytes.resize(2 * SLOT_BYTES, 0);
        let slot = encode(&first).expect("JSON");
        bytes[SLOT_BYTES..SLOT_BYTES + slot.len()].copy_from_slice(&slot);
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(8)));
        let (mut ledger, last) = Ledger::open(dir.path()).expect("opens");
        assert_eq!(taken(last), Some(both(8)));
        ledger.write(&LedgerEntry { taken: both(9), ..entry() }).expect("written");
        assert_eq!(taken(read(dir.path()).expect("readable")), Some(both(9)));
    }

    #[test]
    fn an_entry_of_a_later_version_is_not_taken_for_one_of_this() {
        let slot = encode(&LedgerEntry { version: VERSION + 1, ..entry() }).expect("JSON");
        assert_eq!(decode(&slot), None);
    }

    #[test]
    fn every_entry_fits_into_its_slot() {
        let samples = SamplesByEvent::of(EventType::Allocation, 3);
        let in_transit = vec![(RecordId { segment: 1, index: 2 }, samples); MAX_CONCURRENCY];
        // A map for each number of samples, with each event in it.
        let huge = serde_json::to_string(&LedgerEntry { in_transit, ..entry() }).expect("JSON");
        let each = serde_json::to_string(&both(1)).expect("JSON").len();
        let empty = huge.matches("{}").count() * each;
        let digits = huge.bytes().filter(u8::is_ascii_digit).count();
        let numbers = huge.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty()).count()
            + huge.matches("{}").count() * EventType::ALL.len();
        assert!(huge.len() + empty - digits + numbers * 20 < SLOT_BYTES - 8, "{huge}");
    }

    #[test]
    fn what_a_killed_daemon_held_is_accounted_for() {
        assert_eq!((entry().run.unaccounted(), entry().total().unaccounted()), (0, 0));
        let as_noted =
            || SpoolRecovery { waiting: both(25), appended: both(200), ..SpoolRecovery::default() };
        // 19 weren't handed over yet.
        let closed = entry().reconcile(&as_noted());
        assert_eq!((closed.losses.killed, closed.losses.possibly_lost), (both(19 + 18), both(12)));
        assert_eq!((closed.spooled, closed.unaccounted()), (both(25), 0));
        // 10 of these had been handed over to the sink that was there before.
        let closed = LedgerEntry { handed_over_before: both(10), ..entry() }.reconcile(&as_noted());
        assert_eq!((closed.losses.killed, closed.unaccounted()), (both(9 + 18), 0));
        // The sink was closed, and the daemon went on.
        let closed = LedgerEntry { is_closed: true, ..entry() }.reconcile(&as_noted());
        assert_eq!((closed.losses.killed, closed.unaccounted()), (both(18), 0));
        // 30 had got into the spool since.
        let moved = SpoolRecovery { waiting: both(55), appended: both(230), ..as_noted() };
        let closed = entry().reconcile(&moved);
        assert_eq!((closed.losses.killed, closed.spooled), (both(19), both(55)));
        assert_eq!((closed.losses.possibly_lost, closed.unaccounted()), (SamplesByEvent::NONE, 0));
        // A record was being sent, and isn't sent again.
        let closed =
            entry().reconcile(&SpoolRecovery { waiting: both(18), interrupted: both(7), ..as_noted() });
        assert_eq!(closed.losses.possibly_lost, both(12 + 7));
        assert_eq!((closed.losses.spool_damaged, closed.unaccounted()), (SamplesByEvent::NONE, 0));
        // Of three, two answers had come: one record was stored, of the other a part.
        let id = |index| RecordId { segment: 1, index };
        let in_transit = vec![(id(0), both(7)), (id(1), both(2)), (id(2), both(5))];
        let finished = vec![(id(2), both(4)), (id(0), both(7))];
        let found = SpoolRecovery { waiting: both(11), finished, interrupted: both(2), ..as_noted() };
        let closed = LedgerEntry { in_transit, ..entry() }.reconcile(&found);
        assert_eq!((closed.delivered, closed.losses.possibly_lost), (both(50 + 11), both(12 + 1 + 2)));
        assert!(closed.losses.spool_damaged.is_none(), "{closed:?}");
        assert_eq!(closed.unaccounted(), 0);
        // Somebody removed the files.
        let closed = entry().reconcile(&SpoolRecovery::default());
        assert_eq!((closed.losses.spool_damaged, closed.unaccounted()), (both(25), 0));
        assert!(closed.spooled.is_none());
    }

    #[test]
    fn a_loss_of_one_event_is_not_made_up_by_another() {
        // An allocation's record was being sent; of CPU time one record was appended since.
        let allocated = |samples| SamplesByEvent::of(EventType::Allocation, samples);
        let found = SpoolRecovery {
            waiting: both(25) + cpu(30) - allocated(8),
            interrupted: allocated(8),
            appended: both(200) + cpu(30),
            ..SpoolRecovery::default()
        };
        let closed = entry().reconcile(&found);
        assert_eq!(closed.losses.possibly_lost, allocated(24 + 8));
        assert_eq!(closed.losses.killed, both(19) + allocated(36));
        assert_eq!((closed.spooled, closed.unaccounted()), (found.waiting, 0));
    }
}
