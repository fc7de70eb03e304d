//! jitdump: a file in which a runtime tells what code it generated, and when.
//!
//! The reader keeps up with a growing file. Whatever it says is bounded and checked; code itself is
//! never read. A writer that collects its records before it writes them (V8 does, up to 2 MiB of
//! them) is found out: what its file says of the last moments is not believed to be all.

pub mod process_jitdump;
mod record_parser;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use crate::clock::monotonic_ns;
use crate::jit::code_unwind_rows::CodeRows;
use crate::jit::timeline::{CodeLines, Found, Inserted, Since, Timeline};
use crate::types::Avma;
pub use record_parser::HeaderError;
use record_parser::{HEADER_BYTES, Header, PREFIX_BYTES, Prefix, Record};

/// Bytes of a name that are kept, as of a perf map's line.
const LONGEST_NAME: usize = 4096;
/// Bytes of one record's source lines that are read.
const MOST_LINES: usize = 1 << 20;
/// Bytes read at once.
const PIECE: usize = 64 << 10;
/// Most bytes that one refresh reads; the rest waits for the next.
pub(super) const MOST_READ: u64 = 4 << 20;
/// Source lines that wait for their code.
const MOST_WAITING: usize = 64;
/// A record is written down this soon after its time, or the writer collects them.
const PROMPT_NS: u64 = 100_000_000;
/// By how much V8's debug information is off: V8 src/diagnostics/perf-jit.cc, LogWriteDebugInfo,
/// adds the size of the ELF header that `perf inject` puts in front of the code.
const V8_SHIFT: u32 = 0x40;

/// A jitdump can't be used, or no further.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the jitdump is that of process {found}, not of {expected}")]
    OtherProcess { found: u32, expected: u32 },
    #[error("a time in the jitdump, {time_ns} ns, has not come yet: it isn't that of CLOCK_MONOTONIC")]
    OtherClock { time_ns: u64 },
    #[error("what is at byte {offset} of the jitdump isn't a record")]
    NoRecord { offset: u64 },
    #[error("the jitdump became shorter than what was read")]
    Truncated,
    #[error("reading the jitdump: {0}")]
    Read(#[from] io::Error),
}

impl DumpError {
    /// A short name for counters.
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

/// What was read, since the dump was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCounters {
    /// Code that was loaded or moved.
    pub entries: u64,
    /// Records that make no sense. Where only the name, or what was moved, isn't known, what was at
    /// the addresses is gone.
    pub malformed: u64,
    /// Entries, their rows, and source lines, left out because the memory limit was reached; and
    /// names that were cut off.
    pub over_limit: u64,
    /// Entries that came with unwinding information.
    pub unwinding: u64,
    /// Unwinding information that couldn't be used: malformed, or for other code than what came
    /// behind it.
    pub unusable_unwinding: u64,
    /// Records that were written long after the time that they tell.
    pub late: u64,
    pub bytes_read: u64,
    /// Past entries that were forgotten before their time, for lack of room.
    pub history_over_limit: u64,
}

/// What was told of code that will be loaded.
#[derive(Debug, Default)]
struct Told {
    /// By the code's address.
    lines: HashMap<u64, CodeLines>,
    /// Of the very next code.
    eh_frame: Option<Box<[u8]>>,
}

/// The code that one process's jitdump tells of.
#[derive(Debug)]
pub struct JitDump {
    file: File,
    /// The pids that the process goes by.
    pids: [u32; 2],
    header: Option<Header>,
    /// Where the next record is.
    offset: u64,
    /// Everything that was in the file before this time has been read.
    checked_ns: u64,
    /// The latest time of a record.
    last_ns: u64,
    /// A record that was only begun: where, and since when.
    begun: Option<(u64, u64)>,
    is_collecting: bool,
    is_closed: bool,
    has_more: bool,
    failed: Option<&'static str>,
    timeline: Timeline,
    waiting: Told,
    /// Its writer tells how to unwind code, or that there is nothing to tell.
    is_unwound: bool,
    counters: DumpCounters,
    memory_bytes: usize,
    read_bytes: u64,
}

impl JitDump {
    /// `file`: a regular file. `pids`: of the process, in its own pid namespace and in ours.
    pub fn new(file: File, pids: [u32; 2]) -> Self {
        Self {
            file,
            pids,
            header: None,
            offset: 0,
            checked_ns: 0,
            last_ns: 0,
            begun: None,
            is_collecting: false,
            is_closed: false,
            has_more: false,
            failed: None,
            timeline: Timeline::default(),
            waiting: Told::default(),
            is_unwound: false,
            counters: DumpCounters::default(),
            memory_bytes: 160 << 20,
            read_bytes: MOST_READ,
        }
    }

    /// Device and inode of the file; `None` if they can't be had.
    pub fn file_id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }

    /// Reads what is new: a bounded piece.
    ///
    /// # Errors
    /// The file can't be used, or no further, which is said once. What was read is forgotten: other
    /// code may have taken its place.
    pub fn refresh(&mut self) -> Result<(), DumpError> {
        if self.failed.is_some() {
            self.checked_ns = monotonic_ns();
            return Ok(());
        }
        self.read_on().inspect_err(|error| {
            self.failed = Some(error.reason());
            self.timeline.clear();
        })
    }

    /// The entry that was live at `address` at the time `at_ns` (`CLOCK_MONOTONIC`).
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<Found<'_>> {
        self.timeline.lookup(address, at_ns)
    }

    /// Whether everything is known that was generated up to this time.
    pub fn is_known(&self, at_ns: u64) -> bool {
        at_ns <= self.known_until()
    }

    /// Everything is known that was generated up to this time.
    pub fn known_until(&self) -> u64 {
        match (self.is_closed, self.is_collecting || self.has_more) {
            (true, _) => u64::MAX,
            (_, true) => self.last_ns,
            _ => self.last_ns.max(self.checked_ns.saturating_sub(1)),
        }
    }

    /// Whether the writer tells how code is unwound; `None` as long as it has told of no code.
    pub fn is_unwound(&self) -> Option<bool> {
        let is_open = self.failed.is_none() && !self.is_closed;
        let has_told = self.is_unwound || self.counters.entries > 0 || !is_open;
        has_told.then_some(self.is_unwound && self.failed.is_none())
    }

    /// Nobody will write any more, and hasn't since before the last refresh.
    pub fn writer_has_ended(&mut self) {
        self.is_closed |= !self.has_more;
    }

    /// No sample is older than this any more: see [`Timeline::expire`].
    pub fn expire(&mut self, horizon_ns: u64) {
        self.timeline.expire(horizon_ns);
    }

    /// See [`Timeline::epoch`].
    pub fn epoch(&self) -> u64 {
        self.timeline.epoch()
    }

    pub fn counters(&self) -> DumpCounters {
        let over_limit = self.counters.over_limit + self.timeline.rows_over_limit();
        let history_over_limit = self.timeline.history_over_limit();
        DumpCounters { history_over_limit, over_limit, ..self.counters }
    }

    /// When the file was last looked at.
    pub fn checked_ns(&self) -> u64 {
        self.checked_ns
    }

    /// The rest of a large file waits for the next refresh.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether records come late, and are waited for.
    pub fn is_collecting(&self) -> bool {
        self.is_collecting
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.timeline.size_bytes()
    }

    pub fn set_memory_limit(&mut self, bytes: usize) {
        self.memory_bytes = bytes;
    }

    /// About so many bytes are read at once.
    pub fn set_read_limit(&mut self, bytes: u64) {
        self.read_bytes = bytes;
    }

    fn read_on(&mut self) -> Result<(), DumpError> {
        let looked_ns = monotonic_ns();
        let end = self.file.metadata()?.size();
        if end < self.offset {
            return Err(DumpError::Truncated);
        }
        let Some(header) = self.header(end)? else {
            self.checked_ns = looked_ns;
            return Ok(());
        };
        let mut window = Window { file: &self.file, start: 0, bytes: Vec::new(), read: 0 };
        let mut is_whole = true;
        while self.offset + PREFIX_BYTES as u64 <= end && !self.is_closed && window.read < self.read_bytes {
            let no_record = DumpError::NoRecord { offset: self.offset };
            let prefix = window.get(self.offset, PREFIX_BYTES, end)?.first_chunk();
            let prefix =
                prefix.and_then(|bytes| record_parser::prefix(bytes, header.order)).ok_or(no_record)?;
            if self.offset + u64::from(prefix.size) > end {
                is_whole = false;
                break;
            }
            let needed = prefix.needed(LONGEST_NAME, MOST_LINES);
            let body = window.get(self.offset + PREFIX_BYTES as u64, needed, end)?;
            let record = record_parser::record(prefix.id, body, header.order, LONGEST_NAME);
            check_clock(prefix.time_ns)?;
            self.offset += u64::from(prefix.size);
            if prefix.time_ns.saturating_add(PROMPT_NS) < self.checked_ns && self.checked_ns > 0 {
                self.counters.late += 1;
                self.is_collecting = true;
            }
            apply(
                &mut self.timeline,
                &mut self.waiting,
                &mut self.counters,
                self.memory_bytes,
                &prefix,
                record,
                &mut self.is_closed,
            );
            self.is_unwound |= self.waiting.eh_frame.is_some();
            self.last_ns = self.last_ns.max(prefix.time_ns);
        }
        self.counters.bytes_read += window.read;
        self.has_more = is_whole && !self.is_closed && self.offset + PREFIX_BYTES as u64 <= end;
        if !self.has_more {
            self.notice_begun(end, looked_ns);
            self.checked_ns = looked_ns;
        }
        Ok(())
    }

    fn header(&mut self, end: u64) -> Result<Option<Header>, DumpError> {
        if self.header.is_none() && end >= HEADER_BYTES as u64 {
            let mut bytes = [0; HEADER_BYTES];
            self.file.read_exact_at(&mut bytes, 0)?;
            // The file is there before its header is.
            if bytes == [0; HEADER_BYTES] {
                return Ok(None);
            }
            let header = record_parser::header(&bytes)?;
            if !self.pids.contains(&header.pid) {
                return Err(DumpError::OtherProcess { found: header.pid, expected: self.pids[0] });
            }
            // The header's own time isn't looked at: V8's is another clock's than that of its
            // records.
            self.offset = u64::from(header.size);
            self.header = Some(header);
        }
        Ok(self.header)
    }

    /// A record that stays unfinished tells that its writer collects them.
    fn notice_begun(&mut self, end: u64, now_ns: u64) {
        let begun = (self.offset < end && !self.is_closed).then_some(self.offset);
        self.begun = match (self.begun, begun) {
            (Some((known, since)), Some(offset)) if known == offset => {
                self.is_collecting |= now_ns.saturating_sub(since) > PROMPT_NS;
                Some((known, since))
            }
            (_, begun) => begun.map(|offset| (offset, now_ns)),
        };
    }
}

/// A record's time is taken before the record is written, and so before it is read.
fn check_clock(time_ns: u64) -> Result<(), DumpError> {
    if time_ns > monotonic_ns() {
        return Err(DumpError::OtherClock { time_ns });
    }
    Ok(())
}

fn apply(
    timeline: &mut Timeline,
    waiting: &mut Told,
    counters: &mut DumpCounters,
    limit: usize,
    prefix: &Prefix,
    record: Option<Record>,
    is_closed: &mut bool,
) {
    let since = Since::exact(prefix.time_ns.max(1));
    match record {
        None => counters.malformed += 1,
        Some(Record::Nameless { address, size }) => {
            counters.malformed += 1;
            waiting.lines.remove(&address);
            waiting.eh_frame = None;
            timeline.remove(address, size, since, limit);
        }
        Some(Record::Load { address, size, name, is_cut }) => {
            counters.entries += 1;
            counters.over_limit += u64::from(is_cut);
            let lines = waiting.lines.remove(&address);
            let rows = rows(waiting.eh_frame.take(), address, size, counters);
            let done = timeline.insert_code(address, size, &name, rows, since, limit);
            counters.over_limit += u64::from(done == Inserted::NoRoom);
            if let Some(lines) = lines.filter(|_| done != Inserted::NoRoom) {
                let lines = if is_v8(&name) { shifted(lines) } else { lines };
                counters.over_limit += u64::from(!timeline.set_lines(address, lines, limit));
            }
        }
        Some(Record::Move { from, to, size }) => {
            counters.entries += 1;
            let moved = timeline.move_code(from, to, size, since, limit);
            counters.over_limit += u64::from(moved == Some(Inserted::NoRoom));
            counters.malformed += u64::from(moved.is_none());
        }
        Some(Record::Lines { address, lines }) => {
            if waiting.lines.len() >= MOST_WAITING {
                counters.over_limit += waiting.lines.len() as u64;
                waiting.lines.clear();
            }
            waiting.lines.insert(address, lines);
        }
        Some(Record::Unwinding { eh_frame }) => waiting.eh_frame = Some(eh_frame),
        Some(Record::Close) => *is_closed = true,
        Some(Record::Other) => {}
    }
}

fn rows(
    eh_frame: Option<Box<[u8]>>,
    address: u64,
    size: u32,
    counters: &mut DumpCounters,
) -> Option<Arc<CodeRows>> {
    // Writers say by an empty one that there is none.
    let eh_frame = eh_frame.filter(|bytes| !bytes.is_empty())?;
    let rows = CodeRows::compile(&eh_frame, address, size).map(Arc::new);
    counters.unwinding += u64::from(rows.is_some());
    counters.unusable_unwinding += u64::from(rows.is_none());
    rows
}

fn is_v8(name: &str) -> bool {
    ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"].iter().any(|kind| name.starts_with(kind))
}

fn shifted(mut lines: CodeLines) -> CodeLines {
    lines.places.iter_mut().for_each(|place| place.0 = place.0.saturating_sub(V8_SHIFT));
    lines
}

/// A piece of the file.
struct Window<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes read so far.
    read: u64,
}

impl Window<'_> {
    /// The `len` bytes at `offset`, which must end before `end`.
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
