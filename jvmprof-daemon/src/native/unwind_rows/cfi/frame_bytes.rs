//! The bytes of a section of call frame information: in memory, or read from the file by pages
//! where it is large.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use gimli::{EndianSlice, LittleEndian, Reader, ReaderOffsetId};

use crate::native::byte_source::{ByteSource, OwnedFile};
use crate::native::elf::{ElfError, ElfFile, Section};
use crate::native::paged_reader::PagedReader;

/// Largest section of call frame information that is read, in bytes. JDK 17's libjvm has 1.5 MB,
/// node 20 has 2.8 MB.
pub(crate) const MAX_SECTION: u64 = 64 << 20;
/// Largest compressed section that is expanded, in bytes: of programs that were built with
/// `.debug_frame` alone.
const MAX_EXPANDED: u64 = 16 << 20;
/// Pages of a large section that are in memory: linkers write the entries of hot, cold and other
/// code each in the order of addresses.
const MAX_PAGES: usize = 32;

/// Bytes of a section, in memory or in the file.
#[derive(Debug)]
pub(crate) enum FrameBytes {
    Memory(Box<[u8]>),
    File(Mutex<PagedReader<OwnedFile>>),
}

impl Default for FrameBytes {
    fn default() -> Self {
        Self::Memory(Box::default())
    }
}

impl FrameBytes {
    /// Loads the bytes of a section, which stay in the file if there are more than `max_in_memory`.
    ///
    /// # Errors
    /// [`ElfError`] where it can't be read or is too large.
    pub(crate) fn load<S: ByteSource>(
        file: &ElfFile<S>,
        section: &Section,
        max_in_memory: u64,
    ) -> Result<Self, ElfError> {
        if section.is_compressed() {
            return Ok(Self::Memory(file.read(section, MAX_EXPANDED)?.into()));
        }
        if section.size > max_in_memory
            && let Some(source) = file.source().duplicate()
        {
            let range = file.range(section, MAX_SECTION)?;
            return Ok(Self::File(Mutex::new(PagedReader::new(
                source,
                "frame information",
                range,
                MAX_PAGES,
            ))));
        }
        Ok(Self::Memory(file.read(section, MAX_SECTION)?.into()))
    }

    /// Returns at most `length` bytes from `at` on.
    pub(crate) fn get(&self, at: usize, length: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Memory(bytes) => {
                let rest = bytes.get(at..).unwrap_or_default();
                Cow::Borrowed(&rest[..length.min(rest.len())])
            }
            Self::File(reader) => {
                let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                let mut bytes = vec![0; length.min((reader.len() as usize).saturating_sub(at))];
                let count = reader.read_up_to(at as u64, &mut bytes);
                bytes.truncate(count);
                Cow::Owned(bytes)
            }
        }
    }

    /// Returns whether all reads succeeded.
    ///
    /// # Errors
    /// The first read that failed: rows that were read since then may be missing.
    pub(crate) fn check(&self) -> Result<(), ElfError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(reader) => reader.lock().unwrap_or_else(PoisonError::into_inner).check(),
        }
    }

    /// Returns the bytes of memory that the section takes, or would take.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(reader) => reader.lock().unwrap_or_else(PoisonError::into_inner).len() as usize,
        }
    }
}

/// Reader of bytes in memory.
pub(crate) type MemoryReader<'a> = EndianSlice<'a, LittleEndian>;

/// Reader of bytes in a file, of which one page is in memory.
#[derive(Clone, Debug)]
pub(crate) struct FileReader<'a> {
    pages: &'a Mutex<PagedReader<OwnedFile>>,
    page: Arc<Vec<u8>>,
    page_start: usize,
    /// Position from the section's start.
    at: usize,
    end: usize,
}

impl<'a> FileReader<'a> {
    pub(crate) fn new(pages: &'a Mutex<PagedReader<OwnedFile>>) -> Self {
        let end = pages.lock().unwrap_or_else(PoisonError::into_inner).len() as usize;
        Self { pages, page: Arc::default(), page_start: 0, at: 0, end }
    }

    /// Returns the bytes from here to the end of the page.
    fn rest_of_page(&mut self) -> gimli::Result<&[u8]> {
        let end = gimli::Error::UnexpectedEof(self.offset_id());
        let is_inside = self.at >= self.page_start && self.at - self.page_start < self.page.len();
        if !is_inside {
            let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            let (start, page) = pages.page(self.at as u64).ok_or(end)?;
            (self.page_start, self.page) = (start as usize, page);
        }
        self.page.get(self.at - self.page_start..).ok_or(end)
    }

    fn check_length(&self, length: usize) -> gimli::Result<()> {
        let is_inside = length <= self.end - self.at;
        is_inside.then_some(()).ok_or_else(|| gimli::Error::UnexpectedEof(self.offset_id()))
    }
}

impl Reader for FileReader<'_> {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.end - self.at
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    fn truncate(&mut self, length: usize) -> gimli::Result<()> {
        self.check_length(length)?;
        self.end = self.at + length;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at - base.at
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        usize::try_from(id.0).ok()?.checked_sub(self.at).filter(|offset| *offset <= self.len())
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut rest = self.clone();
        while rest.read_u8()? != byte {}
        Ok(rest.at - 1 - self.at)
    }

    fn skip(&mut self, length: usize) -> gimli::Result<()> {
        self.check_length(length)?;
        self.at += length;
        Ok(())
    }

    fn split(&mut self, length: usize) -> gimli::Result<Self> {
        let mut first = self.clone();
        first.truncate(length)?;
        self.at += length;
        Ok(first)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        let mut bytes = vec![0; self.len()];
        self.clone().read_slice(&mut bytes)?;
        Ok(bytes.into())
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        let bytes = self.to_slice()?.into_owned();
        String::from_utf8(bytes).map(Cow::Owned).map_err(|_| gimli::Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(&self.to_slice()?).into_owned().into())
    }

    fn read_slice(&mut self, buffer: &mut [u8]) -> gimli::Result<()> {
        self.check_length(buffer.len())?;
        let mut filled = 0;
        while filled < buffer.len() {
            let page = self.rest_of_page()?;
            let count = page.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&page[..count]);
            (filled, self.at) = (filled + count, self.at + count);
        }
        Ok(())
    }
}
