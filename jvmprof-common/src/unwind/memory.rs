//! Reading the target's memory: word by word for the steppers, in windows for speed.
//!
//! A stack is walked upwards, frame by frame, and most frames are small. One copy of some hundred
//! bytes costs hardly more than a copy of eight, so [`StackWindow`] reads ahead and answers most
//! reads from its copy.

use crate::address::{Avma, StackAddress};
use crate::rows::Register;
use crate::verifier::BarrierVar;

/// The target's memory and registers as the steppers see them.
pub trait Memory {
    /// Reads the eight bytes of stack at an address.
    fn read_u64(&mut self, address: StackAddress) -> Option<u64>;

    /// Reads the eight bytes at an address, aligned or not, which aren't on the stack.
    fn read_object(&mut self, address: Avma) -> Option<u64> {
        self.read_u64(StackAddress(address.0))
    }

    /// Returns a register of the interrupted frame; `None` once that frame is left.
    fn register(&self, register: Register) -> Option<u64> {
        let _ = register;
        None
    }

    /// Returns the base of `fs`: the thread's own memory.
    fn thread_pointer(&self) -> Option<Avma> {
        None
    }
}

/// Memory that a [`StackWindow`] copies from.
pub trait WindowSource {
    /// Copies `bytes` bytes (a multiple of 8, in 8..=[`WINDOW_BYTES`]) at `address` to the start of
    /// `into`; false if they can't all be read.
    fn copy(&mut self, address: StackAddress, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool;
}

/// Words in a window. A power of two, so that an index is bounded by a mask.
pub const WINDOW_WORDS: usize = 64;
pub const WINDOW_BYTES: usize = WINDOW_WORDS * 8;
/// Windows end at page boundaries: a page is readable as a whole or not at all, so a copy never
/// fails because of its far end.
const PAGE: u64 = 4096;

const _: () = assert!(WINDOW_WORDS.is_power_of_two());

/// A copy of a stretch of the target's memory.
#[repr(C)]
#[derive(Debug)]
pub struct StackWindow {
    start: StackAddress,
    /// Bytes that are valid from `start` on.
    len: u64,
    words: [u64; WINDOW_WORDS],
    barrier_var: BarrierVar,
}

impl Default for StackWindow {
    fn default() -> Self {
        Self { start: StackAddress(0), len: 0, words: [0; WINDOW_WORDS], barrier_var: BarrierVar::default() }
    }
}

impl StackWindow {
    /// Forgets the copy: the target has run since.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.start = StackAddress(0);
        self.len = 0;
    }

    /// Returns the word at `address`, from the copy or from a new copy that begins there.
    #[inline(always)]
    pub fn read_u64(&mut self, source: &mut impl WindowSource, address: StackAddress) -> Option<u64> {
        match self.get(address) {
            Some(word) => Some(word),
            None => self.refill(source, address).then_some(self.words[0]),
        }
    }

    /// Returns the word at `address`, if it is in the copy.
    #[inline(always)]
    pub fn get(&mut self, address: StackAddress) -> Option<u64> {
        let offset = address.offset_from(self.start);
        // A copy begins at a multiple of 8.
        if offset >= self.len || !offset.is_multiple_of(8) {
            return None;
        }
        let index = self.barrier_var.opaque(offset >> 3) as usize;
        Some(self.words[index & (WINDOW_WORDS - 1)])
    }

    /// Makes a new copy that begins at `address`; returns false if that can't be read, or isn't a
    /// multiple of 8.
    #[inline(always)]
    pub fn refill(&mut self, source: &mut impl WindowSource, address: StackAddress) -> bool {
        if !address.is_multiple_of(8) {
            return false;
        }
        let to_page_end = PAGE - (address.0 & (PAGE - 1));
        let bytes = if to_page_end < WINDOW_BYTES as u64 { to_page_end } else { WINDOW_BYTES as u64 };
        self.len = 0;
        if !source.copy(address, &mut self.words, bytes as usize) {
            return false;
        }
        self.start = address;
        self.len = bytes;
        true
    }

    /// Returns the first word of the copy.
    #[inline(always)]
    pub const fn first(&self) -> u64 {
        self.words[0]
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

    impl WindowSource for Pages {
        fn copy(&mut self, address: StackAddress, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
            assert!(bytes.is_multiple_of(8) && (8..=WINDOW_BYTES).contains(&bytes), "{bytes} bytes");
            self.copies += 1;
            let address = address.0;
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
        let mut window = StackWindow::default();
        for address in (0x7008..0xa000).step_by(8) {
            assert_eq!(window.read_u64(&mut pages, StackAddress(address)), Some(address));
        }
        assert!(pages.copies <= 3 * PAGE as usize / WINDOW_BYTES + 3, "{} copies", pages.copies);
        assert_eq!(window.read_u64(&mut pages, StackAddress(0x7010)), Some(0x7010), "going back is allowed");
    }

    #[test]
    fn the_last_word_before_unmapped_memory_is_readable_and_the_next_is_not() {
        let mut pages = Pages { readable: 0x7000..0x8000, copies: 0 };
        let mut window = StackWindow::default();
        assert_eq!(window.read_u64(&mut pages, StackAddress(0x7ff8)), Some(0x7ff8));
        assert_eq!(window.read_u64(&mut pages, StackAddress(0x8000)), None);
        assert_eq!(window.read_u64(&mut pages, StackAddress(0x7ff8)), Some(0x7ff8));
    }

    #[test]
    fn a_cleared_window_reads_again_and_unaligned_words_are_refused() {
        let mut pages = Pages { readable: 0..0x2000, copies: 0 };
        let mut window = StackWindow::default();
        assert_eq!(
            window.read_u64(&mut pages, StackAddress(0)),
            Some(0),
            "address 0 is not mistaken for an empty window's"
        );
        window.clear();
        assert_eq!(window.read_u64(&mut pages, StackAddress(8)), Some(8));
        assert_eq!(pages.copies, 2);
        assert_eq!(window.read_u64(&mut pages, StackAddress(12)), None);
    }
}
