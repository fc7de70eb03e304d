//! Jitdumps: files in which a runtime records the code that it generates, with times, source lines
//! and unwinding information.
//!
//! [`JitDump`] reads a growing file; [`process_jitdump`] finds the file of a process. Everything in
//! it is bounded and checked, and the code itself is never read. A writer that buffers its records
//! (V8 does, up to 2 MiB of them) is detected: samples newer than its last record wait.

pub mod process_jitdump;
mod record_parser;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::jit::code_unwind_rows::CodeUnwindRows;
use crate::jit::timeline::{CodeLines, CodeMatch, CodeTimeline, CreationTime, InsertOutcome};
use crate::types::Avma;
pub use record_parser::JitDumpHeaderError;
use record_parser::{FileHeader, HEADER_BYTES, JitDumpRecord, JitdumpRecordHeader, RECORD_HEADER_BYTES};

/// Most bytes of a name that are kept, as of a perf map's line.
const MAX_NAME_BYTES: usize = 4096;
/// Most bytes of one record's source lines that are read.
const MAX_LINES_BYTES: usize = 1 << 20;
/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Most bytes that one refresh reads; the next one reads on.
pub(super) const MAX_READ_BYTES: u64 = 4 << 20;
/// Most records of source lines whose code hasn't been loaded yet.
const MAX_PENDING_LINES: usize = 64;
/// Longest time between a record's time and its writing, in ns, unless the writer buffers records.
const MAX_WRITE_DELAY_NS: u64 = 100_000_000;
/// Bytes by which the addresses in V8's debug information are too high: V8
/// src/diagnostics/perf-jit.cc, LogWriteDebugInfo, adds the size of the ELF header that `perf
/// inject` puts before the code.
const V8_SHIFT: u32 = 0x40;

/// Error of reading a jitdump; nothing more is read of it.
#[derive(Debug, thiserror::Error)]
pub enum JitDumpError {
    #[error(transparent)]
    Header(#[from] JitDumpHeaderError),
    #[error("reading the jitdump: it is that of process {found}, not of {expected}")]
    OtherProcess { found: u32, expected: u32 },
    #[error("reading the jitdump: the time {time_ns} ns is in the future, so not of CLOCK_MONOTONIC")]
    OtherClock { time_ns: u64 },
    #[error("parsing the jitdump: the record at byte {offset} is malformed")]
    NoRecord { offset: u64 },
    #[error("reading the jitdump: it is shorter than what was read before")]
    Truncated,
    #[error("reading the jitdump: {0}")]
    Read(#[from] io::Error),
}

impl JitDumpError {
    /// Returns a short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Header(error) => error.reason(),
            Self::OtherProcess { .. } => "other process",
            Self::OtherClock { .. } => "other clock",
            Self::NoRecord { .. } => "no record",
            Self::Truncated => "truncated",
            Self::Read(_) => "unreadable",
        }
    }
}

/// Counters of records, since the dump was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitDumpCounters {
    /// Records of code that was loaded or moved.
    pub entries: u64,
    /// Malformed records. If only the name or the moved code is unknown, older entries at the
    /// addresses end.
    pub malformed: u64,
    /// Entries, their unwind rows and source lines that were left out since the memory limit was
    /// reached, and names that were cut off.
    pub over_limit: u64,
    /// Entries that came with unwinding information.
    pub unwinding: u64,
    /// Unwinding information that couldn't be used: malformed, or for other code than what came
    /// after it.
    pub unusable_unwinding: u64,
    /// Records that were written long after their own time.
    pub late: u64,
    pub bytes_read: u64,
    /// Superseded entries that were dropped early, since the memory limit was reached.
    pub history_over_limit: u64,
}

/// Records about code that precede the record of its loading.
#[derive(Debug, Default)]
struct PendingRecords {
    /// Source lines by the code's address.
    lines: HashMap<Avma, CodeLines>,
    /// Unwinding information of the next code.
    eh_frame: Option<Box<[u8]>>,
}

/// The entries of one jitdump.
#[derive(Debug)]
pub struct JitDump {
    file: File,
    /// Pids of the process, in its own pid namespace and in ours.
    pids: [u32; 2],
    header: Option<FileHeader>,
    /// Offset of the next record.
    offset: u64,
    /// Everything that was written before this time has been read, in ns of `CLOCK_MONOTONIC`.
    read_until_ns: u64,
    /// Latest time of a record.
    newest_record_ns: u64,
    /// Incomplete record at the file's end: its offset, and the time since when it was seen.
    partial_record: Option<(u64, u64)>,
    /// The writer keeps records in memory before it writes them.
    is_buffering: bool,
    is_closed: bool,
    has_more: bool,
    failed: Option<&'static str>,
    timeline: CodeTimeline,
    pending: PendingRecords,
    /// The writer has written unwinding information, if only an empty one.
    has_unwinding_info: bool,
    counters: JitDumpCounters,
    memory_bytes: usize,
    read_bytes: u64,
}

impl JitDump {
    /// Makes a reader for a regular file. `pids`: of the process, in its own pid namespace and in
    /// ours.
    pub fn new(file: File, pids: [u32; 2]) -> Self {
        Self {
            file,
            pids,
            header: None,
            offset: 0,
            read_until_ns: 0,
            newest_record_ns: 0,
            partial_record: None,
            is_buffering: false,
            is_closed: false,
            has_more: false,
            failed: None,
            timeline: CodeTimeline::default(),
            pending: PendingRecords::default(),
            has_unwinding_info: false,
            counters: JitDumpCounters::default(),
            memory_bytes: 160 << 20,
            read_bytes: MAX_READ_BYTES,
        }
    }

    /// Returns device and inode of the file; `None` if `fstat` fails.
    pub fn file_id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Reads a bounded piece of what is new.
    ///
    /// # Errors
    /// Returns an error, once, if nothing more can be read of the file. All entries are dropped
    /// then, since other code may have taken their addresses.
    pub fn refresh(&mut self) -> Result<(), JitDumpError> {
        if self.failed.is_some() {
            self.read_until_ns = monotonic_ns();
            return Ok(());
        }
        self.read_on().inspect_err(|error| {
            self.failed = Some(error.reason());
            self.timeline.clear();
        })
    }

    /// Returns the entry that was live at `address` at the time `at_ns` (`CLOCK_MONOTONIC`).
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<CodeMatch<'_>> {
        self.timeline.lookup(address, at_ns)
    }

    /// Returns true if all code is known that was generated up to this time.
    pub fn is_complete_until(&self, at_ns: u64) -> bool {
        at_ns <= self.complete_until_ns()
    }

    /// Returns the time up to which all generated code is known, in ns of `CLOCK_MONOTONIC`.
    pub fn complete_until_ns(&self) -> u64 {
        match (self.is_closed, self.is_buffering || self.has_more) {
            (true, _) => u64::MAX,
            (_, true) => self.newest_record_ns,
            _ => self.newest_record_ns.max(self.read_until_ns.saturating_sub(1)),
        }
    }

    /// Returns true if the writer records unwinding information; `None` before its first code.
    pub fn has_unwinding_info(&self) -> Option<bool> {
        let is_open = self.failed.is_none() && !self.is_closed;
        let is_decided = self.has_unwinding_info || self.counters.entries > 0 || !is_open;
        is_decided.then_some(self.has_unwinding_info && self.failed.is_none())
    }

    /// Records that the writer had ended before the last refresh: the entries are complete.
    pub fn mark_writer_ended(&mut self) {
        self.is_closed |= !self.has_more;
    }

    /// Drops superseded entries that no pending sample can need: see [`CodeTimeline::expire`].
    pub fn expire(&mut self, horizon_ns: u64) {
        self.timeline.expire(horizon_ns);
    }

    /// Returns the timeline's epoch: see [`CodeTimeline::epoch`].
    pub fn epoch(&self) -> u64 {
        self.timeline.epoch()
    }

    pub fn counters(&self) -> JitDumpCounters {
        let over_limit = self.counters.over_limit + self.timeline.rows_over_limit();
        let history_over_limit = self.timeline.history_over_limit();
        JitDumpCounters { history_over_limit, over_limit, ..self.counters }
    }

    /// Returns the time up to which everything that was written has been read, in ns of
    /// `CLOCK_MONOTONIC`.
    pub fn read_until_ns(&self) -> u64 {
        self.read_until_ns
    }

    /// Returns true if the rest of a large file is left to the next refresh.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns true if the writer buffers records, so that samples wait for them.
    pub fn is_buffering(&self) -> bool {
        self.is_buffering
    }

    /// Returns the bytes of memory in use.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.timeline.size_bytes()
    }

    pub fn set_memory_limit(&mut self, bytes: usize) {
        self.memory_bytes = bytes;
    }

    /// Sets about how many bytes one refresh reads.
    pub fn set_read_limit(&mut self, bytes: u64) {
        self.read_bytes = bytes;
    }

    fn read_on(&mut self) -> Result<(), JitDumpError> {
        let began_ns = monotonic_ns();
        let end = self.file.metadata()?.size();
        if end < self.offset {
            return Err(JitDumpError::Truncated);
        }
        let Some(header) = self.header(end)? else {
            self.read_until_ns = began_ns;
            return Ok(());
        };
        let mut window = FileWindow { file: &self.file, start: 0, bytes: Vec::new(), read: 0 };
        let mut is_whole = true;
        while self.offset + RECORD_HEADER_BYTES as u64 <= end
            && !self.is_closed
            && window.read < self.read_bytes
        {
            let no_record = JitDumpError::NoRecord { offset: self.offset };
            let bytes = window.get(self.offset, RECORD_HEADER_BYTES, end)?.first_chunk();
            let record_header =
                bytes.and_then(|bytes| record_parser::record_header(bytes, header.order)).ok_or(no_record)?;
            if self.offset + u64::from(record_header.size) > end {
                is_whole = false;
                break;
            }
            let needed = record_header.needed(MAX_NAME_BYTES, MAX_LINES_BYTES);
            let body = window.get(self.offset + RECORD_HEADER_BYTES as u64, needed, end)?;
            let record = record_parser::record(record_header.id, body, header.order, MAX_NAME_BYTES);
            check_clock(record_header.time_ns)?;
            self.offset += u64::from(record_header.size);
            if record_header.time_ns.saturating_add(MAX_WRITE_DELAY_NS) < self.read_until_ns
                && self.read_until_ns > 0
            {
                self.counters.late += 1;
                self.is_buffering = true;
            }
            apply_record(
                &mut self.timeline,
                &mut self.pending,
                &mut self.counters,
                self.memory_bytes,
                &record_header,
                record,
                &mut self.is_closed,
            );
            self.has_unwinding_info |= self.pending.eh_frame.is_some();
            self.newest_record_ns = self.newest_record_ns.max(record_header.time_ns);
        }
        self.counters.bytes_read += window.read;
        self.has_more = is_whole && !self.is_closed && self.offset + RECORD_HEADER_BYTES as u64 <= end;
        if !self.has_more {
            self.note_partial_record(end, began_ns);
            self.read_until_ns = began_ns;
        }
        Ok(())
    }

    fn header(&mut self, end: u64) -> Result<Option<FileHeader>, JitDumpError> {
        if self.header.is_none() && end >= HEADER_BYTES as u64 {
            let mut bytes = [0; HEADER_BYTES];
            self.file.read_exact_at(&mut bytes, 0)?;
            // The file is there before its header is.
            if bytes == [0; HEADER_BYTES] {
                return Ok(None);
            }
            let header = record_parser::file_header(&bytes)?;
            if !self.pids.contains(&header.pid) {
                return Err(JitDumpError::OtherProcess { found: header.pid, expected: self.pids[0] });
            }
            // The header's own time isn't used: V8's is another clock's than that of its records.
            self.offset = u64::from(header.size);
            self.header = Some(header);
        }
        Ok(self.header)
    }

    /// Notes an incomplete record at the file's end: one that stays so shows that its writer
    /// buffers records.
    fn note_partial_record(&mut self, end: u64, now_ns: u64) {
        let partial = (self.offset < end && !self.is_closed).then_some(self.offset);
        self.partial_record = match (self.partial_record, partial) {
            (Some((known, since)), Some(offset)) if known == offset => {
                self.is_buffering |= now_ns.saturating_sub(since) > MAX_WRITE_DELAY_NS;
                Some((known, since))
            }
            (_, partial) => partial.map(|offset| (offset, now_ns)),
        };
    }
}

/// Returns an error for a time in the future: a record's time is taken before it is written, and so
/// before it is read.
fn check_clock(time_ns: u64) -> Result<(), JitDumpError> {
    if time_ns > monotonic_ns() {
        return Err(JitDumpError::OtherClock { time_ns });
    }
    Ok(())
}

/// Applies a record to the timeline.
fn apply_record(
    timeline: &mut CodeTimeline,
    pending: &mut PendingRecords,
    counters: &mut JitDumpCounters,
    limit: usize,
    record_header: &JitdumpRecordHeader,
    record: Option<JitDumpRecord>,
    is_closed: &mut bool,
) {
    let created = CreationTime::exact(record_header.time_ns.max(1));
    match record {
        None => counters.malformed += 1,
        Some(JitDumpRecord::UnnamedCode { address, size }) => {
            counters.malformed += 1;
            pending.lines.remove(&address);
            pending.eh_frame = None;
            timeline.remove(address, size, created, limit);
        }
        Some(JitDumpRecord::Load { address, size, name, is_cut }) => {
            counters.entries += 1;
            counters.over_limit += u64::from(is_cut);
            let lines = pending.lines.remove(&address);
            let rows = compile_rows(pending.eh_frame.take(), address, size, counters);
            let done = timeline.insert_code(address, size, &name, rows, created, limit);
            counters.over_limit += u64::from(done == InsertOutcome::OverLimit);
            if let Some(lines) = lines.filter(|_| done != InsertOutcome::OverLimit) {
                let lines = if is_v8(&name) { without_v8_shift(lines) } else { lines };
                counters.over_limit += u64::from(!timeline.set_lines(address, lines, limit));
            }
        }
        Some(JitDumpRecord::Move { from, to, size }) => {
            counters.entries += 1;
            let moved = timeline.move_code(from, to, size, created, limit);
            counters.over_limit += u64::from(moved == Some(InsertOutcome::OverLimit));
            counters.malformed += u64::from(moved.is_none());
        }
        Some(JitDumpRecord::Lines { address, lines }) => {
            if pending.lines.len() >= MAX_PENDING_LINES {
                counters.over_limit += pending.lines.len() as u64;
                pending.lines.clear();
            }
            pending.lines.insert(address, lines);
        }
        Some(JitDumpRecord::Unwinding { eh_frame }) => pending.eh_frame = Some(eh_frame),
        Some(JitDumpRecord::Close) => *is_closed = true,
        Some(JitDumpRecord::Other) => {}
    }
}

/// Compiles the unwinding information of code.
fn compile_rows(
    eh_frame: Option<Box<[u8]>>,
    address: Avma,
    size: u32,
    counters: &mut JitDumpCounters,
) -> Option<Arc<CodeUnwindRows>> {
    // Writers record an empty one if there is none.
    let eh_frame = eh_frame.filter(|bytes| !bytes.is_empty())?;
    let rows = CodeUnwindRows::compile(&eh_frame, address.0, size).map(Arc::new);
    counters.unwinding += u64::from(rows.is_some());
    counters.unusable_unwinding += u64::from(rows.is_none());
    rows
}

fn is_v8(name: &str) -> bool {
    ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"].iter().any(|kind| name.starts_with(kind))
}

/// Corrects the offsets of V8's source lines.
fn without_v8_shift(mut lines: CodeLines) -> CodeLines {
    lines.rows.iter_mut().for_each(|place| place.0 = place.0.saturating_sub(V8_SHIFT));
    lines
}

/// A piece of the file in memory.
struct FileWindow<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes read so far.
    read: u64,
}

impl FileWindow<'_> {
    /// Returns the `len` bytes at `offset`, which must end before `end`.
    fn get(&mut self, offset: u64, len: usize, end: u64) -> io::Result<&[u8]> {
        let is_inside = offset >= self.start && offset + len as u64 <= self.start + self.bytes.len() as u64;
        if !is_inside {
            let most = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
            self.bytes.resize(len.max(PIECE.min(most)), 0);
            self.start = offset;
            self.file.read_exact_at(&mut self.bytes, offset)?;
            self.read += self.bytes.len() as u64;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..at + len])
    }
}
