//! Walking the frames of a virtual thread that lie in the Java heap, behind the return barrier.

use aya_ebpf::{macros::perf_event, programs::PerfEventContext};
use jvmprof_common::{
    abi::{Counter, FRAMES_PER_PROGRAM, MAX_USER_FRAMES, SAMPLE_WORDS, Stop},
    unwind::hotspot::frozen,
};

use crate::{
    counters::count,
    emit::finish,
    known,
    memory::user,
    scratch::{self, Copies, Scratch},
    unwind::{FROZEN, UNWIND, WALKED, go_on},
};

/// The return barrier's frame is the last one so far: it is replaced by those that it stands for. If that isn't possible, the
/// stack ends there.
#[perf_event]
fn frozen(ctx: PerfEventContext) -> u32 {
    let Some(scratch) = scratch::get() else {
        count(Counter::UnwinderUnavailable);
        return 0;
    };
    for _ in 0..FRAMES_PER_PROGRAM {
        if scratch.frames >= MAX_USER_FRAMES as u64 {
            finish(scratch, &ctx, Stop::DepthReached as u64);
            return 0;
        }
        let stop = walk_frozen();
        if stop != WALKED {
            if scratch.frozen.taken_until != 0 {
                // What was found of that chunk isn't sure any more.
                (scratch.frames, scratch.used) = (scratch.frozen_from[0], scratch.frozen_from[1]);
            }
            finish(scratch, &ctx, stop);
            return 0;
        }
        if scratch.frozen.entry == 0 {
            // The carrier's frames are on a stack again.
            go_on(&ctx, UNWIND);
        }
    }
    go_on(&ctx, FROZEN);
    // The kernel's limit of tail calls.
    finish(scratch, &ctx, Stop::DepthReached as u64);
    0
}

/// Appends the cursor's frame and moves on to its caller. A global function, as [`crate::unwind`] has one.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_frozen() -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(), scratch::copies()) else {
        return Stop::Frozen as u64;
    };
    match walk_one(scratch, copies) {
        Ok(()) => WALKED,
        Err(stop) => stop as u64,
    }
}

#[inline(always)]
fn walk_one(scratch: &mut Scratch, copies: *mut Copies) -> Result<(), Stop> {
    let jvm = known::jvm(scratch).ok_or(Stop::Frozen)?;
    let mut cursor = scratch.cursor;
    let mut target = user!(scratch, copies, None, jvm.code_start);
    let next = if scratch.frozen.entry == 0 {
        let chunk = frozen::enter(&cursor, &mut target, jvm, &mut scratch.frozen)?;
        // The barrier itself runs: its frame is one.
        scratch.frozen.at_barrier = u64::from(!cursor.exact);
        scratch.frozen_from = [scratch.frames - 1, scratch.used - STUB_WORDS];
        chunk
    } else {
        let is_last = frozen::step(&mut cursor, &mut target, jvm, &mut scratch.frozen, &mut scratch.frame)?;
        let next = if is_last { frozen::next_chunk(&mut target, jvm, &scratch.frozen) } else { 0 };
        let [first, second, _] = scratch.frame.words;
        if scratch.frozen.at_barrier != 0 {
            if is_on_stack(first, second) != 0 {
                return Err(Stop::Frozen);
            }
            scratch.frozen.at_barrier = 0;
            scratch.frames -= 1;
            scratch.used -= STUB_WORDS;
        }
        known::note_code(scratch);
        scratch.push_frame();
        if !is_last {
            scratch.cursor = cursor;
            return Ok(());
        }
        next
    };
    let mut target = user!(scratch, copies, None, jvm.code_start);
    let has_left =
        frozen::arrive(&mut cursor, &mut target, jvm, &mut scratch.frozen, next, &mut scratch.frame)?;
    scratch.cursor = cursor;
    if has_left {
        scratch.push_frame();
    }
    Ok(())
}

/// Words of the return barrier's frame.
const STUB_WORDS: u64 = 2;
/// Words of the youngest frames that [`is_on_stack`] looks at.
const YOUNGEST: usize = 32;

/// 1 if the frame of these words was met on the stack already: the thread is just being frozen, and what is in the heap is a
/// copy of what has been walked. A global function, as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_on_stack(first: u64, second: u64) -> u64 {
    let Some(scratch) = scratch::get() else {
        return 1;
    };
    let begin = scratch.header.kernel_frames as usize;
    let used = scratch.used as usize;
    for index in 0..YOUNGEST {
        let at = scratch.veil.hide((begin + index) as u64) as usize;
        if at + 1 < used
            && scratch.words[at & (SAMPLE_WORDS - 1)] == first
            && scratch.words[(at + 1) & (SAMPLE_WORDS - 1)] == second
        {
            return 1;
        }
    }
    0
}
