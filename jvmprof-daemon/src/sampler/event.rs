//! Events in the order of their time: samples, and what processes do.

use super::sample::Sample;
use crate::types::{Avma, BuildId, FileOffset};

/// Something that happened at a time.
#[derive(Debug)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    pub kind: EventKind,
}

#[derive(Debug)]
pub enum EventKind {
    Sample(Sample),
    /// A process replaced its program; its mappings follow as events of their own.
    Exec {
        pid: u32,
        comm: String,
    },
    /// A thread got a name. The process's own name is that of its first thread.
    ThreadName {
        pid: u32,
        tid: u32,
        comm: String,
    },
    /// A process was created; it starts with its parent's mappings.
    Fork {
        pid: u32,
        parent: u32,
    },
    /// A thread ended.
    Exit {
        pid: u32,
        tid: u32,
    },
    /// Memory was mapped executable.
    Map {
        pid: u32,
        mapping: NewMapping,
    },
    /// The kernel dropped process events: what is known of mappings may be stale.
    EventsLost,
}

/// An executable mapping at the time it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMapping {
    pub start: Avma,
    /// Bytes.
    pub length: u64,
    pub offset: FileOffset,
    /// As the process sees it; `//anon` and names in brackets where there is no file.
    pub path: String,
    pub build_id: Option<BuildId>,
}
