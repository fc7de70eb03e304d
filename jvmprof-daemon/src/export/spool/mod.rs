//! The spool: requests that could not be delivered yet, on disk, bounded, and readable whatever
//! happened to it.
//!
//! [`Spool`] is used by delivery's queue: `append` keeps a request, `take_next` and `take_retry`
//! give one that is to be sent, `complete` or `requeue` end that; several may be under way. A
//! `segment` is one file, whose bytes `segment_format` describes; `recovery` reads what an earlier
//! daemon left; `record_age` expires records by clocks that may be set.
//!
//! ```text
//! DIR/lock                      held by the one daemon that uses the spool
//! DIR/0000000000000001.spool    segments, the oldest first; see `segment_format.rs`
//! ```
//! A segment is a page of marks and, behind it, records that are only ever appended, each with
//! checksums of its own. A record is synced before [`Spool::append`] returns: a crash at any byte
//! loses what was being appended, nothing else. A record that is damaged is left out, and the next
//! one is found behind it. A mark is written, and synced where sending twice is forbidden, *before*
//! a record is sent, and again when its fate is known: after a crash it is known which record may
//! have been stored. Segments leave as a whole, when all of their records are over or when the room
//! is needed; the last one is emptied and stays, because it knows how many samples have ever been
//! here.
//!
//! The methods do blocking I/O: call them from `spawn_blocking`.

mod error;
mod record_age;
mod recovery;
mod segment;
mod segment_format;
mod sums;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use error::SpoolError;
pub use recovery::SpoolRecovery;

use crate::event_type::{EventType, SamplesByEvent};
use crate::export::directory_lock::DirectoryLock;
use record_age::{ClockReading, millis, saturating_millis};
use segment::{PendingRecord, Segment};
use segment_format::{HEAD_BYTES, HEADER_BYTES, RecordMark, SpoolRecordHeader};
use sums::WaitingSums;

/// Distance of two walks that look for old records. One that is taken is checked by itself.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Options of a spool.
#[derive(Clone, Copy, Debug)]
pub struct SpoolOptions {
    /// Limit of all files together; the oldest segments are evicted first.
    pub max_bytes: u64,
    /// Records that are older are not sent any more.
    pub max_age: Duration,
    /// True if a record is sent again of which nobody knows whether it was stored.
    pub send_again: bool,
}

/// A request to keep.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The time of its samples, about.
    pub created: SystemTime,
    /// The event that all samples were taken of.
    pub event: EventType,
    pub samples: u64,
    pub series: u32,
    /// Number of times that it wasn't taken while others were. Not on disk: the next daemon begins
    /// anew.
    pub tries: u32,
    /// At most 256 MiB.
    pub body: Vec<u8>,
}

/// The id of a record: the segment and the index of the record in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordId {
    pub segment: u64,
    pub index: u32,
}

/// A record that is being sent: to be given back by [`Spool::complete`] or [`Spool::requeue`].
#[derive(Clone, Debug)]
pub struct RecordInFlight {
    pub id: RecordId,
    pub created: SystemTime,
    pub event: EventType,
    pub samples: u64,
    pub tries: u32,
    pub body: Vec<u8>,
}

impl RecordInFlight {
    /// Its samples, as those of its event.
    pub fn samples_by_event(&self) -> SamplesByEvent {
        SamplesByEvent::of(self.event, self.samples)
    }
}

/// Numbers of samples, since the spool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolLosses {
    /// Left because the room was needed for newer ones.
    pub full: SamplesByEvent,
    /// Left because they were too old.
    pub expired: SamplesByEvent,
    /// The bytes read are not those that were written.
    pub damaged: SamplesByEvent,
}

/// An open spool.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    options: SpoolOptions,
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// The file of the last segment, if records may be appended to it.
    active: Option<File>,
    losses: SpoolLosses,
    /// The records that are being sent, and their samples. There are few.
    taken: Vec<(RecordId, SamplesByEvent)>,
    /// Samples of records that wait or are being sent.
    samples: SamplesByEvent,
    /// The records that wait, added up: a spool has tens of thousands.
    sums: WaitingSums,
    /// Time since the boot at which old records were looked for.
    expired_at_ms: u64,
    _lock: DirectoryLock,
}

impl Spool {
    /// Samples of records that are not over.
    pub fn samples(&self) -> SamplesByEvent {
        self.samples
    }

    /// The part of them in records that [`Self::take_next`] gives.
    pub fn untried_samples(&self) -> SamplesByEvent {
        self.sums.untried()
    }

    /// The part of them in records that were tried, which [`Self::take_retry`] gives.
    pub fn retry_samples(&self) -> SamplesByEvent {
        self.sums.tried()
    }

    /// Samples that were ever appended.
    pub fn appended(&self) -> SamplesByEvent {
        self.segments.back().map_or(SamplesByEvent::NONE, |segment| segment.samples_through)
    }

    /// Returns the bytes that the files take.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    pub fn losses(&self) -> SpoolLosses {
        self.losses
    }

    /// Keeps a request until it is finished. It is on disk when this returns. The oldest make room.
    ///
    /// # Errors
    /// There is no room on the disk, or the request alone is larger than the spool may be. What was
    /// there before still is.
    pub fn append(&mut self, new: &NewRecord) -> Result<(), SpoolError> {
        let bytes = (HEADER_BYTES + new.body.len()) as u64;
        self.remove_finished();
        self.expire_from_time_to_time();
        self.evict_until_fits(bytes)?;
        self.ensure_open_segment()?;
        let appended = self.appended();
        let (Some(segment), Some(file)) = (self.segments.back_mut(), &self.active) else { return Ok(()) };
        let header = SpoolRecordHeader {
            index: segment.records,
            body_bytes: u32::try_from(new.body.len()).unwrap_or(u32::MAX),
            created_ms: millis(new.created),
            event: new.event,
            samples: new.samples,
            samples_before: appended,
            series: new.series,
            body_crc: segment_format::crc(&new.body),
        };
        let before = segment.bytes;
        segment.append(file, header, &new.body, new.tries)?;
        if let Err(error) = file.sync_data() {
            segment.bytes = before;
            segment.records -= 1;
            segment.samples_through -= header.samples_by_event();
            segment.pending.pop_back();
            segment.truncate(file);
            return Err(SpoolError::io("sync", &segment.path)(error));
        }
        self.samples += header.samples_by_event();
        let id = RecordId { segment: segment.number, index: header.index };
        self.sums.add(id, header.samples_by_event(), new.tries);
        self.check_sums();
        Ok(())
    }

    /// The oldest record that wasn't tried yet, marked as being sent. `None` if there is none.
    /// Records that are damaged or too old are left out and counted.
    ///
    /// # Errors
    /// It can't be read, or the mark can't be written; the record stays.
    pub fn take_next(&mut self) -> Result<Option<RecordInFlight>, SpoolError> {
        self.take_first(|spool| spool.waiting().find(|(_, record)| record.tries == 0))
    }

    /// Returns the record that was tried least often, of those that were tried.
    ///
    /// # Errors
    /// As [`Self::take_next`].
    pub fn take_retry(&mut self) -> Result<Option<RecordInFlight>, SpoolError> {
        self.take_first(|spool| spool.sums.least_tried().and_then(|id| spool.pending(id)))
    }

    /// The record of an id, unless it is over.
    fn pending(&self, id: RecordId) -> Option<(u64, PendingRecord)> {
        let segment = self.segment(id.segment)?;
        let record = segment.pending.iter().find(|record| record.header.index == id.index)?;
        Some((id.segment, *record))
    }

    /// The records that aren't being sent, with their segments' numbers, the oldest first.
    fn waiting(&self) -> impl Iterator<Item = (u64, PendingRecord)> {
        self.segments
            .iter()
            .flat_map(|segment| segment.pending.iter().map(|record| (segment.number, *record)))
            .filter(|(segment, record)| {
                !self.is_taken(RecordId { segment: *segment, index: record.header.index })
            })
    }

    fn is_taken(&self, id: RecordId) -> bool {
        self.taken.iter().any(|(taken, _)| *taken == id)
    }

    /// Forgets that a record is being sent; gives its samples.
    fn release(&mut self, id: RecordId) -> SamplesByEvent {
        let at = self.taken.iter().position(|(taken, _)| *taken == id);
        at.map_or(SamplesByEvent::NONE, |at| self.taken.swap_remove(at).1)
    }

    fn take_first(
        &mut self,
        first: impl Fn(&Self) -> Option<(u64, PendingRecord)>,
    ) -> Result<Option<RecordInFlight>, SpoolError> {
        self.remove_finished();
        self.expire_from_time_to_time();
        loop {
            let Some((number, record)) = first(self) else { return Ok(None) };
            if self.is_old(&record, ClockReading::now()) {
                self.expire(ClockReading::now());
                continue;
            }
            let Some(segment) = self.segment(number) else { return Ok(None) };
            let id = RecordId { segment: number, index: record.header.index };
            let Some(body) = segment.body(&record)? else {
                let (event, samples) = (record.header.event.as_str(), record.header.samples);
                tracing::error!(path = %segment.path.display(), event, samples,
                    "a record of the spool is damaged and lost");
                self.losses.damaged += record.header.samples_by_event();
                self.sums.remove(id, record.header.samples_by_event(), record.tries);
                self.finish(id, RecordMark::Done { delivered: 0 });
                continue;
            };
            segment.mark(id.index, RecordMark::Sending, !self.options.send_again)?;
            let SpoolRecordHeader { created_ms, event, samples, .. } = record.header;
            self.sums.remove(id, record.header.samples_by_event(), record.tries);
            self.taken.push((id, record.header.samples_by_event()));
            self.check_sums();
            let (created, tries) = (SystemTime::UNIX_EPOCH + Duration::from_millis(created_ms), record.tries);
            return Ok(Some(RecordInFlight { id, created, event, samples, tries, body }));
        }
    }

    /// Ends a record that was taken: so many of its samples were delivered, and the rest is lost or
    /// was appended again. Its file stays until the next call that takes or appends, so that its
    /// fate can be noted elsewhere before.
    pub fn complete(&mut self, id: RecordId, delivered: u64) {
        let samples = self.release(id);
        if self.segment(id.segment).is_none() {
            self.samples -= samples;
        }
        self.finish(id, RecordMark::Done { delivered: u32::try_from(delivered).unwrap_or(u32::MAX) });
    }

    /// Gives a record back, with its tries, that was not stored for certain, or that is to be sent
    /// again anyway. Its samples are counted as lost if its segment had to leave in the meantime.
    pub fn requeue(&mut self, taken: &RecordInFlight) {
        self.release(taken.id);
        let segment = self.segments.iter_mut().find(|segment| segment.number == taken.id.segment);
        let Some(segment) = segment else {
            self.samples -= taken.samples_by_event();
            self.losses.full += taken.samples_by_event();
            return;
        };
        if let Some(record) = segment.pending.iter_mut().find(|record| record.header.index == taken.id.index)
        {
            record.tries = taken.tries;
            self.sums.add(taken.id, record.header.samples_by_event(), record.tries);
        }
        if let Err(error) = segment.mark(taken.id.index, RecordMark::Waiting, false) {
            tracing::warn!(%error, "after a crash a record of the spool would be taken for one that may be stored");
        }
    }

    /// Adds up what waits, record by record.
    fn walked_sums(&self) -> WaitingSums {
        let mut sums = WaitingSums::default();
        for (segment, record) in self.waiting() {
            let id = RecordId { segment, index: record.header.index };
            sums.add(id, record.header.samples_by_event(), record.tries);
        }
        sums
    }

    /// Compares the sums with the records, in builds with debug assertions.
    fn check_sums(&self) {
        debug_assert_eq!(self.sums, self.walked_sums(), "{}", self.dir.display());
    }

    fn segment(&self, number: u64) -> Option<&Segment> {
        let at = self.segments.binary_search_by_key(&number, |segment| segment.number).ok()?;
        self.segments.get(at)
    }

    /// Marks a record as over.
    fn finish(&mut self, id: RecordId, mark: RecordMark) {
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == id.segment) else {
            return;
        };
        if let Err(error) = segment.mark(id.index, mark, false) {
            tracing::warn!(%error, "after a crash a record of the spool would be taken for one that may be stored");
        }
        let at = segment.pending.iter().position(|record| record.header.index == id.index);
        if let Some(record) = at.and_then(|at| segment.pending.remove(at)) {
            self.samples -= record.header.samples_by_event();
        }
    }

    /// As [`Self::expire`], unless that was a moment ago.
    fn expire_from_time_to_time(&mut self) {
        let now = ClockReading::now();
        if now.boot_ms.saturating_sub(self.expired_at_ms) >= saturating_millis(EXPIRY_INTERVAL) {
            self.expire(now);
        }
    }

    fn is_old(&self, record: &PendingRecord, now: ClockReading) -> bool {
        now.age_ms(record.header.created_ms, record.appended) > saturating_millis(self.options.max_age)
    }

    /// Records that are too old leave.
    fn expire(&mut self, now: ClockReading) {
        self.expired_at_ms = now.boot_ms;
        let old = self.waiting().filter(|(_, record)| self.is_old(record, now));
        let expired: Vec<_> = old.collect();
        let samples: SamplesByEvent =
            expired.iter().map(|(_, record)| record.header.samples_by_event()).sum();
        for (segment, record) in expired {
            let id = RecordId { segment, index: record.header.index };
            self.sums.remove(id, record.header.samples_by_event(), record.tries);
            self.finish(id, RecordMark::Done { delivered: 0 });
        }
        if !samples.is_none() {
            tracing::error!(samples = samples.total(), dir = %self.dir.display(), "what waited too long in the spool is lost");
            self.losses.expired += samples;
        }
    }

    /// Removes the oldest segments until a record of this length fits.
    fn evict_until_fits(&mut self, bytes: u64) -> Result<(), SpoolError> {
        let limit = self.options.max_bytes;
        if bytes + 2 * HEAD_BYTES > limit {
            return Err(SpoolError::TooLarge { bytes, limit });
        }
        // A new segment may be needed, and an empty one may have to stay.
        while self.bytes() + bytes + HEAD_BYTES > limit {
            if self.segments.len() == 1 {
                // The last one leaves too, but not before there is one that remembers the sum.
                self.active = None;
                self.new_segment()?;
            }
            let Some(oldest) = self.segments.pop_front() else { break };
            self.evict_segment(&oldest);
        }
        Ok(())
    }

    /// Removes a segment. A record of it that is being sent is still counted until it is finished.
    fn evict_segment(&mut self, segment: &Segment) {
        let mut lost = SamplesByEvent::NONE;
        for record in &segment.pending {
            let id = RecordId { segment: segment.number, index: record.header.index };
            if !self.is_taken(id) {
                lost += record.header.samples_by_event();
                self.sums.remove(id, record.header.samples_by_event(), record.tries);
            }
        }
        remove(&segment.path);
        self.samples -= lost;
        self.losses.full += lost;
        if !lost.is_none() {
            tracing::error!(samples = lost.total(), dir = %self.dir.display(), "the spool is full: the oldest are lost");
        }
    }

    /// Sees to it that the last segment can be appended to.
    fn ensure_open_segment(&mut self) -> Result<(), SpoolError> {
        let limit = self.segment_bytes();
        let is_usable =
            self.active.is_some() && self.segments.back().is_some_and(|last| !last.is_full(limit));
        if is_usable { Ok(()) } else { self.new_segment() }
    }

    fn new_segment(&mut self) -> Result<(), SpoolError> {
        let number = self.segments.back().map_or(1, |last| last.number + 1);
        let (segment, file) = Segment::create(&self.dir, number, self.appended())?;
        recovery::sync_dir(&self.dir)?;
        self.segments.push_back(segment);
        self.active = Some(file);
        Ok(())
    }

    /// An eighth of the spool at most, so that not too much leaves at once.
    fn segment_bytes(&self) -> u64 {
        (self.options.max_bytes / 8).clamp(HEAD_BYTES, 8 << 20)
    }

    /// Removes segments at the front all of whose records are over; the last one is emptied.
    fn remove_finished(&mut self) {
        while self.segments.len() > 1 && self.segments.front().is_some_and(|first| first.pending.is_empty()) {
            if let Some(first) = self.segments.pop_front() {
                remove(&first.path);
            }
        }
        let Some(last) = self.segments.front_mut().filter(|last| last.records > 0 && last.pending.is_empty())
        else {
            return;
        };
        match last.clear() {
            Ok(file) => self.active = Some(file),
            Err(error) => {
                // Whatever it holds now, nothing is appended to it any more.
                self.active = None;
                tracing::warn!(%error, "a segment of the spool takes room for nothing");
            }
        }
    }
}

/// Removes a segment. One that can't be removed is read again by the next daemon, which finds that
/// its records are over.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a segment stays behind in the spool");
    }
}
