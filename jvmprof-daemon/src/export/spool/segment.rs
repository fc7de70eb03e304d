//! One file of the spool.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::SpoolError;
use super::record_age::ClockReading;
use super::segment_format::{
    self, HEAD_BYTES, HEADER_BYTES, MARK_BYTES, MARKER, MAX_RECORDS, RecordMark, SpoolRecordHeader,
    decode_head, head,
};
use crate::event_type::SamplesByEvent;

const SUFFIX: &str = ".spool";
/// Profiles reveal what a host runs: not for everyone on it.
const FILE_MODE: u32 = 0o640;
/// Bytes that are read at once while the next record is searched after damage.
const SEARCHED: usize = 1 << 16;

/// A record that isn't over yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRecord {
    pub(super) header: SpoolRecordHeader,
    /// Offset of the body in the file.
    pub(super) body_at: u64,
    pub(super) mark: RecordMark,
    /// Number of times that it wasn't taken while others were, as far as this daemon knows.
    pub(super) tries: u32,
    /// The clocks when this daemon appended it.
    pub(super) appended: Option<ClockReading>,
}

// There are tens of thousands of them: `docs/delivery.md`, "Memory".
const _: () = assert!(size_of::<PendingRecord>() < 200);

/// A segment and what is still to be sent of it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Length of the file as far as it is known to be good.
    pub(super) bytes: u64,
    /// Records that were appended, whether they are over or not.
    pub(super) records: u32,
    pub(super) pending: VecDeque<PendingRecord>,
    /// Samples of all records up to the end of this segment, since the spool was made.
    pub(super) samples_through: SamplesByEvent,
}

pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

/// The number of the segment with this file name.
pub(super) fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name).then_some(number)
}

/// The findings of reading a segment, beside its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentScan {
    /// Number of times that bytes had to be skipped.
    pub(super) damaged_places: u64,
    /// Records that are over, and how many of their samples were delivered.
    pub(super) finished: Vec<(u32, SamplesByEvent)>,
}

impl Segment {
    /// Makes the file. Its folder has to be synced by the caller.
    pub(super) fn create(
        dir: &Path,
        number: u64,
        samples_before: SamplesByEvent,
    ) -> Result<(Self, File), SpoolError> {
        let path = dir.join(file_name(number));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(SpoolError::io("create", &path))?;
        if let Err(error) = file.write_all_at(&head(number, samples_before), 0) {
            // Half a head is worth nothing, and its name would be in the way.
            let _ = std::fs::remove_file(&path);
            return Err(SpoolError::io("write the head of", &path)(error));
        }
        let segment = Self {
            number,
            path,
            bytes: HEAD_BYTES,
            records: 0,
            pending: VecDeque::new(),
            samples_through: samples_before,
        };
        Ok((segment, file))
    }

    /// Reads what is there, whatever state it is in: bodies are checked when they are taken.
    pub(super) fn scan(path: &Path, number: u64) -> Result<(Self, SegmentScan), SpoolError> {
        let error = |call| SpoolError::io(call, path);
        let file = File::open(path).map_err(error("open"))?;
        let length = file.metadata().map_err(error("inspect"))?.len();
        let mut head = vec![0; HEAD_BYTES as usize];
        let read = read_up_to(&file, &mut head, 0).map_err(error("read"))?;
        let mut found = SegmentScan::default();
        let samples_before = decode_head(&head[..read], number);
        found.damaged_places += u64::from(samples_before.is_none() || read < head.len());
        let mut samples_through = samples_before.unwrap_or_default();
        let mut segment = Self {
            number,
            path: path.to_owned(),
            bytes: length,
            records: 0,
            pending: VecDeque::new(),
            samples_through,
        };
        let mut at = HEAD_BYTES;
        while at < length {
            let Some((header, header_at, body_at)) = next_header(&file, at, length).map_err(error("read"))?
            else {
                found.damaged_places += 1;
                break;
            };
            found.damaged_places += u64::from(header_at != at);
            at = body_at + u64::from(header.body_bytes);
            if header.index < segment.records {
                // A copy of an earlier place: two records with one mark can't be kept apart.
                found.damaged_places += 1;
                continue;
            }
            segment.records = header.index + 1;
            samples_through = header.samples_before + header.samples_by_event();
            let mark = mark_in(&head[..read], header.index);
            match mark {
                RecordMark::Done { delivered } => {
                    let delivered = SamplesByEvent::of(header.event, delivered.into());
                    found.finished.push((header.index, delivered));
                }
                RecordMark::Waiting | RecordMark::Sending => {
                    segment.pending.push_back(PendingRecord {
                        header,
                        body_at,
                        mark,
                        tries: 0,
                        appended: None,
                    });
                }
            }
        }
        segment.samples_through = samples_through;
        Ok((segment, found))
    }

    pub(super) fn is_full(&self, limit_bytes: u64) -> bool {
        self.records >= MAX_RECORDS || self.bytes >= limit_bytes
    }

    /// Writes a record behind the last one, without syncing it. If that fails the file is as it
    /// was.
    pub(super) fn append(
        &mut self,
        file: &File,
        header: SpoolRecordHeader,
        body: &[u8],
        tries: u32,
    ) -> Result<(), SpoolError> {
        let at = self.bytes;
        let body_at = at + HEADER_BYTES as u64;
        let written = file.write_all_at(&header.encode(), at).and_then(|()| file.write_all_at(body, body_at));
        if let Err(error) = written {
            self.truncate(file);
            return Err(SpoolError::io("append to", &self.path)(error));
        }
        self.bytes = body_at + body.len() as u64;
        self.records += 1;
        self.samples_through += header.samples_by_event();
        let appended = Some(ClockReading::now());
        self.pending.push_back(PendingRecord { header, body_at, mark: RecordMark::Waiting, tries, appended });
        Ok(())
    }

    /// Empties a segment all of whose records are over. Gives its file.
    pub(super) fn clear(&mut self) -> Result<File, SpoolError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .map_err(SpoolError::io("open", &self.path))?;
        // In this order: without their marks the records would be new again.
        file.set_len(HEAD_BYTES).map_err(SpoolError::io("empty", &self.path))?;
        file.sync_data().map_err(SpoolError::io("sync", &self.path))?;
        (self.bytes, self.records) = (HEAD_BYTES, 0);
        file.write_all_at(&head(self.number, self.samples_through), 0)
            .map_err(SpoolError::io("write the head of", &self.path))?;
        Ok(file)
    }

    /// Takes back what is behind the good end. What stays in spite of it is skipped when the
    /// segment is read.
    pub(super) fn truncate(&self, file: &File) {
        if let Err(error) = file.set_len(self.bytes) {
            tracing::warn!(path = %self.path.display(), %error, "half a record stays behind in the spool");
        }
    }

    /// The body of a record, or `None` if it isn't what was written, or can't be read any more.
    pub(super) fn body(&self, record: &PendingRecord) -> Result<Option<Vec<u8>>, SpoolError> {
        let mut body = vec![0; record.header.body_bytes as usize];
        let read = File::open(&self.path).and_then(|file| read_up_to(&file, &mut body, record.body_at));
        match read {
            Ok(read) => {
                Ok((read == body.len() && segment_format::crc(&body) == record.header.body_crc)
                    .then_some(body))
            }
            Err(error) if is_lasting(&error) => {
                tracing::error!(path = %self.path.display(), %error, "a segment of the spool can't be read");
                Ok(None)
            }
            Err(error) => Err(SpoolError::io("read", &self.path)(error)),
        }
    }

    /// Writes a mark; `sync`: and waits until it is on disk.
    pub(super) fn mark(&self, index: u32, mark: RecordMark, sync: bool) -> Result<(), SpoolError> {
        let file =
            OpenOptions::new().write(true).open(&self.path).map_err(SpoolError::io("open", &self.path))?;
        file.write_all_at(&mark.encode(), RecordMark::offset(index))
            .map_err(SpoolError::io("write a mark to", &self.path))?;
        if sync { file.sync_data().map_err(SpoolError::io("sync", &self.path)) } else { Ok(()) }
    }
}

/// Returns true if reading would fail in the same way for ever: the file is gone, or the disk can't
/// read it.
fn is_lasting(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::EIO)
}

fn mark_in(head: &[u8], index: u32) -> RecordMark {
    let at = RecordMark::offset(index) as usize;
    let bytes: Option<&[u8; MARK_BYTES]> = head.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(RecordMark::Sending, RecordMark::decode)
}

/// The first header at or behind `at` whose record is there as a whole, where it is, and where its
/// body is.
fn next_header(file: &File, at: u64, length: u64) -> io::Result<Option<(SpoolRecordHeader, u64, u64)>> {
    let mut bytes = [0; HEADER_BYTES];
    let mut from = at;
    while from < length {
        let read = read_up_to(file, &mut bytes, from)?;
        if let Some((header, header_bytes)) = SpoolRecordHeader::decode(&bytes[..read]) {
            let body_at = from + header_bytes as u64;
            if body_at + u64::from(header.body_bytes) <= length {
                return Ok(Some((header, from, body_at)));
            }
        }
        let Some(next) = next_marker(file, from + 1)? else { return Ok(None) };
        from = next;
    }
    Ok(None)
}

/// Returns the offset of the next bytes that a record may begin with.
fn next_marker(file: &File, mut from: u64) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; SEARCHED];
    loop {
        let read = read_up_to(file, &mut buffer, from)?;
        if let Some(at) = buffer[..read].windows(MARKER.len()).position(|bytes| bytes == MARKER) {
            return Ok(Some(from + at as u64));
        }
        if read < buffer.len() {
            return Ok(None);
        }
        // A marker may lie across the edge.
        from += (read - (MARKER.len() - 1)) as u64;
    }
}

/// Reads until the buffer is full or the file ends; how much that was.
fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
