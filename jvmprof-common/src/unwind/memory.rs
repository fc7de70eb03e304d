//! Reading the target's memory: word by word for the steppers, in windows for speed.
//!
//! A stack is walked upwards, frame by frame, and most frames are small. One copy of some hundred bytes costs hardly more
//! than a copy of eight, so [`Window`] reads ahead and answers most reads from its copy.

/// The target's memory as the steppers see it.
pub trait Memory {
    /// The eight bytes at this address, if they can be read.
    fn read_u64(&mut self, address: u64) -> Option<u64>;
}

/// Where a [`Window`] copies from.
pub trait Source {
    /// Copies `bytes` bytes (a multiple of 8, in 8..=[`WINDOW_BYTES`]) at `address` to the start of `into`; false if they
    /// can't all be read.
    fn copy(&mut self, address: u64, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool;
}

/// Words in a window. A power of two, so that an index is bounded by a mask.
pub const WINDOW_WORDS: usize = 128;
pub const WINDOW_BYTES: usize = WINDOW_WORDS * 8;
/// Windows end at page boundaries: a page is readable as a whole or not at all, so a copy never fails because of its
/// far end.
const PAGE: u64 = 4096;

const _: () = assert!(WINDOW_WORDS.is_power_of_two());

/// A copy of a stretch of the target's memory.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Window {
    start: u64,
    /// Bytes that are valid from `start` on.
    len: u64,
    words: [u64; WINDOW_WORDS],
}

impl Default for Window {
    fn default() -> Self {
        Self { start: 0, len: 0, words: [0; WINDOW_WORDS] }
    }
}

impl Window {
    /// Forgets the copy: the target has run since.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.start = 0;
        self.len = 0;
    }

    /// The word at `address`, from the copy or from a new copy that begins there.
    #[inline(always)]
    pub fn read_u64(&mut self, source: &mut impl Source, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) {
            return None;
        }
        if let Some(word) = self.get(address) {
            return Some(word);
        }
        let to_page_end = PAGE - (address & (PAGE - 1));
        let bytes = if to_page_end < WINDOW_BYTES as u64 { to_page_end } else { WINDOW_BYTES as u64 };
        self.len = 0;
        if !source.copy(address, &mut self.words, bytes as usize) {
            return None;
        }
        self.start = address;
        self.len = bytes;
        Some(self.words[0])
    }

    #[inline(always)]
    fn get(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.start);
        if offset >= self.len {
            return None;
        }
        Some(self.words[(offset >> 3) as usize & (WINDOW_WORDS - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages whose words hold their own address.
    struct Pages {
        readable: std::ops::Range<u64>,
        copies: usize,
    }

    impl Source for Pages {
        fn copy(&mut self, address: u64, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
            assert!(bytes.is_multiple_of(8) && (8..=WINDOW_BYTES).contains(&bytes), "{bytes} bytes");
            self.copies += 1;
            let end = address + bytes as u64;
            if !self.readable.contains(&address) || end > self.readable.end {
                return false;
            }
            for (index, word) in into.iter_mut().take(bytes / 8).enumerate() {
                *word = address + index as u64 * 8;
            }
            true
        }
    }

    #[test]
    fn every_word_of_a_stack_is_read_right_and_mostly_from_the_window() {
        let mut pages = Pages { readable: 0x7000..0xa000, copies: 0 };
        let mut window = Window::default();
        for address in (0x7008..0xa000).step_by(8) {
            assert_eq!(window.read_u64(&mut pages, address), Some(address));
        }
        assert!(pages.copies <= 3 * PAGE as usize / WINDOW_BYTES + 3, "{} copies", pages.copies);
        assert_eq!(window.read_u64(&mut pages, 0x7010), Some(0x7010), "going back is allowed");
    }

    #[test]
    fn the_last_word_before_unmapped_memory_is_readable_and_the_next_is_not() {
        let mut pages = Pages { readable: 0x7000..0x8000, copies: 0 };
        let mut window = Window::default();
        assert_eq!(window.read_u64(&mut pages, 0x7ff8), Some(0x7ff8));
        assert_eq!(window.read_u64(&mut pages, 0x8000), None);
        assert_eq!(window.read_u64(&mut pages, 0x7ff8), Some(0x7ff8));
    }

    #[test]
    fn a_cleared_window_reads_again_and_unaligned_words_are_refused() {
        let mut pages = Pages { readable: 0..0x2000, copies: 0 };
        let mut window = Window::default();
        assert_eq!(
            window.read_u64(&mut pages, 0),
            Some(0),
            "address 0 is not mistaken for an empty window's"
        );
        window.clear();
        assert_eq!(window.read_u64(&mut pages, 8), Some(8));
        assert_eq!(pages.copies, 2);
        assert_eq!(window.read_u64(&mut pages, 12), None);
    }
}
