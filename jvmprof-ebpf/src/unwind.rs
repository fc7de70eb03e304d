//! Walking the user stack: some frames a program, one program after the other, until the stack ends.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    cty::c_void,
    helpers::{bpf_probe_read_user_buf, bpf_ringbuf_output, bpf_ringbuf_query},
    macros::{map, perf_event},
    maps::{ProgramArray, RingBuf},
    programs::PerfEventContext,
};
use aya_log_ebpf::debug;
use jvmprof_common::{
    abi::{
        BROKEN_TAIL_WORDS, Counter, END_TAIL_WORDS, FRAMES_PER_PROGRAM, FrameWord, MAX_TAIL_WORDS,
        MAX_USER_FRAMES, SAMPLE_WORDS, SHALLOW_FRAMES, SampleHeader, Stop,
    },
    unwind::{
        FramePointersOnly, Memory, Source, Window,
        call::ends_in_call,
        memory::{WINDOW_BYTES, WINDOW_WORDS},
        step,
    },
};

use crate::{
    counters::{count, count_stop},
    globals,
    scratch::{self, Scratch},
};

/// The daemon sets its size.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Entry 0 is [`unwind`].
#[map]
static PROGRAMS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Continues in [`unwind`]; returns only if that isn't possible.
#[inline(always)]
pub fn start(ctx: &PerfEventContext) {
    // SAFETY: the programs of the array have this context's type; a missing entry makes the call return.
    unsafe { PROGRAMS.tail_call(ctx, 0) };
}

#[perf_event]
fn unwind(ctx: PerfEventContext) -> u32 {
    let Some(scratch) = scratch::get() else {
        count(Counter::UnwinderUnavailable);
        return 0;
    };
    for _ in 0..FRAMES_PER_PROGRAM {
        if scratch.frames >= MAX_USER_FRAMES as u64 {
            finish(scratch, &ctx, Stop::DepthReached);
            return 0;
        }
        let mut cursor = scratch.cursor;
        let mut memory = UserMemory { window: &mut scratch.window };
        if let Err(stop) = step(&mut cursor, &mut memory, &mut FramePointersOnly) {
            drop_false_frame(scratch);
            finish(scratch, &ctx, stop);
            return 0;
        }
        scratch.callee = scratch.cursor;
        scratch.cursor = cursor;
        scratch.push(FrameWord::return_address(scratch.cursor.pc).0);
        scratch.frames += 1;
    }
    start(&ctx);
    // The kernel's limit of tail calls.
    finish(scratch, &ctx, Stop::DepthReached);
    0
}

/// Takes the last frame back if its return address doesn't follow a call: code that keeps something else in rbp has led
/// the chain off the stack, and the daemon goes on from its frame by rows.
#[inline(always)]
fn drop_false_frame(scratch: &mut Scratch) {
    if scratch.frames < 2 {
        return;
    }
    let mut before = [0u8; 8];
    // SAFETY: the helper reads any user address without faulting and reports failure.
    let read = unsafe { bpf_probe_read_user_buf((scratch.cursor.pc - 8) as *const u8, &mut before) };
    // Code that isn't in memory right now can't be judged.
    if read.is_ok() && !ends_in_call(u64::from_le_bytes(before)) {
        scratch.frames -= 1;
        scratch.used -= 1;
        scratch.cursor = scratch.callee;
    }
}

/// Emits the sample with the reason why its walk ended.
#[inline(never)]
pub fn finish(scratch: &mut Scratch, ctx: &PerfEventContext, stop: Stop) {
    count_stop(stop as u8);
    let words = scratch.used as usize;
    scratch.header.user_words = (words - scratch.header.kernel_frames as usize) as u16;
    scratch.header.stop = stop as u8;
    if !matches!(stop, Stop::KernelThread | Stop::Not64Bit) {
        scratch.header.tail_sp = scratch.cursor.sp;
        scratch.header.tail_fp = scratch.cursor.fp;
    }
    // Many frames lead to where frame pointers end, which is the C library's start code: a little stack leads through it.
    // Few frames end in code that uses rbp for something else, and it takes more to get out of that.
    let is_shallow = scratch.frames < SHALLOW_FRAMES;
    match stop {
        Stop::ChainEnded if !is_shallow => tail(scratch, END_TAIL_WORDS),
        Stop::FramePointerInvalid | Stop::StackUnreadable | Stop::ReturnAddressInvalid if !is_shallow => {
            tail(scratch, BROKEN_TAIL_WORDS);
        }
        Stop::ChainEnded | Stop::FramePointerInvalid | Stop::StackUnreadable | Stop::ReturnAddressInvalid => {
            tail(scratch, MAX_TAIL_WORDS);
        }
        _ => {}
    }
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
    emit(scratch);
}

/// Copies the stack behind the last frame, page by page, as far as it is readable.
#[inline(always)]
fn tail(scratch: &mut Scratch, max_words: usize) {
    let begin = scratch.used;
    let mut address = scratch.cursor.sp;
    if !address.is_multiple_of(8) {
        return;
    }
    let mut left = max_words * 8;
    // MAX_TAIL_WORDS is a page, so that the copy touches two at most.
    for _ in 0..2 {
        let to_page_end = 4096 - (address as usize & 4095);
        let bytes = if left < to_page_end { left } else { to_page_end };
        let at = scratch.used as usize;
        if bytes == 0 || bytes > MAX_TAIL_WORDS * 8 || at > SAMPLE_WORDS - MAX_TAIL_WORDS {
            break;
        }
        // SAFETY: `at` leaves room for MAX_TAIL_WORDS words.
        let into = unsafe {
            core::slice::from_raw_parts_mut(scratch.words.as_mut_ptr().add(at).cast::<u8>(), bytes)
        };
        // SAFETY: the helper reads any user address without faulting and reports failure.
        if unsafe { bpf_probe_read_user_buf(address as *const u8, into) }.is_err() {
            break;
        }
        address += bytes as u64;
        left -= bytes;
        scratch.used += bytes as u64 / 8;
    }
    scratch.header.tail_words = (scratch.used - begin) as u16;
}

#[inline(always)]
fn emit(scratch: &mut Scratch) {
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
    let flags =
        if unread >= u64::from(globals::wakeup_bytes()) { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    // SAFETY: the header and its words lie together at the start of the scratch memory and are `bytes` long at least.
    let result =
        unsafe { bpf_ringbuf_output(ring, (&raw mut *scratch).cast::<c_void>(), bytes, u64::from(flags)) };
    count(if result == 0 { Counter::Emitted } else { Counter::RingBufferFull });
}

struct UserMemory<'a> {
    window: &'a mut Window,
}

impl Memory for UserMemory<'_> {
    #[inline(always)]
    fn read_u64(&mut self, address: u64) -> Option<u64> {
        self.window.read_u64(&mut User, address)
    }
}

struct User;

impl Source for User {
    #[inline(always)]
    fn copy(&mut self, address: u64, into: &mut [u64; WINDOW_WORDS], bytes: usize) -> bool {
        let bytes = if bytes > WINDOW_BYTES { WINDOW_BYTES } else { bytes };
        // SAFETY: `bytes` is within the window.
        let into = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), bytes) };
        // SAFETY: the helper reads any user address without faulting and reports failure.
        unsafe { bpf_probe_read_user_buf(address as *const u8, into) }.is_ok()
    }
}
