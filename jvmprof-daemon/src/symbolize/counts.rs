//! Counters of symbolization: memory, and losses.

pub(super) mod jit_counts;

use std::collections::HashMap;

use crate::kernel_tables::TableCounts;
use crate::native::file_cache::CacheCounters;
use jit_counts::JitCounts;

/// Memory of a cache or a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    pub name: &'static str,
    pub bytes: u64,
    /// Upper bound of the bytes.
    pub limit_bytes: u64,
}

impl CacheUsage {
    pub fn new(name: &'static str, bytes: usize, limit_bytes: usize) -> Self {
        Self { name, bytes: bytes as u64, limit_bytes: limit_bytes as u64 }
    }
}

/// Counters of symbolization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolCounts {
    pub files: CacheCounters,
    /// Mapped files that could not be used, by reason. A file counts once a process.
    pub unusable_files: HashMap<&'static str, u64>,
    /// Frames without a name, by reason. A frame counts once a process while it is cached.
    pub unnamed: HashMap<&'static str, u64>,
    /// JVMs that could not be read, by reason.
    pub unreadable_jvms: HashMap<&'static str, u64>,
    /// Times that a process's frame cache was emptied since it was full.
    pub frame_cache_resets: u64,
    /// Samples whose stack the daemon completed over its copy, since the kernel program lacked
    /// data.
    pub completed_by_daemon: u64,
    pub perf_maps: JitCounts,
    /// Counters of the kernel's tables.
    pub tables: TableCounts,
}
