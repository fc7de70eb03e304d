//! Walking the frames of a virtual thread that lie in the Java heap, from the return barrier on:
//! the program `frozen`.

use aya_ebpf::{
    macros::{perf_event, raw_tracepoint, uprobe},
    programs::{PerfEventContext, ProbeContext, RawTracePointContext},
};
use jvmprof_common::{
    abi::{Counter, FRAMES_PER_PROGRAM, MAX_FRAME_WORDS, MAX_USER_FRAMES, SAMPLE_WORDS, Stop},
    address::{Avma, StackAddress},
    frame::FrameWord,
    unwind::hotspot::{
        HotspotTarget as _,
        continuation::{frozen_frames, stack_chunk},
    },
};

use super::{WALKED, cache_lookup, target::frame_target};
use crate::{
    counters::count,
    emit::{self, finish},
    program_kind::{FROZEN, ProgramKind, UNWIND},
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
    // The barrier itself runs.
    let registers = if scratch.frames == 1 { Some(&scratch.header.registers) } else { None };
    let mut target = frame_target!(scratch, copies, registers, jvm.code_start);
    let next = if scratch.frozen.entry == StackAddress(0) {
        let chunk = frozen_frames::enter(&cursor, &mut target, jvm, &mut scratch.frozen)?;
        // Its frame is one.
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
            let found = find_on_stack(scratch.slot.to_argument(), first, second);
            // The stub that has just thawed frames freezes none: they are of a method that calls
            // itself.
            if found != 0 && jvm.thaw_stub(interrupted_pc(scratch)).is_none() {
                let yields = yielding_pc(scratch, found - 1).ok_or(Stop::Frozen)?;
                let mut target = frame_target!(scratch, copies, None, jvm.code_start);
                if !target.is_yielding(yields) {
                    return Err(Stop::Frozen);
                }
                scratch.frozen.copied = found - 1;
            }
            scratch.frozen.at_barrier = 0;
            scratch.frames -= 1;
            scratch.used -= STUB_WORDS;
        }
        if scratch.frozen.copied == 0 {
            cache_lookup::flag_new_code(scratch);
            scratch.push_frame();
        } else if !pass_copy(scratch) || is_last && scratch.frozen.copied != 0 {
            return Err(Stop::Frozen);
        }
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
/// Words of a compiled frame.
const COMPILED_WORDS: u64 = 2;

/// Returns the pc of the youngest user frame.
#[inline(always)]
fn interrupted_pc(scratch: &mut Scratch) -> Avma {
    let at = scratch.barrier_var.opaque(scratch.header.head_words.into()) as usize;
    Avma(FrameWord(scratch.words[at & (SAMPLE_WORDS - 1)]).address())
}

/// Returns the pc of the compiled frame before this word of the sample.
#[inline(always)]
fn yielding_pc(scratch: &mut Scratch, at: u64) -> Option<Avma> {
    let callee = scratch.barrier_var.opaque(at.wrapping_sub(COMPILED_WORDS)) as usize;
    let word = FrameWord(scratch.words[callee & (SAMPLE_WORDS - 1)]);
    let is_compiled = word.code_identity(1, 0) == Some(1);
    (at >= COMPILED_WORDS && is_compiled).then_some(Avma(word.address()))
}

/// Passes the current frame if it is the copy of the one that stands in the sample at
/// [`FrozenWalk::copied`](stack_chunk::FrozenWalk::copied).
#[inline(always)]
fn pass_copy(scratch: &mut Scratch) -> bool {
    let at = scratch.barrier_var.opaque(scratch.frozen.copied) as usize;
    let count = scratch.frame.count;
    let mut is_same = true;
    let mut index = 0;
    while index < MAX_FRAME_WORDS {
        let word = scratch.words[(at + index) & (SAMPLE_WORDS - 1)];
        is_same &= index as u64 >= count || word == scratch.frame.words[index];
        index += 1;
    }
    scratch.frozen.copied += count;
    if scratch.frozen.copied == scratch.used {
        scratch.frozen.copied = 0;
    }
    is_same && scratch.frozen.copied < scratch.used
}

/// Words of the youngest frames that [`find_on_stack`] compares: the JVM's own functions are above
/// the Java frames, with a word each.
const YOUNGEST: usize = 64;

/// Reads [`Scratch::words`], and returns where in them the youngest frame of these words stands,
/// plus one; 0 if there is none. If it does, the thread may be just being frozen, and what is in
/// the heap a copy of what has been walked. A global function, as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_on_stack(slot: u64, first: u64, second: u64) -> u64 {
    let mut from = 0;
    while from < YOUNGEST as u64 {
        let found = find_among(slot, from, first, second);
        if found != 0 {
            return found;
        }
        from += AMONG as u64;
    }
    0
}

/// Words that [`find_among`] compares: the verifier walks as many, and not [`YOUNGEST`].
const AMONG: usize = 8;

/// Does what [`find_on_stack`] does, for a few words from this one on.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_among(slot: u64, from: u64, first: u64, second: u64) -> u64 {
    let Some(scratch) = scratch::get(ScratchSlot::from_argument(slot)) else {
        return 1;
    };
    let begin = u64::from(scratch.header.head_words).wrapping_add(from);
    let used = scratch.used as usize;
    for index in 0..AMONG {
        let at = scratch.barrier_var.opaque(begin.wrapping_add(index as u64)) as usize;
        if at + 1 < used
            && scratch.words[at & (SAMPLE_WORDS - 1)] == first
            && scratch.words[(at + 1) & (SAMPLE_WORDS - 1)] == second
        {
            return at as u64 + 1;
        }
    }
    0
}
