//! The kernel's own symbols.

use std::io::{self, BufRead};

use crate::types::Avma;

/// Why the kernel's symbols can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KallsymsError {
    #[error("reading /proc/kallsyms: {0}")]
    Read(#[from] io::Error),
    #[error(
        "/proc/kallsyms shows no addresses: give the process CAP_SYSLOG, or set sysctl kernel.kptr_restrict=0 \
         (or 1 with CAP_SYSLOG)"
    )]
    Hidden,
    #[error("/proc/kallsyms lists no functions: the kernel was built without CONFIG_KALLSYMS")]
    Empty,
}

/// A function of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    pub name: &'a str,
    /// The module it belongs to (`ext4`, `bpf`); `None` for the kernel proper.
    pub module: Option<&'a str>,
    pub start: Avma,
    /// In bytes, up to the next symbol.
    pub size: u64,
}

/// The functions of the running kernel and its modules.
#[derive(Debug)]
pub struct Kallsyms {}

impl Kallsyms {
    /// Reads `/proc/kallsyms`.
    ///
    /// # Errors
    /// See [`KallsymsError`]; without CAP_SYSLOG it is usually [`KallsymsError::Hidden`].
    pub fn load() -> Result<Self, KallsymsError> {
        Err(KallsymsError::Empty)
    }

    /// Reads text in the format of `/proc/kallsyms`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(_text: impl BufRead) -> Result<Self, KallsymsError> {
        Err(KallsymsError::Empty)
    }

    /// The function that contains `address`.
    pub fn lookup(&self, _address: Avma) -> Option<KernelSymbol<'_>> {
        None
    }

    pub fn len(&self) -> usize {
        0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        0
    }
}
