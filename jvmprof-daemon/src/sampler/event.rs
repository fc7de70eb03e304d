//! Events in the order of their time: samples, and what processes do.

use jvmprof_common::allocation::TlabRecord;
use jvmprof_common::pause::PauseRecord;

use super::sample::StackSample;
use crate::types::{Avma, BuildId, FileOffset};

/// A sample or a process event, with its time.
#[derive(Debug)]
pub struct KernelEvent {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    pub kind: KernelEventKind,
}

#[derive(Debug)]
pub enum KernelEventKind {
    Sample(StackSample),
    /// A buffer of a JVM's heap was given up, and is chosen for a census.
    Tlab(TlabRecord),
    /// A JVM has stopped its threads, or lets them go on.
    Pause(Box<PauseRecord>),
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
        mapping: MappingEvent,
    },
    /// The kernel dropped process events: mappings may be outdated.
    EventsLost,
}

/// An executable mapping at the time it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingEvent {
    pub start: Avma,
    /// Bytes.
    pub length: u64,
    pub offset: FileOffset,
    /// Path as the process sees it; `//anon` or a name in brackets without a file.
    pub path: String,
    pub build_id: Option<BuildId>,
}
