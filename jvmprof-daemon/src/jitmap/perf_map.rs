//! Perf maps: `/tmp/perf-PID.map`, where runtimes write what they generated.

use std::fs::File;
use std::io;

use crate::types::Avma;

/// What a perf map may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapLimits {
    /// Most bytes of memory, names included.
    pub memory_bytes: usize,
    /// Longest line in bytes that is believed; longer ones are skipped.
    pub line_bytes: usize,
    /// Most bytes that one refresh reads; the rest waits for the next.
    pub read_bytes: u64,
}

impl Default for PerfMapLimits {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, line_bytes: 4096, read_bytes: 64 << 20 }
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
    /// Times that the file was found truncated or replaced, and was read again from its start.
    pub restarts: u64,
    pub bytes_read: u64,
}

/// What [`PerfMap::refresh`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Entries added.
    pub added: u64,
    /// The file was truncated or replaced; earlier entries were dropped.
    pub restarted: bool,
    /// There is more to read: the limit for one refresh was reached.
    pub more: bool,
}

/// Generated code that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitSymbol<'a> {
    /// The writer's text, see [`super::names::display_name`].
    pub raw: &'a str,
    /// Start of the entry as written, even where a later one overlaps it.
    pub start: Avma,
    /// Size in bytes as written.
    pub size: u64,
}

/// The entries of one process's perf map.
#[derive(Debug)]
pub struct PerfMap {
    limits: PerfMapLimits,
    counters: PerfMapCounters,
}

impl PerfMap {
    pub fn new(limits: PerfMapLimits) -> Self {
        Self { limits, counters: PerfMapCounters::default() }
    }

    /// Reads what is new in `file`, as the path leads to it now (open it by `native::open::open_in_root_owned`).
    ///
    /// Only new bytes are read while it is the same file and grows; a shorter or another file is read from its start. A last
    /// line without its end waits for the next refresh.
    ///
    /// # Errors
    /// What reading says; what was read before stays usable.
    pub fn refresh(&mut self, _file: &File) -> io::Result<Refresh> {
        Ok(Refresh::default())
    }

    /// The entry that covers `address`, the latest where several do.
    pub fn lookup(&self, _address: Avma) -> Option<JitSymbol<'_>> {
        None
    }

    pub fn counters(&self) -> PerfMapCounters {
        self.counters
    }

    pub fn limits(&self) -> PerfMapLimits {
        self.limits
    }

    /// How many ranges a lookup can tell apart.
    pub fn len(&self) -> usize {
        0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        0
    }
}
