//! Functions of a libjvm that uprobes are put at: those that report allocations, and those in which
//! it stops its threads.

mod allocation_functions;
mod pause_symbols;

use std::fs::File;
use std::path::Path;

use crate::native::byte_source::{ByteSource, RegularFile};
use crate::native::debug_files::{DebugFile, DebugFileLocator};
use crate::native::elf::ElfFile;
use crate::types::{BuildId, FileOffset, Svma};
pub use allocation_functions::find_allocation_functions;
pub use pause_symbols::{OperationNames, PauseSymbols, PauseTimes, find_pause_symbols};

/// The reason why a JVM's functions can't be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum FunctionsError {
    #[error("finding the functions of its libjvm: the file can't be read")]
    Unreadable,
    /// With the build id that a debug file would have.
    #[error(
        "finding the functions of its libjvm: it has no symbols, and no debug file with its build id is installed"
    )]
    NoSymbols(Option<BuildId>),
    #[error("finding the functions of its libjvm: those that report allocations pass no thread")]
    NoThread,
}

impl FunctionsError {
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NoSymbols(_) => "no symbols",
            Self::NoThread => "no thread",
        }
    }
}

/// Returns where code with this stated address is in the file.
fn file_offset<S: ByteSource>(file: &ElfFile<S>, address: Svma) -> Option<FileOffset> {
    file.header().segments.iter().find_map(|segment| {
        let within = address.0.checked_sub(segment.address.0)?;
        (segment.executable && within < segment.file_size).then(|| FileOffset(segment.offset.0 + within))
    })
}

/// Parses a libjvm that is open.
fn parse(file: &File) -> Result<ElfFile<RegularFile<'_>>, FunctionsError> {
    let source = RegularFile::new(file).map_err(|_| FunctionsError::Unreadable)?;
    ElfFile::parse(source).map_err(|_| FunctionsError::Unreadable)
}

/// Returns the debug file with the build id of `own`. It is one of the host, or was fetched to the
/// folder `downloads`: what a container says of a file that others map, too, would put breakpoints
/// into their code.
fn debug_file_of<S: ByteSource>(own: &ElfFile<S>, downloads: Option<&Path>) -> Option<DebugFile> {
    let downloads = downloads.map(Path::to_owned);
    let locator = DebugFileLocator { process_root: None, host: true, downloads };
    locator.by_build_id(own.build_id()?)
}
