//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

/// An operation on the store that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `rename to`.
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is in use: another process writes to this directory", dir.display())]
    Locked { dir: PathBuf },
    #[error("{} was opened for reading only", dir.display())]
    ReadOnly { dir: PathBuf },
    #[error(
        "another process, such as `jvmprof daemon`, writes to {}: its profiles are shown here and no others are \
         taken; a collector with another --dir takes them",
        dir.display()
    )]
    WrittenByOther { dir: PathBuf },
    #[error("{} holds no profiles: it has no folder `series`", dir.display())]
    NoStore { dir: PathBuf },
    #[error("a profile without the label __name__ can't be stored")]
    NoName,
    #[error("a profile of {bytes} bytes can't be stored: the limit of the store is {limit} bytes")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("a label set of {bytes} bytes can't be stored: the limit is {limit} bytes (series {series:?})")]
    LabelSetTooLarge { series: String, bytes: usize, limit: usize },
    #[error(
        "no room for a new series in {}: the labels of all series take {used} bytes, its own {bytes}, and the limit \
         is {limit}; series that are there are taken on",
        dir.display()
    )]
    NoRoomForLabels { dir: PathBuf, bytes: u64, used: u64, limit: u64 },
    #[error("writing labels as JSON: {0}")]
    Labels(#[from] serde_json::Error),
}

impl StoreError {
    pub(super) fn io<'a>(call: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io { call, path: path.to_owned(), source }
    }

    /// Returns true if the disk, or the index, is full: the profile may fit later, when something
    /// has been removed.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            ),
            Self::NoRoomForLabels { .. } => true,
            _ => false,
        }
    }
}
