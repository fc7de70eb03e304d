//! Memory in which one sample is built, one piece a CPU, and the unwinder's state between programs.

use aya_ebpf::{helpers::bpf_get_smp_processor_id, macros::map, maps::Array};
use jvmprof_common::{
    abi::{MAX_FRAME_WORDS, SAMPLE_WORDS, SampleHeader},
    jvm::MethodIdentity,
    tables::{PackedRule, ProcessEntry, Region},
    unwind::{
        Cursor, Window,
        hotspot::{CODE_WORDS, HEADER_WORDS, Words, frozen::Frozen},
        memory::Veil,
    },
};

use crate::{known::Recent, methods::RecentMethods};

/// What a CPU keeps.
#[repr(C)]
struct Cpu {
    copies: Copies,
    scratch: Scratch,
}

/// Per-CPU maps hold 32 KiB at most; the daemon makes this one as long as there are possible CPUs.
#[map]
static CPUS: Array<Cpu> = Array::with_max_entries(1, 0);

#[inline(always)]
fn cpu() -> Option<*mut Cpu> {
    // SAFETY: a helper without arguments.
    CPUS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() })
}

/// Stretches of memory that are copied with a sample, at most.
pub const MAX_STRETCHES: usize = 5;

/// A stretch of the process's memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stretch {
    pub start: u64,
    pub bytes: u64,
}

#[repr(C)]
pub struct Scratch {
    pub used: u64,
    pub frames: u64,
    pub cursor: Cursor,
    /// The cursor one frame earlier.
    pub callee: Cursor,
    /// 1 if the cursor was found by the frame pointer: nothing vouches for it yet.
    pub by_frame_pointer: u64,
    /// 1 if some of the Java code on the stack is new to the daemon.
    pub is_new: u64,
    /// 1 if the daemon has told of the process.
    pub is_known: u64,
    pub process: ProcessEntry,
    /// Where the walk is in the Java heap, if it is there.
    pub frozen: Frozen,
    /// Frames and words of the sample before the first one from there.
    pub frozen_from: [u64; 2],
    /// Where the last frame's code was: most callers are in the same region.
    pub region: Region,
    /// The words of the HotSpot frame in work.
    pub frame: Words,
    /// What is to be copied of the memory beside the stack.
    pub stretches: [Stretch; MAX_STRETCHES],
    pub veil: Veil,
    /// The rule of the native frame in work.
    pub rule: PackedRule,
    /// The header and its words lie together as they do in the ring buffer.
    pub header: SampleHeader,
    pub words: [u64; SAMPLE_WORDS],
    pub recent: Recent,
}

/// This CPU's scratch memory.
#[inline(always)]
pub fn get<'a>() -> Option<&'a mut Scratch> {
    // SAFETY: the pointer is valid for the program's run, the kernel neither nests perf event programs on a CPU nor moves
    // them to another, and each program takes it once.
    cpu().map(|cpu| unsafe { &mut (*cpu).scratch })
}

/// Pieces of the target's memory. They aren't part of [`Scratch`], since functions that the verifier checks by themselves fill
/// them while their callers hold that.
#[repr(C)]
pub struct Copies {
    pub window: Window,
    /// The begin of a header that was seen before, from its block's mark on.
    pub known: [u64; KNOWN_WORDS],
    pub code: [u64; CODE_WORDS],
    /// Of the interpreted frame in work.
    pub method: MethodIdentity,
    /// 1 if that was known.
    pub is_recalled: u64,
    pub header: [u64; HEADER_WORDS],
    pub methods: RecentMethods,
}

/// A power of two.
pub const KNOWN_WORDS: usize = 32;

/// This CPU's copies. Whoever uses them makes references for as long as no other function runs.
#[inline(always)]
pub fn copies() -> Option<*mut Copies> {
    // SAFETY: only an address is made of the pointer.
    cpu().map(|cpu| unsafe { &raw mut (*cpu).copies })
}

impl Scratch {
    /// Appends a word; the mask only tells the verifier what the limits of frames already guarantee.
    #[inline(always)]
    pub fn push(&mut self, word: u64) {
        self.words[self.used as usize & (SAMPLE_WORDS - 1)] = word;
        self.used += 1;
    }

    /// Appends the frame in work.
    #[inline(always)]
    pub fn push_frame(&mut self) {
        let at = self.used as usize;
        let mut index = 0;
        while index < MAX_FRAME_WORDS {
            self.words[(at + index) & (SAMPLE_WORDS - 1)] = self.frame.words[index];
            index += 1;
        }
        self.used += self.frame.count;
        self.frames += 1;
    }

    /// Takes the last frame back: the cursor is at its callee again.
    #[inline(always)]
    pub fn drop_frame(&mut self, words: u64) {
        self.frames -= 1;
        self.used -= words;
        self.cursor = self.callee;
    }
}
