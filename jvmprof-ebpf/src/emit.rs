//! The end of a sample: what is copied of the stack after the last frame, where the daemon has to
//! go on, and the ring buffer.

use core::mem::offset_of;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    cty::c_void,
    helpers::{bpf_get_current_task, bpf_ringbuf_output, bpf_ringbuf_query},
    macros::map,
    maps::RingBuf,
};
use aya_log_ebpf::debug;
use jvmprof_common::{
    abi::{
        BROKEN_TAIL_WORDS, CROWDED_TAIL_WORDS, Counter, END_TAIL_WORDS, Event, MAX_TAIL_WORDS,
        RED_ZONE_WORDS, SAMPLE_WORDS, SampleHeader, Stop,
    },
    address::Avma,
    allocation::TlabRecord,
    pause::PauseRecord,
};

use crate::{
    counters::{count, count_stop},
    globals, goroutine,
    memory_copy::append_memory,
    program_kind::ProgramKind,
    scratch::{self, Scratch, ScratchSlot},
    task::Task,
    thread::context,
};

/// The daemon sets its size.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Emits the sample with the reason why its walk ended, a [`Stop`]. The context is a pointer, since
/// a reference to it would take a part of the caller's stack.
#[inline(never)]
pub fn finish<C: ProgramKind>(scratch: *mut Scratch, ctx: *mut c_void, stop: u64) {
    count_stop(C::EVENT, stop as u8);
    // A pointer for as long as other functions write there, too.
    // SAFETY: it is this run's scratch memory, which nobody else uses meanwhile.
    unsafe { close(&mut *scratch, stop) };
    // SAFETY: as above.
    let slot = unsafe { (*scratch).slot };
    let words = tail_words(stop);
    if words != 0 {
        append_tail(slot.to_argument(), words as u64);
        if LONG_TAIL & 1 << (stop & 63) != 0 {
            goroutine::append_parked(slot);
        }
    }
    context::append(slot, C::EVENT, stop);
    // SAFETY: as above.
    let scratch = unsafe { &mut *scratch };
    // What the daemon has to read of the process may be gone soon; or the next such stack can be
    // walked once it is published.
    let urgent =
        if scratch.process.jvm == 0 { LONG_TAIL } else { LONG_TAIL | BROKEN_TAIL | 1 << Stop::Frozen as u64 };
    let is_urgent = scratch.has_new_code != 0 || urgent & 1 << (stop & 63) != 0;
    if globals::log() != 0 {
        debug!(
            &C::from_ptr(ctx),
            "pid {} tid {}: {} words, stop {}, sp {:x} fp {:x}",
            scratch.header.pid,
            scratch.header.tid,
            scratch.used,
            stop as u8,
            scratch.cursor.sp.0,
            scratch.cursor.fp.0
        );
    }
    emit(scratch, C::EVENT, is_urgent);
    C::release(slot);
}

/// Ends a run that can't go on; its sample is lost.
#[inline(always)]
pub fn abandon<C: ProgramKind>(slot: ScratchSlot) {
    count(C::EVENT, Counter::UnwinderUnavailable);
    C::release(slot);
}

/// Writes to the header where the walk has ended: [`Scratch::used`], [`Scratch::cursor`].
#[inline(always)]
fn close(scratch: &mut Scratch, stop: u64) {
    let words = scratch.used as usize;
    scratch.header.user_words = (words - scratch.header.head_words as usize) as u16;
    scratch.header.stop = stop as u8;
    if stop != Stop::KernelThread as u64 && stop != Stop::Not64Bit as u64 && stop != Stop::NoMemory as u64 {
        scratch.header.tail_sp = scratch.cursor.sp.0;
        scratch.header.tail_fp = scratch.cursor.fp.0;
    }
}

/// Ends of walks, one bit each, after which the daemon needs the longest tail.
const LONG_TAIL: u64 = 1 << Stop::UnknownProcess as u64
    | 1 << Stop::RowsMissing as u64
    | 1 << Stop::UnknownStub as u64
    | 1 << Stop::UnknownCode as u64;
/// The same, where a frame was broken.
const BROKEN_TAIL: u64 = 1 << Stop::FramePointerInvalid as u64
    | 1 << Stop::StackUnreadable as u64
    | 1 << Stop::ReturnAddressInvalid as u64
    | 1 << Stop::CodeUnreadable as u64;
/// The same, where it depends on the code whether the chain may end here.
const SHORT_TAIL: u64 = 1 << Stop::ChainEnded as u64;

#[inline(always)]
fn tail_words(stop: u64) -> usize {
    let stop = 1 << (stop & 63);
    if LONG_TAIL & stop != 0 {
        let is_crowded = unread() >= u64::from(globals::wakeup_bytes());
        if is_crowded { CROWDED_TAIL_WORDS } else { MAX_TAIL_WORDS }
    } else if BROKEN_TAIL & stop != 0 {
        BROKEN_TAIL_WORDS
    } else if SHORT_TAIL & stop != 0 {
        END_TAIL_WORDS
    } else {
        0
    }
}

/// Reads [`Scratch::cursor`], appends the stack from a little below it on to the sample, as far as
/// it is readable, and writes to the header how much that is. A global function, as the next ones:
/// the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn append_tail(slot: u64, max_words: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let Some(scratch) = scratch::get(slot) else {
        return 0;
    };
    let below = (RED_ZONE_WORDS * 8) as u64;
    let address = scratch.cursor.sp.wrapping_sub(below).0;
    if !address.is_multiple_of(8) {
        return 0;
    }
    let mut left = max_words * 8 + below;
    // Thread-local data lie at the end of a thread's stack, and after them whatever was mapped
    // before it.
    // SAFETY: the helper has no preconditions.
    let current = Task(unsafe { bpf_get_current_task() });
    let thread = current.thread_pointer().unwrap_or(Avma(0));
    for end in [thread.0, goroutine::stack_end(thread)] {
        if end > address && end - address < left {
            left = (end - address) & !7;
        }
    }
    let mut words = append_memory(slot.to_argument(), address, left);
    // What is below alone is no stack.
    let is_stack = words > RED_ZONE_WORDS as u64;
    if let Some(scratch) = scratch::get(slot) {
        if !is_stack {
            scratch.used = scratch.used.wrapping_sub(words);
            words = 0;
        }
        scratch.header.tail_words = words as u16;
        scratch.header.tail_below = below as u16;
    }
    words
}

#[inline(always)]
fn emit(scratch: &mut Scratch, event: Event, is_urgent: bool) {
    let words = scratch.used as usize;
    if words > SAMPLE_WORDS {
        count(event, Counter::UnwinderUnavailable);
        return;
    }
    let bytes = (size_of::<SampleHeader>() + words * 8) as u64;
    // The reader drains the ring in short intervals anyway; waking it for each sample would cost
    // more than the sample.
    let wakes = is_urgent || unread() >= u64::from(globals::wakeup_bytes());
    let flags = if wakes { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    let record = (&raw mut *scratch).cast::<u8>().wrapping_add(offset_of!(Scratch, header));
    // SAFETY: the header and its words lie together in the scratch memory and are `bytes` long at
    // least.
    let result = unsafe { bpf_ringbuf_output(ring(), record.cast::<c_void>(), bytes, u64::from(flags)) };
    count(event, if result == 0 { Counter::Emitted } else { Counter::RingBufferFull });
}

/// Writes a buffer that is to be read soon; returns false if the ring buffer is full.
#[inline(always)]
pub fn emit_tlab(record: &TlabRecord) -> bool {
    let bytes = size_of::<TlabRecord>() as u64;
    let record = (&raw const *record).cast_mut().cast::<c_void>();
    // SAFETY: the record is `bytes` long.
    unsafe { bpf_ringbuf_output(ring(), record, bytes, u64::from(BPF_RB_FORCE_WAKEUP)) == 0 }
}

/// Writes a pause, in the order of samples; returns false if the ring buffer is full.
#[inline(always)]
pub fn emit_pause(record: &PauseRecord) -> bool {
    let bytes = size_of::<PauseRecord>() as u64;
    let wakes = unread() >= u64::from(globals::wakeup_bytes());
    let flags = if wakes { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    let record = (&raw const *record).cast_mut().cast::<c_void>();
    // SAFETY: the record is `bytes` long.
    unsafe { bpf_ringbuf_output(ring(), record, bytes, u64::from(flags)) == 0 }
}

#[inline(always)]
fn ring() -> *mut c_void {
    (&raw const SAMPLES).cast_mut().cast()
}

/// Returns the bytes of the ring buffer that the daemon hasn't read.
#[inline(always)]
fn unread() -> u64 {
    // SAFETY: the map is a ring buffer.
    unsafe { bpf_ringbuf_query(ring(), u64::from(BPF_RB_AVAIL_DATA)) }
}
