//! Errors of loading the data of a file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::native::elf::ElfError;
use crate::native::open_file::OpenError;

/// Error of loading the data of a file. Cheap to clone: errors are cached, too.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    Open(#[from] Arc<OpenError>),
    #[error("reading the metadata of {path}: {source}")]
    Stat { path: Arc<Path>, source: Arc<io::Error> },
    #[error("reading the {part} of {path}: {source}")]
    Elf { part: &'static str, path: Arc<Path>, source: Arc<ElfError> },
    #[error("reading {path}: it is another file by now than the one that was mapped")]
    Changed { path: Arc<Path> },
    #[error("caching the {part} of {path}: they take {size} bytes, too many for a cache of {limit}")]
    OverLimit { part: &'static str, path: Arc<Path>, size: usize, limit: u64 },
}

impl From<OpenError> for LoadError {
    fn from(error: OpenError) -> Self {
        Self::Open(Arc::new(error))
    }
}

impl LoadError {
    /// Returns the kind of error, as a short word for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Open(source) => source.reason(),
            Self::Stat { .. } => "stat",
            Self::Elf { source, .. } => source.reason(),
            Self::Changed { .. } => "changed",
            Self::OverLimit { .. } => "over_limit",
        }
    }

    /// Returns true if the file itself is at fault, for every process. A path that can't be opened
    /// may be so for one process only (its mount namespace, its end), and doesn't concern the file
    /// under this key.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, Self::Elf { .. } | Self::OverLimit { .. })
    }
}
