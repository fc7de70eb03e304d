//! Errors of reading ELF files.

use std::io;

/// Error of reading an ELF file, or a part of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    #[error("reading {what} ({len} bytes at file offset {offset:#x}): {source}")]
    Read { what: String, offset: u64, len: u64, source: io::Error },
    #[error("parsing the ELF header: not an ELF file")]
    NotElf,
    #[error("parsing the ELF header: a file for {found}, but only 64-bit little-endian x86-64 is profiled")]
    Foreign { found: String },
    #[error("parsing the ELF header: the type {0} is neither an executable nor a shared object")]
    NotLoadable(u16),
    #[error("reading {what}: it has {size} bytes, more than the limit of {limit}")]
    TooLarge { what: String, size: u64, limit: u64 },
    #[error("parsing {what}: {why}")]
    Malformed { what: String, why: &'static str },
    #[error("reading DWARF: {0}")]
    Dwarf(gimli::Error),
    #[error("reading DWARF: its entries are nested in more than {limit} levels")]
    TooDeep { limit: usize },
}

impl ElfError {
    /// Returns the kind of error, as a short word for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::NotElf => "not_elf",
            Self::Foreign { .. } => "foreign",
            Self::NotLoadable(_) => "not_loadable",
            Self::TooLarge { .. } => "too_large",
            Self::Malformed { .. } => "malformed",
            Self::Dwarf(_) => "dwarf",
            Self::TooDeep { .. } => "too_deep",
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, why: &'static str) -> Self {
        Self::Malformed { what: what.into(), why }
    }
}
