//! Reasons for which a JVM can't be read, and for which one of its frames has no name.

use crate::process::procfs::ProcfsError;
use crate::types::Avma;

/// The reason why a process isn't known as a JVM.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotspotError {
    #[error("searching for a JVM: no file that the process maps exports {0}")]
    NotHotspot(&'static str),
    #[error("the JVM isn't initialised yet: {0}")]
    NotReady(&'static str),
    #[error(transparent)]
    Mappings(#[from] ProcfsError),
    #[error("reading {what} ({bytes} bytes at {address}) of the JVM")]
    Read { what: &'static str, address: Avma, bytes: usize },
    #[error("reading the JVM's {table}: {why}")]
    Table { table: &'static str, why: &'static str },
    #[error("finding {0}: the JVM doesn't say where it is")]
    Missing(String),
    #[error("{what} is {value:#x}, which doesn't fit any known JVM")]
    Implausible { what: &'static str, value: u64 },
}

impl HotspotError {
    /// Returns true if asking again moments later may succeed.
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

/// The reason why a frame has no name; each is shown and counted, none leads to a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NamingError {
    /// The process ended, or its memory isn't mapped any more.
    Unreadable,
    /// Other code, or none, is where the compiled method was when the sample was taken.
    CodeReplaced,
    /// The code was being unloaded.
    CodeUnloaded,
    /// Another method has taken the method's place.
    MethodReplaced,
    /// Classes were unloaded since the sample was taken: the method's may be one of them.
    TooLate,
    /// Something changed between the first and the last read.
    Changed,
    /// The pc lies outside the compiled method.
    OutsideCode,
    /// The compiled method's debug information makes no sense.
    DebugInfo,
    /// Method, constant pool and class don't belong together.
    Metadata,
    /// The bytecode index lies outside the method.
    BytecodeIndex,
    /// This JVM doesn't say where its compiled methods keep their debug information.
    Layout,
}

impl NamingError {
    /// Returns the reason in words, for people and for counters.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unreadable => "memory is gone",
            Self::CodeReplaced => "code was replaced",
            Self::CodeUnloaded => "code was unloaded",
            Self::MethodReplaced => "method was replaced",
            Self::TooLate => "read too late",
            Self::Changed => "changed while read",
            Self::OutsideCode => "pc outside its code",
            Self::DebugInfo => "bad debug information",
            Self::Metadata => "bad metadata",
            Self::BytecodeIndex => "bad bytecode index",
            Self::Layout => "unknown layout",
        }
    }
}
