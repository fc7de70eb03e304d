//! Memory in which one sample is built, and the unwinder's state between programs: one piece for
//! each run of the unwinder that can be under way at a time ([`ScratchSlot`]). It also has the
//! caches of what was found for the last samples that were built there ([`unwind_cache`],
//! [`method_cache`]).

pub mod method_cache;
pub mod unwind_cache;

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id},
    macros::map,
    maps::{Array, HashMap},
};
use jvmprof_common::{
    abi::{MAX_FRAME_WORDS, PROBE_SLOTS, SAMPLE_WORDS, SampleHeader},
    address::Avma,
    unwind::{
        Cursor, StackWindow,
        hotspot::{
            EncodedFrame, code_blobs::HEADER_WORDS, compiled::instructions::LoadedCode,
            continuation::stack_chunk::FrozenWalk, method_identity::MethodIdentity,
        },
    },
    unwind_tables::{PackedRule, ProcessEntry, Region},
    verifier::BarrierVar,
};

use crate::globals;
use method_cache::MethodCache;
use unwind_cache::UnwindCache;

/// The memory of one run of the unwinder.
#[repr(C)]
struct SlotMemory {
    copies: Copies,
    scratch: Scratch,
}

/// Per-CPU maps hold 32 KiB at most. The daemon makes this one as long as there are possible CPUs,
/// for the clock's programs, and then [`PROBE_SLOTS`] for those of uprobes and waits.
#[map]
static SCRATCH: Array<SlotMemory> = Array::with_max_entries(1, 0);

/// The slots of uprobes and waits that are in use. The kernel inserts a key or refuses it, so that
/// two threads never get the same.
#[map]
static PROBE_SLOTS_IN_USE: HashMap<u32, u64> = HashMap::with_max_entries(PROBE_SLOTS, 0);

/// The piece of memory that a run of the unwinder works in: an index of [`SCRATCH`].
///
/// The first argument of each global function is the slot that it works in. The clock's programs
/// have one on each CPU, where nothing interrupts them. They interrupt those of uprobes, which in
/// turn may be preempted by the uprobe of another thread: each of their runs claims a slot, and
/// releases it at its end. So do the scheduler's, which an uprobe's may be preempted for.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ScratchSlot(u32);

impl ScratchSlot {
    /// Returns the slot of the clock's programs on this CPU.
    #[inline(always)]
    pub fn of_clock() -> Self {
        // SAFETY: a helper without arguments.
        Self(unsafe { bpf_get_smp_processor_id() })
    }

    /// Claims a slot for an uprobe that this thread has hit; `None` if all are in use.
    #[inline(always)]
    pub fn claim() -> Option<Self> {
        Self::claim_for(bpf_get_current_pid_tgid())
    }

    /// Claims a slot for the wait that has ended for this thread. It may have been preempted in an
    /// uprobe's program: it is another owner then.
    #[inline(always)]
    pub fn claim_for_wait() -> Option<Self> {
        Self::claim_for(!bpf_get_current_pid_tgid())
    }

    #[inline(always)]
    fn claim_for(thread: u64) -> Option<Self> {
        for slot in probe_slots() {
            if PROBE_SLOTS_IN_USE.insert(slot, thread, u64::from(BPF_NOEXIST)).is_ok() {
                let slot = Self(slot);
                get(slot)?.owner = thread;
                return Some(slot);
            }
        }
        None
    }

    /// Returns the slot that this thread has claimed.
    #[inline(always)]
    pub fn claimed() -> Option<Self> {
        Self::claimed_by(bpf_get_current_pid_tgid())
    }

    /// Returns the slot that this thread has claimed for a wait.
    #[inline(always)]
    pub fn claimed_for_wait() -> Option<Self> {
        Self::claimed_by(!bpf_get_current_pid_tgid())
    }

    #[inline(always)]
    fn claimed_by(thread: u64) -> Option<Self> {
        let slot = find_claimed(thread);
        (slot != NO_SLOT).then_some(Self(slot as u32))
    }

    /// Releases a claimed slot.
    #[inline(always)]
    pub fn release(self) {
        if let Some(scratch) = get(self) {
            scratch.owner = 0;
        }
        // It is there, since it was claimed.
        let _ = PROBE_SLOTS_IN_USE.remove(self.0);
    }

    /// Returns the slot that a global function got as its argument.
    #[inline(always)]
    pub const fn from_argument(argument: u64) -> Self {
        Self(argument as u32)
    }

    #[inline(always)]
    pub const fn to_argument(self) -> u64 {
        self.0 as u64
    }

    /// Returns its memory.
    #[inline(always)]
    fn memory(self) -> Option<*mut SlotMemory> {
        SCRATCH.get_ptr_mut(self.0)
    }
}

/// The value that [`find_claimed`] returns where there is none.
const NO_SLOT: u64 = u64::MAX;

/// Returns the slot that a thread has claimed. A global function: the verifier checks what follows
/// once, and not for each slot.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_claimed(thread: u64) -> u64 {
    for slot in probe_slots() {
        if get(ScratchSlot(slot)).is_some_and(|scratch| scratch.owner == thread) {
            return u64::from(slot);
        }
    }
    NO_SLOT
}

#[inline(always)]
fn probe_slots() -> core::ops::Range<u32> {
    let first = globals::first_probe_slot();
    first..first + PROBE_SLOTS
}

/// Ranges of memory that are copied with a sample beside its stack, at most.
pub const MAX_RANGES: usize = 5;

/// A range of the process's memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryRange {
    pub start: Avma,
    pub bytes: u64,
}

/// The sample that is built, and the state of its walk.
#[repr(C)]
pub struct Scratch {
    /// The thread that has claimed the slot: the result of `bpf_get_current_pid_tgid`, inverted
    /// for a wait.
    pub owner: u64,
    /// Where it is, for calls of global functions.
    pub slot: ScratchSlot,
    /// Words of the sample so far: kernel frames, then user frames, then what is copied.
    pub used: u64,
    /// Words of the sample up to the last page that could be read, while memory is copied.
    pub readable: u64,
    /// User frames of the sample so far.
    pub frames: u64,
    /// The current frame.
    pub cursor: Cursor,
    /// The cursor one frame earlier.
    pub callee: Cursor,
    /// 1 if the cursor was found by the frame pointer: nothing vouches for it yet.
    pub by_frame_pointer: u64,
    /// 1 if some of the Java code on the stack is new to the daemon.
    pub has_new_code: u64,
    /// 1 if the daemon has published the process.
    pub is_published: u64,
    pub process: ProcessEntry,
    /// The walk through the Java heap, if it is there.
    pub frozen: FrozenWalk,
    /// Frames and words of the sample before the first one from there.
    pub before_frozen: [u64; 2],
    /// The last frame's region: most callers are in the same one.
    pub region: Region,
    /// The current frame, of HotSpot's code.
    pub frame: EncodedFrame,
    /// Ranges to copy beside the stack.
    pub ranges: [MemoryRange; MAX_RANGES],
    pub barrier_var: BarrierVar,
    /// The rule of the current frame, of native code.
    pub rule: PackedRule,
    /// The header and its words lie together as they do in the ring buffer.
    pub header: SampleHeader,
    pub words: [u64; SAMPLE_WORDS],
    pub unwind_cache: UnwindCache,
}

/// Returns the scratch memory of a slot.
#[inline(always)]
pub fn get<'a>(slot: ScratchSlot) -> Option<&'a mut Scratch> {
    // SAFETY: the pointer is valid for the program's run. The kernel neither nests perf event
    // programs on a CPU nor moves them to another, other programs claim their slot, and each takes
    // it once.
    slot.memory().map(|memory| unsafe { &mut (*memory).scratch })
}

/// Pieces of the target's memory. They aren't part of [`Scratch`], since functions that the
/// verifier checks by themselves fill them while their callers hold that.
#[repr(C)]
pub struct Copies {
    pub window: StackWindow,
    /// The begin of a code blob, from its block's mark on.
    pub block: [u64; BLOCK_WORDS],
    pub code: LoadedCode,
    /// The method of the current frame, an interpreted one.
    pub method: MethodIdentity,
    /// 1 if that was cached.
    pub method_was_cached: u64,
    pub header: [u64; HEADER_WORDS],
    pub method_cache: MethodCache,
}

/// A power of two.
pub const BLOCK_WORDS: usize = 32;

/// Returns the copies of a slot. Whoever uses them makes references for as long as no other
/// function runs.
#[inline(always)]
pub fn copies(slot: ScratchSlot) -> Option<*mut Copies> {
    // SAFETY: only an address is made of the pointer.
    slot.memory().map(|memory| unsafe { &raw mut (*memory).copies })
}

impl Scratch {
    /// Appends a word; the mask only shows the verifier what the limits of frames already
    /// guarantee.
    #[inline(always)]
    pub fn push(&mut self, word: u64) {
        self.words[self.used as usize & (SAMPLE_WORDS - 1)] = word;
        self.used += 1;
    }

    /// Appends the current frame, which [`Self::frame`] has.
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
