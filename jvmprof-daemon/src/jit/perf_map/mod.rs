//! Perf maps: `/tmp/perf-PID.map`, where runtimes write what they generated.
//!
//! Anybody can write such a file: reading never blocks, costs no more than its limits, and what
//! isn't a sensible entry is counted and left out.

pub mod inotify_thread;
mod line_parser;
pub mod process_perf_map;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Whence, lseek};

use crate::clock::monotonic_ns;
use crate::jit::timeline::{Found, Inserted, Since, Timeline};
use crate::types::Avma;
use line_parser::{RawLine, Splitter};

/// Bytes read at once.
const PIECE: usize = 256 << 10;
/// Bytes of the file's start, and of what was read last, that are kept to tell that the file was
/// written anew.
const WITNESS: usize = 128;
/// A file that is written anew is whole when it has not grown for so long.
const REWRITE_ENDS_NS: u64 = 200_000_000;

/// What a perf map may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapLimits {
    /// Most bytes of memory, names and past entries included.
    pub memory_bytes: usize,
    /// Bytes of a line that are read; the name of a longer one is cut off.
    pub line_bytes: usize,
    /// Most bytes that one refresh reads; the rest waits for the next.
    pub read_bytes: u64,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self { memory_bytes: 160 << 20, line_bytes: 4096, read_bytes: 1 << 20 }
    }
}

/// What was read, and what was refused for which reason, since the map was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapCounters {
    /// Entries taken.
    pub entries: u64,
    /// Lines without an address, a size and a name, or with an address or a size that can't be.
    /// Where only the name is missing, what was at the addresses is gone.
    pub malformed: u64,
    /// Lines longer than the limit: their names are cut off.
    pub too_long: u64,
    /// Entries left out because the memory limit was reached.
    pub over_limit: u64,
    /// Past entries that were forgotten before their time, for lack of room.
    pub history_over_limit: u64,
    /// Times that the file was found truncated, replaced or written anew, and was read again from
    /// its start.
    pub restarts: u64,
    pub bytes_read: u64,
}

/// What [`PerfMap::refresh`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Entries added.
    pub added: u64,
    /// The file was truncated, replaced or written anew.
    pub restarted: bool,
    /// There is more to read: the limit for one refresh was reached. What was written lately isn't
    /// known.
    pub more: bool,
}

/// The entries of one process's perf map.
#[derive(Debug, Default)]
pub struct PerfMap {
    limits: PerfMapLimits,
    counters: PerfMapCounters,
    timeline: Timeline,
    splitter: Splitter,
    reading: Option<Reading>,
    /// What is being read, if it takes more than one refresh.
    look: Option<Look>,
    /// What the next look finds may be another process's.
    doubts_next: bool,
    /// Everything that was written before this time has been read, in ns of `CLOCK_MONOTONIC`.
    checked_ns: u64,
    /// When lines that were read last were there.
    grown_ns: u64,
    rewrite: Option<Rewrite>,
}

/// What one look found to read. However long it takes to read it: it was all there when it was
/// looked at.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Before the file was looked at, in ns of `CLOCK_MONOTONIC`.
    looked_ns: u64,
    /// As of the look: size in bytes, time of change in seconds and nanoseconds.
    seen: (u64, i64, i64),
    /// When its lines were written.
    since: Since,
}

/// The file is being written anew.
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    /// As of when the last writing tells what was there.
    last_ns: u64,
    /// When it was noticed.
    noticed_ns: u64,
}

/// How far which file was read.
#[derive(Debug)]
struct Reading {
    device: u64,
    inode: u64,
    /// As of the last refresh: size in bytes, time of change in seconds and nanoseconds.
    seen: (u64, i64, i64),
    /// Bytes read from the file's start.
    offset: u64,
    /// The file's first bytes.
    head: Vec<u8>,
    /// The last bytes in front of `offset`.
    tail: Vec<u8>,
}

impl PerfMap {
    pub fn new(limits: PerfMapLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Reads what is new in `file`, as the path leads to it now (open it by
    /// `native::open_file::open_in_root_owned`).
    ///
    /// Only new bytes are read while it is the same file and grows; a shorter, another, or a
    /// rewritten file is read from its start, and entries that it doesn't have any more are past. A
    /// last line without its end waits for the next refresh.
    ///
    /// # Errors
    /// What reading says, and `InvalidInput` for what isn't a regular file; what was read before
    /// stays usable.
    pub fn refresh(&mut self, file: &File) -> io::Result<Refresh> {
        let was_catching_up = self.look.is_some();
        let mut most = self.limits.read_bytes;
        let done = self.read_on(file, &mut most)?;
        if !was_catching_up || done.more {
            return Ok(done);
        }
        // What was written while a large file was read.
        let then = self.read_on(file, &mut most)?;
        Ok(Refresh {
            added: done.added + then.added,
            restarted: done.restarted || then.restarted,
            more: then.more,
        })
    }

    /// Reads `most` bytes at most, which become less, of what a look finds or the one before has
    /// left.
    fn read_on(&mut self, file: &File, most: &mut u64) -> io::Result<Refresh> {
        let looked_ns = monotonic_ns();
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let seen = (metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        let seen_ns = monotonic_ns();
        let mut done = Refresh::default();
        let reading = match self.reading.take() {
            Some(reading) if reading.is_still(file, metadata.dev(), metadata.ino(), seen)? => reading,
            earlier => {
                done.restarted = earlier.is_some();
                self.begin_anew(done.restarted, looked_ns);
                Reading::new(metadata.dev(), metadata.ino())
            }
        };
        let reading = self.reading.insert(Reading { seen, ..reading });
        let look = self.look.take().unwrap_or_else(|| {
            // A writing of the whole file tells what is there, not since when.
            let after_ns = self.rewrite.map_or(self.checked_ns, |rewrite| rewrite.last_ns);
            let since = Since { after_ns, since_ns: seen_ns, is_doubtful: self.doubts_next };
            Look { looked_ns, seen, since }
        });
        let end = look.seen.0;
        let stop = end.min(reading.offset.saturating_add(*most));
        let mut buffer = vec![0; PIECE.min((stop.saturating_sub(reading.offset)) as usize)];
        while reading.offset < stop {
            let wanted = buffer.len().min((stop - reading.offset) as usize);
            let read = file.read_at(&mut buffer[..wanted], reading.offset)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            reading.advance(piece);
            self.counters.bytes_read += read as u64;
            *most -= read as u64;
            self.grown_ns = look.since.since_ns;
            done.added += take(
                piece,
                look.since,
                &self.limits,
                &mut self.splitter,
                &mut self.timeline,
                &mut self.counters,
            );
        }
        done.more = reading.offset < end && reading.offset == stop;
        if done.more {
            self.look = Some(look);
            return Ok(done);
        }
        self.doubts_next = false;
        if done.added > 0 && self.rewrite.is_none() && self.splitter.is_empty() && is_settled(file, look.seen)
        {
            // The file was changed last when its last line was written. The kernel's time for that
            // is never late.
            let changed = file_time_to_monotonic(look.seen.1, look.seen.2);
            if let Some(changed_ns) = changed.filter(|at| (look.since.after_ns..=look.looked_ns).contains(at))
            {
                self.timeline.last_not_before(changed_ns);
            }
        }
        self.checked_ns = look.looked_ns;
        self.end_rewrite(look.looked_ns);
        Ok(done)
    }

    /// The first look at a file, or it isn't the file any more that was read.
    fn begin_anew(&mut self, is_rewrite: bool, now_ns: u64) {
        self.splitter = Splitter::default();
        self.look = None;
        if !is_rewrite {
            return;
        }
        self.counters.restarts += 1;
        self.timeline.begin_rewrite();
        let last_ns = self.rewrite.map_or(self.grown_ns, |rewrite| rewrite.last_ns);
        self.rewrite = Some(Rewrite { last_ns, noticed_ns: now_ns });
    }

    fn end_rewrite(&mut self, now_ns: u64) {
        let Some(rewrite) = self.rewrite.filter(|_| now_ns.saturating_sub(self.grown_ns) >= REWRITE_ENDS_NS)
        else {
            return;
        };
        self.rewrite = None;
        let since = Since { after_ns: rewrite.last_ns, since_ns: rewrite.noticed_ns, is_doubtful: false };
        self.timeline.end_rewrite(since, self.limits.memory_bytes);
    }

    /// What is in the file was written by another process and isn't read: only what is appended
    /// from now on, or everything if the file is written anew.
    ///
    /// # Errors
    /// What reading says.
    pub fn skip_present(&mut self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut reading = Reading::new(metadata.dev(), metadata.ino());
        reading.offset = metadata.size();
        let witness = metadata.size().min(WITNESS as u64);
        (reading.head, reading.tail) = (vec![0; witness as usize], vec![0; witness as usize]);
        file.read_exact_at(&mut reading.head, 0)?;
        file.read_exact_at(&mut reading.tail, metadata.size() - witness)?;
        self.splitter = Splitter::behind(reading.tail.last().copied());
        self.look = None;
        self.reading = Some(reading);
        Ok(())
    }

    /// What the file has when it is looked at first may have been written by another process: what
    /// it names is ambiguous.
    pub fn doubt_present(&mut self) {
        self.doubts_next = true;
    }

    /// The entry that was live at `address` at the time `at_ns` (`CLOCK_MONOTONIC`).
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<Found<'_>> {
        self.timeline.lookup(address, at_ns)
    }

    /// Everything that was written before this time has been read, in ns of `CLOCK_MONOTONIC`.
    pub fn checked_ns(&self) -> u64 {
        self.checked_ns
    }

    /// Whether what hasn't been read of a look may have been written before this time.
    pub fn may_tell_more(&self, at_ns: u64) -> bool {
        self.look.is_some_and(|look| look.since.after_ns < at_ns)
    }

    /// No sample is older than this any more: see [`Timeline::expire`].
    pub fn expire(&mut self, horizon_ns: u64) {
        self.timeline.expire(horizon_ns);
    }

    /// See [`Timeline::epoch`].
    pub fn epoch(&self) -> u64 {
        self.timeline.epoch()
    }

    pub fn set_memory_limit(&mut self, bytes: usize) {
        self.limits.memory_bytes = bytes;
    }

    /// Most bytes that one refresh reads.
    pub fn set_read_limit(&mut self, bytes: u64) {
        self.limits.read_bytes = bytes;
    }

    pub fn counters(&self) -> PerfMapCounters {
        let history_over_limit = self.timeline.history_over_limit();
        PerfMapCounters { history_over_limit, ..self.counters }
    }

    pub fn limits(&self) -> PerfMapLimits {
        self.limits
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        self.timeline.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.timeline.size_bytes() + self.splitter.size_bytes()
    }
}

/// Whether no write was under way when a file had this size and time. A file has a write's time
/// before it has its bytes (Linux `generic_file_write_iter`): that time would be taken for that of
/// the bytes before.
fn is_settled(file: &File, seen: (u64, i64, i64)) -> bool {
    // Like the reading before it, this waits for a write that is under way, in one file system or
    // another.
    let _ = lseek(file, 0, Whence::SeekHole);
    let now = file.metadata();
    now.is_ok_and(|now| (now.size(), now.mtime(), now.mtime_nsec()) == seen)
}

/// A time of a file in `CLOCK_MONOTONIC`.
fn file_time_to_monotonic(seconds: i64, nanoseconds: i64) -> Option<u64> {
    // This one first: the result may be early, never late.
    let monotonic = monotonic_ns();
    let now = clock_gettime(ClockId::CLOCK_REALTIME).ok()?;
    let age =
        (now.tv_sec() - seconds).checked_mul(1_000_000_000)?.checked_add(now.tv_nsec() - nanoseconds)?;
    monotonic.checked_sub(u64::try_from(age).ok()?)
}

fn take(
    piece: &[u8],
    since: Since,
    limits: &PerfMapLimits,
    splitter: &mut Splitter,
    timeline: &mut Timeline,
    counters: &mut PerfMapCounters,
) -> u64 {
    let before = counters.entries;
    splitter.feed(piece, limits.line_bytes, |line| {
        let Some(RawLine { bytes, is_cut }) = line else {
            counters.malformed += 1;
            return;
        };
        counters.too_long += u64::from(is_cut);
        match line_parser::parse(bytes) {
            Some(line) if line.name.is_empty() => {
                counters.malformed += 1;
                timeline.remove(line.start, line.size, since, limits.memory_bytes);
            }
            Some(line) => {
                match timeline.insert(line.start, line.size, &line.name, since, limits.memory_bytes) {
                    Inserted::New | Inserted::Known => counters.entries += 1,
                    Inserted::NoRoom => counters.over_limit += 1,
                }
            }
            None => counters.malformed += u64::from(!is_cut),
        }
    });
    counters.entries - before
}

impl Reading {
    fn new(device: u64, inode: u64) -> Self {
        Self { device, inode, seen: (0, 0, 0), offset: 0, head: Vec::new(), tail: Vec::new() }
    }

    /// Whether what was read is still there, so that reading can go on behind it. HotSpot writes
    /// its whole map anew into the same file, which may have become longer meanwhile: size and
    /// inode alone don't tell.
    fn is_still(&self, file: &File, device: u64, inode: u64, seen: (u64, i64, i64)) -> io::Result<bool> {
        if (device, inode) != (self.device, self.inode) || seen.0 < self.offset {
            return Ok(false);
        }
        if seen == self.seen {
            return Ok(true);
        }
        let mut bytes = [0; WITNESS];
        for (witness, at) in [(&self.head, 0), (&self.tail, self.offset - self.tail.len() as u64)] {
            let bytes = &mut bytes[..witness.len()];
            match file.read_exact_at(bytes, at) {
                Ok(()) if bytes == witness.as_slice() => {}
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, piece: &[u8]) {
        // What is ignored at the file's start is no witness.
        if self.offset == self.head.len() as u64 {
            let missing = WITNESS - self.head.len();
            self.head.extend_from_slice(&piece[..missing.min(piece.len())]);
        }
        self.offset += piece.len() as u64;
        self.tail.extend_from_slice(&piece[piece.len() - piece.len().min(WITNESS)..]);
        self.tail.drain(..self.tail.len() - self.tail.len().min(WITNESS));
    }
}
