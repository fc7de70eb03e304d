//! Why nothing, or not all, is known of a JVM.

use crate::process::procfs::ProcfsError;
use crate::types::Avma;

/// Why a process isn't known as a JVM.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotspotError {
    #[error("no file that the process maps exports {0}")]
    NotHotspot(&'static str),
    #[error("the JVM isn't initialised yet: {0}")]
    NotReady(&'static str),
    #[error(transparent)]
    Mappings(#[from] ProcfsError),
    #[error("reading {what} ({bytes} bytes at {address}) of the JVM")]
    Read { what: &'static str, address: Avma, bytes: usize },
    #[error("the JVM's {table}: {why}")]
    Table { table: &'static str, why: &'static str },
    #[error("the JVM doesn't say where {0} is")]
    Missing(String),
    #[error("{what} is {value:#x}, which doesn't fit any known JVM")]
    Implausible { what: &'static str, value: u64 },
}

impl HotspotError {
    /// True if asking again moments later may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NotReady(_))
    }

    /// A short word for counters: which kind of error this is.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotHotspot(_) => "not_hotspot",
            Self::NotReady(_) => "not_ready",
            Self::Mappings(source) => source.reason(),
            Self::Read { .. } => "read",
            Self::Table { .. } => "table",
            Self::Missing(_) => "unknown_layout",
            Self::Implausible { .. } => "implausible",
        }
    }
}
