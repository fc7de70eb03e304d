//! Per-CPU memory in which one sample is built, and the unwinder's state between programs.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use jvmprof_common::{
    abi::{SAMPLE_WORDS, SampleHeader},
    unwind::{Cursor, Window},
};

#[repr(C)]
pub struct Scratch {
    /// The header and its words lie together as they do in the ring buffer.
    pub header: SampleHeader,
    pub words: [u64; SAMPLE_WORDS],
    pub used: u64,
    pub frames: u64,
    pub cursor: Cursor,
    /// The cursor one frame earlier.
    pub callee: Cursor,
    pub window: Window,
}

#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// This CPU's scratch memory.
#[inline(always)]
pub fn get<'a>() -> Option<&'a mut Scratch> {
    // SAFETY: the pointer is valid for the program's run, the kernel doesn't nest perf event programs on a CPU, and each
    // program takes it once.
    SCRATCH.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
}

impl Scratch {
    /// Appends a word; the mask only tells the verifier what the limits of frames already guarantee.
    #[inline(always)]
    pub fn push(&mut self, word: u64) {
        self.words[self.used as usize & (SAMPLE_WORDS - 1)] = word;
        self.used += 1;
    }
}
