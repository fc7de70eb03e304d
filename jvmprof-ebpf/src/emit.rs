//! The end of a sample: the stack behind the last frame, where the daemon has to go on, and the ring buffer.

use core::mem::offset_of;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    cty::c_void,
    helpers::{bpf_ringbuf_output, bpf_ringbuf_query},
    macros::map,
    maps::RingBuf,
    programs::PerfEventContext,
};
use aya_log_ebpf::debug;
use jvmprof_common::abi::{
    BROKEN_TAIL_WORDS, Counter, END_TAIL_WORDS, MAX_TAIL_WORDS, SAMPLE_WORDS, SampleHeader, Stop,
};

use crate::{
    counters::{count, count_stop},
    globals, memory,
    scratch::{self, Scratch},
};

/// The daemon sets its size.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Emits the sample with the reason why its walk ended, a [`Stop`].
#[inline(never)]
pub fn finish(scratch: *mut Scratch, ctx: &PerfEventContext, stop: u64) {
    count_stop(stop as u8);
    // A pointer for as long as other functions write there, too.
    // SAFETY: it is this CPU's scratch memory, which nobody else uses meanwhile.
    unsafe { close(&mut *scratch, stop) };
    let words = tail_words(stop);
    if words != 0 {
        copy_tail(words as u64);
    }
    // SAFETY: as above.
    let scratch = unsafe { &mut *scratch };
    // What the daemon has to read of the process may be gone soon.
    let urgent = if scratch.process.jvm == 0 { MUCH } else { MUCH | SOME };
    let is_urgent = scratch.is_new != 0 || urgent & 1 << (stop & 63) != 0;
    if globals::log() != 0 {
        debug!(
            ctx,
            "pid {} tid {}: {} words, stop {}, sp {:x} fp {:x}",
            scratch.header.pid,
            scratch.header.tid,
            scratch.used,
            stop as u8,
            scratch.cursor.sp,
            scratch.cursor.fp
        );
    }
    emit(scratch, is_urgent);
}

/// Writes into the header where the walk has ended.
#[inline(always)]
fn close(scratch: &mut Scratch, stop: u64) {
    let words = scratch.used as usize;
    scratch.header.user_words = (words - scratch.header.kernel_frames as usize) as u16;
    scratch.header.stop = stop as u8;
    if stop != Stop::KernelThread as u64 && stop != Stop::Not64Bit as u64 && stop != Stop::NoMemory as u64 {
        scratch.header.tail_sp = scratch.cursor.sp;
        scratch.header.tail_fp = scratch.cursor.fp;
    }
}

/// Ends of walks, one bit each, by how much stack the daemon needs to go on.
const MUCH: u64 = 1 << Stop::UnknownProcess as u64
    | 1 << Stop::RowsMissing as u64
    | 1 << Stop::UnknownStub as u64
    | 1 << Stop::UnknownCode as u64;
const SOME: u64 = 1 << Stop::FramePointerInvalid as u64
    | 1 << Stop::StackUnreadable as u64
    | 1 << Stop::ReturnAddressInvalid as u64
    | 1 << Stop::CodeUnreadable as u64;
/// Whether the chain may end here depends on the code, which the daemon looks at.
const LITTLE: u64 = 1 << Stop::ChainEnded as u64;

#[inline(always)]
fn tail_words(stop: u64) -> usize {
    let stop = 1 << (stop & 63);
    if MUCH & stop != 0 {
        MAX_TAIL_WORDS
    } else if SOME & stop != 0 {
        BROKEN_TAIL_WORDS
    } else if LITTLE & stop != 0 {
        END_TAIL_WORDS
    } else {
        0
    }
}

/// Copies the stack behind the last frame, page by page, as far as it is readable. A global function: the verifier checks it
/// once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn copy_tail(max_words: u64) -> u64 {
    let Some(scratch) = scratch::get() else {
        return 0;
    };
    let begin = scratch.used;
    let mut address = scratch.cursor.sp;
    if !address.is_multiple_of(8) {
        return 0;
    }
    let mut left = max_words as usize * 8;
    let mut readable = begin;
    // MAX_TAIL_WORDS are eight pages, so that the copy touches nine at most.
    for _ in 0..9 {
        let to_page_end = 4096 - (address as usize & 4095);
        let bytes = if left < to_page_end { left } else { to_page_end };
        let at = scratch.used as usize;
        if bytes == 0 || at > SAMPLE_WORDS - 512 {
            break;
        }
        let bytes = memory::bounded::<4096>(bytes);
        // SAFETY: `at` leaves room for 512 words.
        let into = unsafe {
            core::slice::from_raw_parts_mut(scratch.words.as_mut_ptr().add(at).cast::<u8>(), bytes)
        };
        // Pages that the process hasn't touched yet lie within large frames: they become zeros here.
        if memory::read(address, into) {
            readable = scratch.used + bytes as u64 / 8;
        }
        address += bytes as u64;
        left -= bytes;
        scratch.used += bytes as u64 / 8;
    }
    scratch.used = readable;
    scratch.header.tail_words = (readable - begin) as u16;
    readable - begin
}

#[inline(always)]
fn emit(scratch: &mut Scratch, is_urgent: bool) {
    let words = scratch.used as usize;
    if words > SAMPLE_WORDS {
        count(Counter::UnwinderUnavailable);
        return;
    }
    let bytes = (size_of::<SampleHeader>() + words * 8) as u64;
    let ring = (&raw const SAMPLES).cast_mut().cast::<c_void>();
    // SAFETY: the map is a ring buffer.
    let unread = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
    // The reader looks at the ring in short intervals anyway; waking it for each sample would cost more than the sample.
    let wakes = is_urgent || unread >= u64::from(globals::wakeup_bytes());
    let flags = if wakes { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    let record = (&raw mut *scratch).cast::<u8>().wrapping_add(offset_of!(Scratch, header));
    // SAFETY: the header and its words lie together in the scratch memory and are `bytes` long at least.
    let result = unsafe { bpf_ringbuf_output(ring, record.cast::<c_void>(), bytes, u64::from(flags)) };
    count(if result == 0 { Counter::Emitted } else { Counter::RingBufferFull });
}
