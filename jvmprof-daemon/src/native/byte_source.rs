//! Bounded reading of untrusted files: sources of bytes, and limits of what is read from them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Random access to the bytes of a file or of a buffer.
///
/// Reading goes through `pread`, never through a mapping: a file that is truncated meanwhile gives
/// an error where a mapping would give SIGBUS.
pub trait ByteSource {
    /// Size in bytes as of opening; a later read may still find the file shorter.
    fn size(&self) -> u64;

    /// Fills `buffer` from `offset` (bytes from the start).
    ///
    /// # Errors
    /// `UnexpectedEof` where the source ends before the buffer is full, else the system's error.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Duplicates the handle, for a reader that outlives this one; `None` for a buffer, and where
    /// no descriptor is left.
    fn duplicate(&self) -> Option<OwnedFile> {
        None
    }
}

impl<S: ByteSource> ByteSource for &S {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buffer)
    }

    fn duplicate(&self) -> Option<OwnedFile> {
        (**self).duplicate()
    }
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

/// An open file that is known to be a regular one, so that no read of it can wait for a writer.
#[derive(Debug)]
pub struct RegularFile<'f> {
    file: &'f File,
    size: u64,
}

impl<'f> RegularFile<'f> {
    /// Checks by `fstat` that `file` is a regular file.
    ///
    /// # Errors
    /// `InvalidInput` for FIFOs, devices, directories and sockets; else the error of `fstat`.
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

    fn duplicate(&self) -> Option<OwnedFile> {
        Some(OwnedFile { file: self.file.try_clone().ok()?, size: self.size })
    }
}

/// A [`RegularFile`] with a descriptor of its own.
#[derive(Debug)]
pub struct OwnedFile {
    file: File,
    size: u64,
}

impl ByteSource for OwnedFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

/// A range of a source, read in order.
pub(crate) struct SourceReader<'s, S> {
    source: &'s S,
    left: Range<u64>,
}

impl<'s, S: ByteSource> SourceReader<'s, S> {
    pub(crate) fn new(source: &'s S, range: Range<u64>) -> Self {
        Self { source, left: range }
    }
}

impl<S: ByteSource> io::Read for SourceReader<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX);
        let count = buffer.len().min(left);
        self.source.read_exact_at(self.left.start, &mut buffer[..count])?;
        self.left.start += count as u64;
        Ok(count)
    }
}

/// A part of a file that was copied into memory; the rest can't be read.
#[derive(Debug)]
pub(crate) struct FileExcerpt {
    start: u64,
    bytes: Box<[u8]>,
}

impl FileExcerpt {
    /// Copies this range of `source`.
    ///
    /// # Errors
    /// The error of reading; nothing is allocated for a range that isn't inside the source.
    pub(crate) fn copy(source: &impl ByteSource, range: Range<u64>) -> io::Result<Self> {
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

impl ByteSource for FileExcerpt {
    fn size(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let offset = offset.checked_sub(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        (&*self.bytes).read_exact_at(offset, buffer)
    }
}
