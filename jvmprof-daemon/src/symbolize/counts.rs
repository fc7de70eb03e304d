//! What naming costs and what it can't do.

use std::collections::HashMap;

use super::generated::jit_counts::JitCounts;
use crate::kernel_tables::TableCounts;
use crate::native::file_cache::CacheCounters;

/// What is remembered, or waits, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUsage {
    pub name: &'static str,
    pub bytes: u64,
    /// It gets no larger than this.
    pub limit_bytes: u64,
}

impl CacheUsage {
    pub fn new(name: &'static str, bytes: usize, limit_bytes: usize) -> Self {
        Self { name, bytes: bytes as u64, limit_bytes: limit_bytes as u64 }
    }
}

/// What went wrong or was saved, for counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolCounts {
    pub files: CacheCounters,
    /// Mapped files that could not be used, by reason. A file counts once a process.
    pub unusable_files: HashMap<&'static str, u64>,
    /// Frames without a name, by reason. A frame counts once a process while it is remembered.
    pub unnamed: HashMap<&'static str, u64>,
    /// JVMs that could not be read, by reason.
    pub unreadable_jvms: HashMap<&'static str, u64>,
    /// Frames that had to be named anew since too many were remembered.
    pub frame_cache_resets: u64,
    /// Samples whose stack was finished over its copy, since the kernel program knew too little.
    pub finished_by_daemon: u64,
    pub perf_maps: JitCounts,
    /// Of the kernel's tables.
    pub tables: TableCounts,
}
