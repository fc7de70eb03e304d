//! Parts of files of any size in bounded memory: pages that are read on demand.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::byte_source::ByteSource;
use super::elf::{ElfError, read_bytes};

/// Bytes that are read at once where reads follow each other.
const PAGE: u64 = 64 << 10;
/// Bytes that are read at once where reads are spread over the range.
const SMALL_PAGE: u64 = 16 << 10;

/// A range of a file, of which the most recently used pages are in memory.
///
/// A read that fails is treated as one beyond the end; [`Self::check`] returns the error
/// afterwards.
#[derive(Debug)]
pub(crate) struct PagedReader<S> {
    source: S,
    what: &'static str,
    range: Range<u64>,
    page_bytes: u64,
    cache: RefCell<PageCache>,
}

#[derive(Debug)]
struct PageCache {
    /// Pages, the most recently used first.
    pages: Vec<Page>,
    max_pages: usize,
    failed: Option<ElfError>,
}

#[derive(Debug)]
struct Page {
    number: u64,
    bytes: Arc<Vec<u8>>,
}

impl<S: ByteSource> PagedReader<S> {
    /// Makes a reader of the bytes at `range` of `source`, which keeps at most `max_pages` pages of
    /// 64 KiB. `what` names the part of the file, for messages.
    pub(crate) fn new(source: S, what: &'static str, range: Range<u64>, max_pages: usize) -> Self {
        let cache = PageCache { pages: Vec::new(), max_pages, failed: None };
        Self { source, what, range, page_bytes: PAGE, cache: RefCell::new(cache) }
    }

    /// Makes a reader of the same range with pages of its own, for a second position.
    pub(crate) fn with_pages(&self, max_pages: usize) -> Self
    where
        S: Copy,
    {
        Self::new(self.source, self.what, self.range.clone(), max_pages)
    }

    /// Makes a reader of the same range with `max_pages` pages of 16 KiB, for reads that are spread
    /// over it: most of a larger page would be read for nothing.
    pub(crate) fn with_small_pages(&self, max_pages: usize) -> Self
    where
        S: Copy,
    {
        Self { page_bytes: SMALL_PAGE, ..self.with_pages(max_pages) }
    }

    /// Returns the number of bytes in the range.
    pub(crate) fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Fills `buffer` from `at` in the range as far as there are bytes, and returns their number.
    pub(crate) fn read_up_to(&self, at: u64, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            let copied = self.with_rest_of_page(at.saturating_add(filled as u64), |bytes| {
                let count = bytes.len().min(rest.len());
                rest[..count].copy_from_slice(&bytes[..count]);
                count
            });
            match copied {
                None | Some(0) => break,
                Some(count) => filled += count,
            }
        }
        filled
    }

    /// Returns the bytes at `at`; `None` if not all of them are in the range.
    pub(crate) fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read_up_to(at, &mut bytes) == N).then_some(bytes)
    }

    /// Returns the page with the byte at `at`, and its start in the range.
    pub(crate) fn page(&self, at: u64) -> Option<(u64, Arc<Vec<u8>>)> {
        self.with_rest_of_page(at, |_| ())?;
        let cache = self.cache.borrow();
        cache.pages.first().map(|page| (page.number * self.page_bytes, Arc::clone(&page.bytes)))
    }

    /// Returns whether all reads succeeded.
    ///
    /// # Errors
    /// The first read that failed.
    pub(crate) fn check(&self) -> Result<(), ElfError> {
        self.cache.borrow_mut().failed.take().map_or(Ok(()), Err)
    }

    /// Passes on the bytes from `at` to the end of its page or of the range; `None` outside of it.
    fn with_rest_of_page<R>(&self, at: u64, handle: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if at >= self.len() {
            return None;
        }
        let (number, offset) = (at / self.page_bytes, (at % self.page_bytes) as usize);
        let mut cache = self.cache.borrow_mut();
        if cache.pages.first().is_none_or(|page| page.number != number) {
            self.load_page(&mut cache, number)?;
        }
        Some(handle(cache.pages.first()?.bytes.get(offset..)?))
    }

    /// Moves a page to the front, after reading it if necessary.
    fn load_page(&self, cache: &mut PageCache, number: u64) -> Option<()> {
        if let Some(index) = cache.pages.iter().position(|page| page.number == number) {
            cache.pages[..=index].rotate_right(1);
            return Some(());
        }
        let start = number * self.page_bytes;
        let length = self.page_bytes.min(self.len() - start);
        let at = self.range.start.checked_add(start)?;
        match read_bytes(&self.source, self.what, at, length, self.page_bytes) {
            Ok(bytes) => {
                cache.pages.truncate(cache.max_pages.saturating_sub(1));
                cache.pages.insert(0, Page { number, bytes: Arc::new(bytes) });
                Some(())
            }
            Err(error) => {
                cache.failed.get_or_insert(error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_whatever_was_read_before_and_few_pages_are_kept() {
        let file: Vec<u8> = (0..5 * PAGE + 100).map(|at| (at / 7 % 251) as u8).collect();
        let (source, range) = (&*file, 10..5 * PAGE + 50);
        let large = PagedReader::new(&source, "test", range.clone(), 2);
        let small = large.with_small_pages(3);
        let expected = &file[range.start as usize..range.end as usize];
        let mut at = 1u64;
        for (reader, most) in [(&large, 2), (&small, 3)].into_iter().cycle().take(4000) {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = (at >> 33) % reader.len();
            let mut buffer = vec![0; (at >> 20) as usize % (3 * PAGE as usize)];
            let count = reader.read_up_to(from, &mut buffer);
            let rest = &expected[from as usize..];
            assert_eq!(count, rest.len().min(buffer.len()));
            assert_eq!(buffer[..count], rest[..count]);
            assert_eq!(reader.bytes(from), Some([rest[0]]));
            assert!(reader.cache.borrow().pages.len() <= most);
        }
        for reader in [large, small] {
            assert_eq!((reader.bytes::<1>(reader.len()), reader.bytes::<1>(u64::MAX)), (None, None));
            assert!(reader.check().is_ok());
        }
    }

    #[test]
    fn a_file_that_is_shorter_by_now_is_an_error_in_the_end() {
        let file = vec![1u8; 2 * PAGE as usize];
        let source = &*file;
        let reader = PagedReader::new(&source, "test", 0..4 * PAGE, 2);
        assert_eq!(reader.bytes(PAGE), Some([1]));
        assert_eq!(reader.bytes::<1>(3 * PAGE), None);
        assert!(matches!(reader.check(), Err(ElfError::Read { .. })));
    }
}
