//! Errors of a spool.

use std::io;
use std::path::{Path, PathBuf};

/// An operation on the spool that failed.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `append to`.
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the spool {} is in use by another daemon: give this one another folder or another backend", dir.display())]
    Locked { dir: PathBuf },
    #[error("{bytes} bytes don't fit into the spool, whose limit is {limit} bytes")]
    TooLarge { bytes: u64, limit: u64 },
}

impl SpoolError {
    pub(in crate::export) fn io<'a>(
        call: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io { call, path: path.to_owned(), source }
    }
}
