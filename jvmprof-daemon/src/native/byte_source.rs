//! Bounded reading of untrusted files: where bytes come from, and how many are let in.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Random access to the bytes of a file or of a buffer.
///
/// Reading goes through `pread`, never through a mapping: a file that is cut short meanwhile gives
/// an error where a mapping would give SIGBUS.
pub trait ByteSource {
    /// Size in bytes as of opening; a later read may still find the file shorter.
    fn size(&self) -> u64;

    /// Fills `buffer` from `offset` (bytes from the start).
    ///
    /// # Errors
    /// `UnexpectedEof` where the source ends before the buffer is full, else what the system says.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl ByteSource for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// An open file that was found to be a regular one, so that no read of it can wait for a writer.
#[derive(Debug)]
pub struct RegularFile<'f> {
    file: &'f File,
    size: u64,
}

impl<'f> RegularFile<'f> {
    /// Checks by `fstat` that `file` is a regular file.
    ///
    /// # Errors
    /// `InvalidInput` for FIFOs, devices, directories and sockets; else what `fstat` says.
    pub fn new(file: &'f File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { file, size: metadata.len() })
    }
}

impl ByteSource for RegularFile<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

/// A part of a file that was copied into memory; the rest can't be read.
#[derive(Debug)]
pub(crate) struct Window {
    start: u64,
    bytes: Box<[u8]>,
}

impl Window {
    /// Copies this range of `source`.
    ///
    /// # Errors
    /// What reading says; nothing is allocated for a range that isn't inside the source.
    pub(crate) fn copy(source: &impl ByteSource, range: std::ops::Range<u64>) -> io::Result<Self> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= source.size());
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; len].into_boxed_slice();
        source.read_exact_at(range.start, &mut bytes)?;
        Ok(Self { start: range.start, bytes })
    }

    /// Bytes of memory held.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl ByteSource for Window {
    fn size(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let offset = offset.checked_sub(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        (&*self.bytes).read_exact_at(offset, buffer)
    }
}
