//! Walking the frames of a virtual thread that lie in the Java heap, from the return barrier on:
//! the program `frozen`.

use aya_ebpf::{
    macros::{kprobe, perf_event, raw_tracepoint, uprobe},
    programs::{PerfEventContext, ProbeContext, RawTracePointContext},
};
use jvmprof_common::{
    abi::{Counter, FRAMES_PER_PROGRAM, MAX_USER_FRAMES, SAMPLE_WORDS, Stop},
    address::{Avma, StackAddress},
    unwind::hotspot::continuation::{frozen_frames, stack_chunk},
};

use super::{WALKED, cache_lookup, target::frame_target};
use crate::{
    counters::count,
    emit::{self, finish},
    program_kind::{FROZEN, ProgramKind, UNWIND, WaitProbeContext},
    scratch::{self, Copies, Scratch, ScratchSlot},
};

/// The return barrier's frame is the last one so far: it is replaced by those that it stands for.
/// If that isn't possible, the stack ends there.
#[perf_event]
fn frozen(ctx: PerfEventContext) -> u32 {
    run_frozen(&ctx);
    0
}

#[uprobe]
fn probe_frozen(ctx: ProbeContext) -> u32 {
    run_frozen(&ctx);
    0
}

#[raw_tracepoint]
fn wait_frozen(ctx: RawTracePointContext) -> i32 {
    run_frozen(&ctx);
    0
}

#[kprobe]
fn wait_probe_frozen(ctx: ProbeContext) -> u32 {
    run_frozen(&WaitProbeContext(ctx));
    0
}

#[inline(always)]
fn run_frozen<C: ProgramKind>(ctx: &C) {
    let Some(slot) = C::slot() else {
        count(C::EVENT, Counter::UnwinderUnavailable);
        return;
    };
    let Some(scratch) = scratch::get(slot) else {
        emit::abandon::<C>(slot);
        return;
    };
    for _ in 0..FRAMES_PER_PROGRAM {
        if scratch.frames >= MAX_USER_FRAMES as u64 {
            finish::<C>(scratch, ctx.as_ptr(), Stop::DepthReached as u64);
            return;
        }
        let stop = walk_frozen(slot.to_argument());
        if stop != WALKED {
            if scratch.frozen.thawed_until != StackAddress(0) {
                // What was found of that chunk isn't sure any more.
                (scratch.frames, scratch.used) = (scratch.before_frozen[0], scratch.before_frozen[1]);
            }
            finish::<C>(scratch, ctx.as_ptr(), stop);
            return;
        }
        if scratch.frozen.entry == StackAddress(0) {
            // The carrier's frames are on a stack again.
            ctx.tail_call(UNWIND);
        }
    }
    ctx.tail_call(FROZEN);
    // The kernel's limit of tail calls.
    finish::<C>(scratch, ctx.as_ptr(), Stop::DepthReached as u64);
}

/// Appends the frame of [`Scratch::cursor`] to the sample, and moves the cursor and
/// [`Scratch::frozen`] on to its caller. A global function, as [`super::walk_caller`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_frozen(slot: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return Stop::Frozen as u64;
    };
    match walk_one(scratch, copies) {
        Ok(()) => WALKED,
        Err(stop) => stop as u64,
    }
}

#[inline(always)]
fn walk_one(scratch: &mut Scratch, copies: *mut Copies) -> Result<(), Stop> {
    let jvm = cache_lookup::jvm(scratch).ok_or(Stop::Frozen)?;
    let mut cursor = scratch.cursor;
    let mut target = frame_target!(scratch, copies, None, jvm.code_start);
    let next = if scratch.frozen.entry == StackAddress(0) {
        let chunk = frozen_frames::enter(&cursor, &mut target, jvm, &mut scratch.frozen)?;
        // The barrier itself runs: its frame is one.
        scratch.frozen.at_barrier = u64::from(!cursor.exact);
        scratch.before_frozen = [scratch.frames - 1, scratch.used - STUB_WORDS];
        chunk
    } else {
        let is_last =
            frozen_frames::step(&mut cursor, &mut target, jvm, &mut scratch.frozen, &mut scratch.frame)?;
        let next =
            if is_last { stack_chunk::parent(&mut target, jvm, scratch.frozen.chunk) } else { Avma(0) };
        let [first, second, _] = scratch.frame.words;
        if scratch.frozen.at_barrier != 0 {
            if is_on_stack(scratch.slot.to_argument(), first, second) != 0 {
                return Err(Stop::Frozen);
            }
            scratch.frozen.at_barrier = 0;
            scratch.frames -= 1;
            scratch.used -= STUB_WORDS;
        }
        cache_lookup::flag_new_code(scratch);
        scratch.push_frame();
        if !is_last {
            scratch.cursor = cursor;
            return Ok(());
        }
        next
    };
    let mut target = frame_target!(scratch, copies, None, jvm.code_start);
    let has_left = frozen_frames::enter_chunk(
        &mut cursor,
        &mut target,
        jvm,
        &mut scratch.frozen,
        next,
        &mut scratch.frame,
    )?;
    scratch.cursor = cursor;
    if has_left {
        scratch.push_frame();
    }
    Ok(())
}

/// Words of the return barrier's frame.
const STUB_WORDS: u64 = 2;
/// Words of the youngest frames that [`is_on_stack`] compares.
const YOUNGEST: usize = 32;

/// Reads [`Scratch::words`], and returns 1 if the frame of these words was walked on the stack
/// already: the thread is just being frozen, and what is in the heap is a copy of what has been
/// walked. A global function, as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_on_stack(slot: u64, first: u64, second: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return 1;
    };
    let begin = scratch.header.head_words as usize;
    let used = scratch.used as usize;
    for index in 0..YOUNGEST {
        let at = scratch.barrier_var.opaque((begin + index) as u64) as usize;
        if at + 1 < used
            && scratch.words[at & (SAMPLE_WORDS - 1)] == first
            && scratch.words[(at + 1) & (SAMPLE_WORDS - 1)] == second
        {
            return 1;
        }
    }
    0
}
