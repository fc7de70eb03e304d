//! Copying memory of the process into the sample.

use jvmprof_common::{
    abi::{COPY_WORDS, MAX_TAIL_WORDS, SAMPLE_WORDS},
    address::Avma,
    verifier::bounded,
};

use crate::{
    scratch::{self, MAX_RANGES, MemoryRange, ScratchSlot},
    user_memory,
};

/// Appends the first of [`Scratch::ranges`](scratch::Scratch::ranges) to the sample, each after its
/// address and the number of its words, and writes to the header how many words these are.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn append_ranges(slot: u64, count: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let mut all = 0;
    for index in 0..MAX_RANGES {
        let Some(scratch) = scratch::get(slot) else {
            break;
        };
        let at = scratch.used as usize;
        if index as u64 >= count || at > SAMPLE_WORDS - COPY_WORDS {
            break;
        }
        let MemoryRange { start, bytes } = scratch.ranges[index];
        scratch.used += 2;
        let words =
            if start.is_multiple_of(8) { append_memory(slot.to_argument(), start.0, bytes) } else { 0 };
        let Some(scratch) = scratch::get(slot) else {
            break;
        };
        scratch.words[at & (SAMPLE_WORDS - 1)] = start.0;
        scratch.words[(at + 1) & (SAMPLE_WORDS - 1)] = words;
        all += 2 + words;
        scratch.header.far_words = all as u16;
    }
    all
}

/// Appends a range of memory to [`Scratch::words`](scratch::Scratch::words), page by page, as far
/// as it is readable, and returns how many words these are.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn append_memory(slot: u64, mut address: u64, bytes: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let Some(scratch) = scratch::get(slot) else {
        return 0;
    };
    let mut left = bytes;
    let begin = scratch.used;
    scratch.readable = begin;
    // The pages of the longest tail, and one more each where the first and the last one aren't
    // copied as a whole.
    for _ in 0..(MAX_TAIL_WORDS / COPY_WORDS + 2).div_ceil(PAGES_AT_ONCE) {
        let bytes = append_pages(slot.to_argument(), address, left);
        if bytes == 0 {
            break;
        }
        address += bytes;
        left -= bytes;
    }
    scratch.used = scratch.readable;
    scratch.readable.wrapping_sub(begin)
}

/// Pages that [`append_pages`] copies: the verifier walks as many, and not those of a whole tail.
const PAGES_AT_ONCE: usize = 8;

/// Appends a few pages, notes in [`Scratch::readable`](scratch::Scratch::readable) how far they
/// could be read, and returns how many bytes these are.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn append_pages(slot: u64, address: u64, left: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let Some(scratch) = scratch::get(slot) else {
        return 0;
    };
    let mut copied = 0;
    for _ in 0..PAGES_AT_ONCE {
        let page = append_page(slot.to_argument(), address + copied, left - copied);
        let bytes = page & !IS_READABLE;
        if bytes == 0 {
            break;
        }
        if page & IS_READABLE != 0 {
            scratch.readable = scratch.used;
        }
        copied += bytes;
    }
    copied
}

/// Appends memory up to the end of its page to [`Scratch::words`](scratch::Scratch::words), and
/// returns how many bytes these are, and [`IS_READABLE`]; 0 if nothing is left to copy, or no
/// space.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn append_page(slot: u64, address: u64, left: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return 0;
    };
    let to_page_end = 4096 - (address & 4095);
    let bytes = if left < to_page_end { left } else { to_page_end };
    let at = scratch.used as usize;
    if bytes == 0 || at > SAMPLE_WORDS - COPY_WORDS {
        return 0;
    }
    let bytes = bounded::<{ COPY_WORDS * 8 }>(bytes as usize);
    // SAFETY: `at` leaves space for as many words.
    let into =
        unsafe { core::slice::from_raw_parts_mut(scratch.words.as_mut_ptr().add(at).cast::<u8>(), bytes) };
    scratch.used += bytes as u64 / 8;
    // Pages that the process hasn't touched yet lie within large frames: they become zeros here.
    if user_memory::read(Avma(address), into) { bytes as u64 | IS_READABLE } else { bytes as u64 }
}

/// Bit of [`append_page`]'s result: the memory could be read.
const IS_READABLE: u64 = 1 << 32;
