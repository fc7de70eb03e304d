//! Reading the memory of the process that runs: helpers that read any user address without faulting
//! and report failure.

use core::hint::black_box;

use aya_ebpf::helpers::{bpf_probe_read_user, bpf_probe_read_user_buf};
use jvmprof_common::{address::Avma, thread_local::ReadWord, verifier::bounded};

#[inline(always)]
pub fn read_word(address: Avma) -> Option<u64> {
    // SAFETY: the helper takes any address.
    unsafe { bpf_probe_read_user(address.0 as *const u64) }.ok()
}

#[inline(always)]
pub fn read_byte(address: Avma) -> Option<u8> {
    // SAFETY: as above.
    unsafe { bpf_probe_read_user(address.0 as *const u8) }.ok()
}

/// Fills `into`; returns false if not all of it can be read.
#[inline(always)]
pub fn read(address: Avma, into: &mut [u8]) -> bool {
    // SAFETY: as above.
    unsafe { bpf_probe_read_user_buf(address.0 as *const u8, into) }.is_ok()
}

/// The memory of the process that runs.
pub struct UserMemory;

impl ReadWord for UserMemory {
    #[inline(always)]
    fn read_word(&self, address: Avma) -> Option<u64> {
        read_word(address)
    }
}

/// The same, with memory to which what lies between two words can be copied: a read of some hundred
/// bytes takes as long as that of a word, since most of it is opening the user's memory to the
/// kernel and closing it again.
pub struct BufferedUserMemory {
    /// Where [`BUFFER_BYTES`] can be written.
    pub buffer: *mut u8,
}

/// A power of two.
pub const BUFFER_BYTES: usize = 256;

impl ReadWord for BufferedUserMemory {
    #[inline(always)]
    fn read_word(&self, address: Avma) -> Option<u64> {
        read_word(address)
    }

    #[inline(always)]
    fn read_ends(&self, first: Avma, last: Avma) -> Option<[u64; 2]> {
        let distance = last.0.wrapping_sub(first.0);
        if distance > (BUFFER_BYTES - 8) as u64 {
            return Some([read_word(first)?, read_word(last)?]);
        }
        let bytes = bounded::<BUFFER_BYTES>(distance as usize + 8);
        // SAFETY: the buffer is as long.
        if !read(first, unsafe { core::slice::from_raw_parts_mut(self.buffer, bytes) }) {
            return None;
        }
        let last_word = black_box(distance as usize) & (BUFFER_BYTES - 8);
        // SAFETY: both words lie in what was read, at multiples of their length.
        Some(unsafe { [self.buffer.cast::<u64>().read(), self.buffer.add(last_word).cast::<u64>().read()] })
    }
}
