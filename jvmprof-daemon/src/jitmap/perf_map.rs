//! Perf maps: `/tmp/perf-PID.map`, where runtimes write what they generated.
//!
//! Anybody can write such a file: reading never blocks, costs no more than its limits, and what isn't a sensible entry
//! is counted and left out.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::jitmap::lines::{self, Splitter};
use crate::jitmap::ranges::Ranges;
use crate::types::Avma;

/// Bytes read at once.
const PIECE: usize = 256 << 10;
/// Bytes of the file's start, and of what was read last, that are kept to tell that the file was written anew.
const WITNESS: usize = 128;

/// What a perf map may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapLimits {
    /// Most bytes of memory, names included.
    pub memory_bytes: usize,
    /// Longest line in bytes that is believed; longer ones are skipped.
    pub line_bytes: usize,
    /// Most bytes that one refresh reads; the rest waits for the next.
    pub read_bytes: u64,
    /// Most bytes that are read of one file; what is behind them is ignored.
    pub file_bytes: u64,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, line_bytes: 4096, read_bytes: 32 << 20, file_bytes: 1 << 30 }
    }
}

/// What was read, and what was refused for which reason, since the map was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapCounters {
    /// Entries taken.
    pub entries: u64,
    /// Lines without an address, a size and a name, or with an address or a size that can't be.
    pub malformed: u64,
    /// Lines longer than the limit.
    pub too_long: u64,
    /// Entries left out because the memory limit was reached.
    pub over_limit: u64,
    /// Times that the file was found truncated, replaced or written anew, and was read again from its start.
    pub restarts: u64,
    pub bytes_read: u64,
    /// Refreshes that ignored bytes behind the limit for one file.
    pub file_over_limit: u64,
}

/// What [`PerfMap::refresh`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Entries added.
    pub added: u64,
    /// The file was truncated, replaced or written anew; earlier entries were dropped.
    pub restarted: bool,
    /// There is more to read: the limit for one refresh was reached.
    pub more: bool,
}

/// Generated code that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitSymbol<'a> {
    /// The writer's text, see [`super::names::display_name`]. Control characters and bytes that aren't UTF-8 are
    /// replaced.
    pub raw: &'a str,
    /// Start of the entry as written, even where a later one overlaps it.
    pub start: Avma,
    /// Size in bytes as written.
    pub size: u64,
}

/// The entries of one process's perf map.
#[derive(Debug, Default)]
pub struct PerfMap {
    limits: PerfMapLimits,
    counters: PerfMapCounters,
    ranges: Ranges,
    splitter: Splitter,
    reading: Option<Reading>,
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

    /// Reads what is new in `file`, as the path leads to it now (open it by `native::open::open_in_root_owned`).
    ///
    /// Only new bytes are read while it is the same file and grows; a shorter, another, or a rewritten file is read
    /// from its start. A last line without its end waits for the next refresh.
    ///
    /// # Errors
    /// What reading says, and `InvalidInput` for what isn't a regular file; what was read before stays usable.
    pub fn refresh(&mut self, file: &File) -> io::Result<Refresh> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let seen = (metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        let mut done = Refresh::default();
        let reading = match self.reading.take() {
            Some(reading) if reading.is_still(file, metadata.dev(), metadata.ino(), seen)? => reading,
            earlier => {
                done.restarted = earlier.is_some();
                self.counters.restarts += u64::from(done.restarted);
                (self.ranges, self.splitter) = Default::default();
                Reading::new(metadata.dev(), metadata.ino())
            }
        };
        let reading = self.reading.insert(Reading { seen, ..reading });
        let end = seen.0.min(self.limits.file_bytes);
        let stop = end.min(reading.offset.saturating_add(self.limits.read_bytes));
        self.counters.file_over_limit += u64::from(seen.0 > end);
        let mut buffer = vec![0; PIECE.min((stop.saturating_sub(reading.offset)) as usize)];
        while reading.offset < stop {
            let wanted = buffer.len().min((stop - reading.offset) as usize);
            let read = file.read_at(&mut buffer[..wanted], reading.offset)?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            reading.advance(piece);
            self.counters.bytes_read += read as u64;
            done.added += take(piece, &self.limits, &mut self.splitter, &mut self.ranges, &mut self.counters);
        }
        done.more = reading.offset < end && reading.offset == stop;
        Ok(done)
    }

    /// The entry that covers `address`, the latest where several do.
    pub fn lookup(&self, address: Avma) -> Option<JitSymbol<'_>> {
        let found = self.ranges.lookup(address)?;
        Some(JitSymbol { raw: found.name, start: found.start, size: found.size })
    }

    pub fn counters(&self) -> PerfMapCounters {
        self.counters
    }

    pub fn limits(&self) -> PerfMapLimits {
        self.limits
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.ranges.size_bytes() + self.splitter.size_bytes()
    }
}

fn take(
    piece: &[u8],
    limits: &PerfMapLimits,
    splitter: &mut Splitter,
    ranges: &mut Ranges,
    counters: &mut PerfMapCounters,
) -> u64 {
    let before = counters.entries;
    splitter.feed(piece, limits.line_bytes, |line| {
        let Some(line) = line else {
            counters.too_long += 1;
            return;
        };
        let counter = match lines::parse(line) {
            Some(line) if ranges.insert(line.start, line.size, &line.name, limits.memory_bytes) => {
                &mut counters.entries
            }
            Some(_) => &mut counters.over_limit,
            None => &mut counters.malformed,
        };
        *counter += 1;
    });
    counters.entries - before
}

impl Reading {
    fn new(device: u64, inode: u64) -> Self {
        Self { device, inode, seen: (0, 0, 0), offset: 0, head: Vec::new(), tail: Vec::new() }
    }

    /// Whether what was read is still there, so that reading can go on behind it. HotSpot writes its whole map anew
    /// into the same file, which may have become longer meanwhile: size and inode alone don't tell.
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
        self.offset += piece.len() as u64;
        let missing = WITNESS - self.head.len();
        self.head.extend_from_slice(&piece[..missing.min(piece.len())]);
        self.tail.extend_from_slice(&piece[piece.len() - piece.len().min(WITNESS)..]);
        self.tail.drain(..self.tail.len() - self.tail.len().min(WITNESS));
    }
}
