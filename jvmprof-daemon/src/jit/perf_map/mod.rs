//! Perf maps: `/tmp/perf-PID.map`, where runtimes write the names of the code that they generate.
//!
//! [`PerfMap`] reads one file as it grows, is truncated or is rewritten, and dates its entries.
//! [`process_perf_map`] finds the file of a process and validates that this process wrote it.
//! [`inotify_thread`] reads all maps soon after they are written, so that the times of their
//! entries are known closely.
//!
//! Any process can write such a file: reading never blocks and costs no more than its limits, and a
//! line that is no entry is counted and left out.

pub mod inotify_thread;
mod line_parser;
pub mod process_perf_map;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Whence, lseek};

use crate::clock::monotonic_ns;
use crate::jit::timeline::{CodeMatch, CodeTimeline, CreationTime, InsertOutcome};
use crate::types::Avma;
use line_parser::{LineSplitter, RawLine};

/// Bytes of one read.
const PIECE: usize = 256 << 10;
/// Bytes of the file's start, and of the end of what has been read, that are kept to detect that
/// the file was rewritten.
const FINGERPRINT_BYTES: usize = 128;
/// Time without growth after which a rewritten file is taken to be complete, in ns.
const REWRITE_QUIET_NS: u64 = 200_000_000;

/// Limits of reading one perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapLimits {
    /// Most bytes of memory, with names and superseded entries.
    pub memory_bytes: usize,
    /// Bytes of a line that are read; the name of a longer one is cut off.
    pub line_bytes: usize,
    /// Most bytes that one refresh reads; the next one reads on.
    pub read_bytes: u64,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self { memory_bytes: 160 << 20, line_bytes: 4096, read_bytes: 1 << 20 }
    }
}

/// Counters of lines that were read and of lines that were refused, since the map was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapCounters {
    /// Entries that were inserted or were there already.
    pub entries: u64,
    /// Lines without an address, a size and a name, or with an impossible address or size. If only
    /// the name is missing, older entries at the addresses end.
    pub malformed: u64,
    /// Lines longer than the limit, whose names are cut off.
    pub too_long: u64,
    /// Entries left out because the memory limit was reached.
    pub over_limit: u64,
    /// Superseded entries that were dropped early, since the memory limit was reached.
    pub history_over_limit: u64,
    /// Times that the file was found truncated, replaced or rewritten, and was read again from its
    /// start.
    pub restarts: u64,
    pub bytes_read: u64,
}

/// Result of [`PerfMap::refresh`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefreshResult {
    /// Entries that were added.
    pub added: u64,
    /// The file was found truncated, replaced or rewritten.
    pub restarted: bool,
    /// The limit of one refresh was reached before the end of the file, so that the latest entries
    /// haven't been read.
    pub more: bool,
}

/// The entries of one perf map, with the times when they were written.
#[derive(Debug, Default)]
pub struct PerfMap {
    limits: PerfMapLimits,
    counters: PerfMapCounters,
    timeline: CodeTimeline,
    splitter: LineSplitter,
    position: Option<ReadPosition>,
    /// The read that takes more than one refresh.
    pending: Option<PendingRead>,
    /// The next lines may be another process's.
    is_next_doubtful: bool,
    /// Everything that was written before this time has been read, in ns of `CLOCK_MONOTONIC`.
    read_until_ns: u64,
    /// Time when the newest lines were seen.
    grown_ns: u64,
    rewrite: Option<Rewrite>,
}

/// The part of the file that was there when its size was taken. Its lines are as old as that,
/// however long reading them takes.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    /// Time right before the size was taken, in ns of `CLOCK_MONOTONIC`.
    began_ns: u64,
    /// Size in bytes, time of change in seconds and nanoseconds.
    stat: (u64, i64, i64),
    /// Time when its lines were written.
    created: CreationTime,
}

/// A rewrite of the file that is under way.
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    /// Time of the newest line of the content before.
    last_ns: u64,
    /// Time when the rewrite was noticed.
    noticed_ns: u64,
}

/// Position up to which a file has been read, and what identifies that file.
#[derive(Debug)]
struct ReadPosition {
    device: u64,
    inode: u64,
    /// Size in bytes and time of change in seconds and nanoseconds, at the last refresh.
    stat: (u64, i64, i64),
    /// Bytes that have been read, from the file's start.
    offset: u64,
    /// The file's first bytes.
    head: Vec<u8>,
    /// The last bytes before `offset`.
    tail: Vec<u8>,
}

impl PerfMap {
    pub fn new(limits: PerfMapLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Reads new lines of `file`, the one that the path leads to now (open it by
    /// [`open_in_root_owned`](crate::native::open_file::open_in_root_owned)).
    ///
    /// Only new bytes are read while it is the same file and grows. A shorter, another, or a
    /// rewritten file is read from its start, and entries that it doesn't have any more end. A last
    /// line without a line feed is left to the next refresh.
    ///
    /// # Errors
    /// Returns the error of reading, and `InvalidInput` for anything but a regular file; entries
    /// that were read before stay usable.
    pub fn refresh(&mut self, file: &File) -> io::Result<RefreshResult> {
        let was_catching_up = self.pending.is_some();
        let mut most = self.limits.read_bytes;
        let done = self.read_on(file, &mut most)?;
        if !was_catching_up || done.more {
            return Ok(done);
        }
        // Lines that were written while a large file was read.
        let then = self.read_on(file, &mut most)?;
        Ok(RefreshResult {
            added: done.added + then.added,
            restarted: done.restarted || then.restarted,
            more: then.more,
        })
    }

    /// Continues the pending read, or begins one. `most`: bytes that may still be read.
    fn read_on(&mut self, file: &File, most: &mut u64) -> io::Result<RefreshResult> {
        let began_ns = monotonic_ns();
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let stat = (metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        let seen_ns = monotonic_ns();
        let mut done = RefreshResult::default();
        let position = match self.position.take() {
            Some(position) if position.is_valid_for(file, metadata.dev(), metadata.ino(), stat)? => position,
            earlier => {
                done.restarted = earlier.is_some();
                self.restart(done.restarted, began_ns);
                ReadPosition::new(metadata.dev(), metadata.ino())
            }
        };
        let position = self.position.insert(ReadPosition { stat, ..position });
        let pending = self.pending.take().unwrap_or_else(|| {
            // A rewrite of the whole file shows which code is there, not since when.
            let after_ns = self.rewrite.map_or(self.read_until_ns, |rewrite| rewrite.last_ns);
            let created = CreationTime { after_ns, since_ns: seen_ns, is_doubtful: self.is_next_doubtful };
            PendingRead { began_ns, stat, created }
        });
        let end = pending.stat.0;
        let stop = end.min(position.offset.saturating_add(*most));
        let mut buffer = vec![0; PIECE.min((stop.saturating_sub(position.offset)) as usize)];
        while position.offset < stop {
            let wanted = buffer.len().min((stop - position.offset) as usize);
            let read = file.read_at(&mut buffer[..wanted], position.offset)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            position.advance(piece);
            self.counters.bytes_read += read as u64;
            *most -= read as u64;
            self.grown_ns = pending.created.since_ns;
            done.added += insert_lines(
                piece,
                pending.created,
                &self.limits,
                &mut self.splitter,
                &mut self.timeline,
                &mut self.counters,
            );
        }
        done.more = position.offset < end && position.offset == stop;
        if done.more {
            self.pending = Some(pending);
            return Ok(done);
        }
        self.is_next_doubtful = false;
        if done.added > 0 {
            self.narrow_last_creation(file, &pending);
        }
        self.read_until_ns = pending.began_ns;
        self.end_rewrite(pending.began_ns);
        Ok(done)
    }

    /// Narrows the time when the last entry was created to when the file was last changed, if that
    /// was by its last line. The kernel's time of that is never late.
    fn narrow_last_creation(&mut self, file: &File, pending: &PendingRead) {
        if self.rewrite.is_some() || !self.splitter.is_empty() || !has_no_write_under_way(file, pending.stat)
        {
            return;
        }
        let changed = file_time_to_monotonic(pending.stat.1, pending.stat.2);
        let is_within = |at: &u64| (pending.created.after_ns..=pending.began_ns).contains(at);
        if let Some(changed_ns) = changed.filter(is_within) {
            self.timeline.narrow_last_creation(changed_ns);
        }
    }

    /// Starts reading at the start of a file: the first one, or after a rewrite.
    fn restart(&mut self, is_rewrite: bool, now_ns: u64) {
        self.splitter = LineSplitter::default();
        self.pending = None;
        if !is_rewrite {
            return;
        }
        self.counters.restarts += 1;
        self.timeline.begin_rewrite();
        let last_ns = self.rewrite.map_or(self.grown_ns, |rewrite| rewrite.last_ns);
        self.rewrite = Some(Rewrite { last_ns, noticed_ns: now_ns });
    }

    fn end_rewrite(&mut self, now_ns: u64) {
        let Some(rewrite) = self.rewrite.filter(|_| now_ns.saturating_sub(self.grown_ns) >= REWRITE_QUIET_NS)
        else {
            return;
        };
        self.rewrite = None;
        let since =
            CreationTime { after_ns: rewrite.last_ns, since_ns: rewrite.noticed_ns, is_doubtful: false };
        self.timeline.end_rewrite(since, self.limits.memory_bytes);
    }

    /// Skips the present content of the file, which another process wrote: only lines that are
    /// appended from now on are read, or everything after a rewrite.
    ///
    /// # Errors
    /// Returns the error of reading.
    pub fn skip_present(&mut self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut position = ReadPosition::new(metadata.dev(), metadata.ino());
        position.offset = metadata.size();
        let length = metadata.size().min(FINGERPRINT_BYTES as u64);
        (position.head, position.tail) = (vec![0; length as usize], vec![0; length as usize]);
        file.read_exact_at(&mut position.head, 0)?;
        file.read_exact_at(&mut position.tail, metadata.size() - length)?;
        self.splitter = LineSplitter::resume_after(position.tail.last().copied());
        self.pending = None;
        self.position = Some(position);
        Ok(())
    }

    /// Marks the lines that the next refresh reads as possibly another process's, so that names
    /// from them are ambiguous.
    pub fn mark_next_lines_ambiguous(&mut self) {
        self.is_next_doubtful = true;
    }

    /// Returns the entry that was live at `address` at the time `at_ns` (`CLOCK_MONOTONIC`).
    pub fn lookup(&self, address: Avma, at_ns: u64) -> Option<CodeMatch<'_>> {
        self.timeline.lookup(address, at_ns)
    }

    /// Returns the time up to which everything that was written has been read, in ns of
    /// `CLOCK_MONOTONIC`.
    pub fn read_until_ns(&self) -> u64 {
        self.read_until_ns
    }

    /// Returns true if the unread rest of a large file may have been written before this time.
    pub fn may_have_unread_entries(&self, at_ns: u64) -> bool {
        self.pending.is_some_and(|pending| pending.created.after_ns < at_ns)
    }

    /// Drops superseded entries that no pending sample can need: see [`CodeTimeline::expire`].
    pub fn expire(&mut self, horizon_ns: u64) {
        self.timeline.expire(horizon_ns);
    }

    /// Returns the timeline's epoch: see [`CodeTimeline::epoch`].
    pub fn epoch(&self) -> u64 {
        self.timeline.epoch()
    }

    pub fn set_memory_limit(&mut self, bytes: usize) {
        self.limits.memory_bytes = bytes;
    }

    /// Sets the most bytes that one refresh reads.
    pub fn set_read_limit(&mut self, bytes: u64) {
        self.limits.read_bytes = bytes;
    }

    pub fn counters(&self) -> PerfMapCounters {
        let history_over_limit = self.timeline.history_over_limit();
        PerfMapCounters { history_over_limit, ..self.counters }
    }

    /// Returns the number of address ranges that a lookup distinguishes.
    pub fn len(&self) -> usize {
        self.timeline.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory in use.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.timeline.size_bytes() + self.splitter.size_bytes()
    }
}

/// Returns true if no write was under way when a file had this size and time.
///
/// A file has a write's time before it has its bytes (Linux `generic_file_write_iter`): that time
/// would be taken for that of the bytes before.
fn has_no_write_under_way(file: &File, stat: (u64, i64, i64)) -> bool {
    // Like the reading before it, this waits for a write that is under way, in one file system or
    // another.
    let _ = lseek(file, 0, Whence::SeekHole);
    let now = file.metadata();
    now.is_ok_and(|now| (now.size(), now.mtime(), now.mtime_nsec()) == stat)
}

/// Converts a file's time to `CLOCK_MONOTONIC`, in ns; it may be early, never late.
fn file_time_to_monotonic(seconds: i64, nanoseconds: i64) -> Option<u64> {
    // This clock first, so that the result is early rather than late.
    let monotonic = monotonic_ns();
    let now = clock_gettime(ClockId::CLOCK_REALTIME).ok()?;
    let age =
        (now.tv_sec() - seconds).checked_mul(1_000_000_000)?.checked_add(now.tv_nsec() - nanoseconds)?;
    monotonic.checked_sub(u64::try_from(age).ok()?)
}

/// Inserts the entries of a piece of the file, and returns how many there were.
fn insert_lines(
    piece: &[u8],
    created: CreationTime,
    limits: &PerfMapLimits,
    splitter: &mut LineSplitter,
    timeline: &mut CodeTimeline,
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
                timeline.remove(line.start, line.size, created, limits.memory_bytes);
            }
            Some(line) => {
                match timeline.insert(line.start, line.size, &line.name, created, limits.memory_bytes) {
                    InsertOutcome::New | InsertOutcome::Unchanged => counters.entries += 1,
                    InsertOutcome::OverLimit => counters.over_limit += 1,
                }
            }
            None => counters.malformed += u64::from(!is_cut),
        }
    });
    counters.entries - before
}

impl ReadPosition {
    fn new(device: u64, inode: u64) -> Self {
        Self { device, inode, stat: (0, 0, 0), offset: 0, head: Vec::new(), tail: Vec::new() }
    }

    /// Returns true if the bytes that were read are still there, so that reading can go on after
    /// them. HotSpot rewrites its whole map into the same file, which may have become longer
    /// meanwhile: size and inode alone don't show it.
    fn is_valid_for(&self, file: &File, device: u64, inode: u64, stat: (u64, i64, i64)) -> io::Result<bool> {
        if (device, inode) != (self.device, self.inode) || stat.0 < self.offset {
            return Ok(false);
        }
        if stat == self.stat {
            return Ok(true);
        }
        let mut bytes = [0; FINGERPRINT_BYTES];
        for (expected, at) in [(&self.head, 0), (&self.tail, self.offset - self.tail.len() as u64)] {
            let bytes = &mut bytes[..expected.len()];
            match file.read_exact_at(bytes, at) {
                Ok(()) if bytes == expected.as_slice() => {}
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, piece: &[u8]) {
        // Bytes that were skipped at the file's start don't belong to the fingerprint.
        if self.offset == self.head.len() as u64 {
            let missing = FINGERPRINT_BYTES - self.head.len();
            self.head.extend_from_slice(&piece[..missing.min(piece.len())]);
        }
        self.offset += piece.len() as u64;
        self.tail.extend_from_slice(&piece[piece.len() - piece.len().min(FINGERPRINT_BYTES)..]);
        self.tail.drain(..self.tail.len() - self.tail.len().min(FINGERPRINT_BYTES));
    }
}
