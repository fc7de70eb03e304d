//! Walking the user stack: the interrupted frame (the program `leaf`), then some frames a program
//! (`unwind`, and [`frozen`] in the Java heap), one program after the other, until the stack ends.
//! Uprobes and waits have programs of their own that do the same (`probe_leaf` and so on).
//!
//! The walk's state is [`Scratch`]; each global function says what it reads and writes there. Each
//! frame is looked for in the [`scratch::unwind_cache`] first; what isn't there is found by the
//! tables and by the steppers of [`jvmprof_common::unwind`], which see the process as a [`target`]
//! and call [`target::subprograms`].

mod cache_lookup;
mod frozen;
mod target;

use aya_ebpf::{
    macros::{perf_event, raw_tracepoint, uprobe},
    programs::{PerfEventContext, ProbeContext, RawTracePointContext},
};
use jvmprof_common::{
    abi::{Counter, FRAMES_PER_PROGRAM, MAX_USER_FRAMES, Stop},
    address::Avma,
    frame::FrameWord,
    unwind::{Cursor, call_instruction::ends_in_call, frame_pointer_stepper, hotspot, row_stepper},
    unwind_tables::Region,
};

use crate::{
    counters::count,
    emit::{self, finish},
    program_kind::{FROZEN, ProgramKind, UNWIND},
    scratch::{self, Copies, Scratch, ScratchSlot, unwind_cache::CachedPc},
    tables, user_memory,
};
use target::frame_target;

/// The interrupted frame: any instruction of any code, with all its registers.
#[perf_event]
fn leaf(ctx: PerfEventContext) -> u32 {
    run_leaf(&ctx);
    0
}

/// The frame of the function that an uprobe is at.
#[uprobe]
fn probe_leaf(ctx: ProbeContext) -> u32 {
    run_leaf(&ctx);
    0
}

/// The frame in which a thread waited.
#[raw_tracepoint]
fn wait_leaf(ctx: RawTracePointContext) -> i32 {
    run_leaf(&ctx);
    0
}

#[perf_event]
fn unwind(ctx: PerfEventContext) -> u32 {
    run_unwind(&ctx);
    0
}

#[uprobe]
fn probe_unwind(ctx: ProbeContext) -> u32 {
    run_unwind(&ctx);
    0
}

#[raw_tracepoint]
fn wait_unwind(ctx: RawTracePointContext) -> i32 {
    run_unwind(&ctx);
    0
}

#[inline(always)]
fn run_leaf<C: ProgramKind>(ctx: &C) {
    let Some(slot) = C::slot() else {
        count(C::EVENT, Counter::UnwinderUnavailable);
        return;
    };
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        emit::abandon::<C>(slot);
        return;
    };
    if scratch.is_published == 0 {
        scratch.push(FrameWord::exact(scratch.cursor.pc.0).0);
        scratch.frames = 1;
        finish::<C>(scratch, ctx.as_ptr(), Stop::UnknownProcess as u64);
        return;
    }
    // SAFETY: nobody else uses the copies meanwhile. They are another sample's.
    unsafe {
        (*copies).window.clear();
        (*copies).method_cache.begin_sample();
    }
    cache_lookup::begin_sample(scratch);
    let kind = classify_leaf(slot.to_argument());
    let stop = if kind & STOPPED != 0 {
        kind & !STOPPED
    } else if kind == u64::from(WALKED_CACHED) {
        WALKED
    } else if kind == u64::from(HOTSPOT) {
        step_java_leaf(slot.to_argument())
    } else {
        step_native_leaf(slot.to_argument(), kind as u32)
    };
    if stop != WALKED {
        if stop == Stop::Frozen as u64 {
            ctx.tail_call(FROZEN);
        }
        finish::<C>(scratch, ctx.as_ptr(), stop);
        return;
    }
    ctx.tail_call(UNWIND);
    emit::abandon::<C>(slot);
}

#[inline(always)]
fn run_unwind<C: ProgramKind>(ctx: &C) {
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
        let stop = walk_caller(slot.to_argument());
        if stop == Stop::Frozen as u64 {
            ctx.tail_call(FROZEN);
        }
        if stop != WALKED {
            finish::<C>(scratch, ctx.as_ptr(), stop);
            return;
        }
    }
    ctx.tail_call(UNWIND);
    // The kernel's limit of tail calls.
    finish::<C>(scratch, ctx.as_ptr(), Stop::DepthReached as u64);
}

/// [`walk_caller`] and the steps return this where there is a caller; else a [`Stop`].
pub const WALKED: u64 = 255;

/// Appends the frame of [`Scratch::cursor`], which is above the interrupted one, to the sample, and
/// moves the cursor to its caller. A global function, as the next ones: the verifier checks it
/// once, instead of once a turn of the loop, and what follows it as often as paths lead there.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_caller(slot: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return Stop::CodeUnreadable as u64;
    };
    // What follows works on the scratch memory itself: nothing here may hold it meanwhile.
    match classify(scratch, copies, false) {
        Ok(WALKED_CACHED) => WALKED,
        Ok(HOTSPOT) => step_java_caller(slot.to_argument()),
        Ok(kind) => step_native_caller(slot.to_argument(), kind),
        Err(stop) => stop as u64,
    }
}

/// Returns the kind of the interrupted frame as [`classify`] does, or [`STOPPED`] and a [`Stop`]. A
/// global function: what it takes of the stack, of which kernels before 6.12 lend 512 bytes to all
/// functions that are under way, is free again when the frame is stepped over.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn classify_leaf(slot: u64) -> u64 {
    let slot = ScratchSlot::from_argument(slot);
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return STOPPED | Stop::CodeUnreadable as u64;
    };
    match classify(scratch, copies, true) {
        Ok(kind) => u64::from(kind),
        Err(stop) => STOPPED | stop as u64,
    }
}

/// Bit of [`classify_leaf`]'s result: the walk ends at the frame.
const STOPPED: u64 = 1 << 32;

/// Returns the kind of the cursor's frame. A compiled one that is cached is appended and left:
/// [`WALKED_CACHED`].
#[inline(always)]
fn classify(scratch: &mut Scratch, copies: *mut Copies, is_leaf: bool) -> Result<u32, Stop> {
    let here = scratch.cursor;
    // Below a signal handler an interrupted frame has no registers: too seldom to be cached.
    let is_usual = is_leaf || !here.exact;
    let kind = match is_usual {
        true if !is_leaf && is_interpreted(scratch, here.pc) => HOTSPOT,
        true => cache_lookup::get(scratch, &here),
        false => CachedPc::NONE,
    };
    if kind == CachedPc::COMPILED || kind == CachedPc::STUB {
        let mut cursor = here;
        if step_cached(scratch, copies, &mut cursor, kind) {
            if kind == CachedPc::STUB {
                return Ok(kind);
            }
            scratch.by_frame_pointer = 0;
            scratch.push_frame();
            scratch.callee = here;
            scratch.cursor = cursor;
            return Ok(WALKED_CACHED);
        }
    } else if kind != CachedPc::NONE {
        return Ok(kind);
    }
    let kind = find_code(scratch, &here, is_leaf)?;
    if is_usual && kind == CachedPc::ROWS {
        cache_lookup::insert_rule(scratch, &here);
    }
    Ok(kind)
}

/// Appends the interrupted frame, of a JVM's code, and moves [`Scratch::cursor`] to its caller;
/// writes [`Scratch::frame`] and the cache.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn step_java_leaf(slot: u64) -> u64 {
    step_java(ScratchSlot::from_argument(slot), true)
}

/// The same for a frame above it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn step_java_caller(slot: u64) -> u64 {
    step_java(ScratchSlot::from_argument(slot), false)
}

#[inline(always)]
fn step_java(slot: ScratchSlot, is_leaf: bool) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return Stop::CodeUnreadable as u64;
    };
    let here = scratch.cursor;
    let mut cursor = here;
    let by_frame_pointer = scratch.by_frame_pointer;
    scratch.by_frame_pointer = 0;
    // SAFETY: nobody else uses the copies meanwhile; as below.
    unsafe { (*copies).method_was_cached = 0 };
    let stepped = step_hotspot(scratch, copies, &mut cursor, is_leaf);
    if unsafe { (*copies).method_was_cached } == 0 {
        cache_lookup::flag_new_code(scratch);
    }
    if (is_leaf || !here.exact) && stepped.is_ok() {
        cache_lookup::insert_generated(scratch, &here);
        if is_leaf {
            cache_lookup::insert_nmethod(scratch, &here);
        }
    }
    scratch.push_frame();
    leave(scratch, cursor, stepped, by_frame_pointer)
}

/// Appends the interrupted frame, of native code, or of a stub that [`Scratch::frame`] has already,
/// and moves [`Scratch::cursor`] to its caller; reads [`Scratch::rule`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn step_native_leaf(slot: u64, kind: u32) -> u64 {
    step_native(ScratchSlot::from_argument(slot), kind, true)
}

/// The same for a frame above it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn step_native_caller(slot: u64, kind: u32) -> u64 {
    step_native(ScratchSlot::from_argument(slot), kind, false)
}

#[inline(always)]
fn step_native(slot: ScratchSlot, kind: u32, is_leaf: bool) -> u64 {
    let (Some(scratch), Some(copies)) = (scratch::get(slot), scratch::copies(slot)) else {
        return Stop::CodeUnreadable as u64;
    };
    let mut cursor = scratch.cursor;
    let by_frame_pointer = scratch.by_frame_pointer;
    scratch.by_frame_pointer = 0;
    if kind != CachedPc::STUB {
        scratch.frame.words[0] = FrameWord::native(cursor.pc.0, cursor.exact).0;
        scratch.frame.count = 1;
    }
    scratch.push_frame();
    let stepped = step_by_rule(scratch, copies, &mut cursor, kind, is_leaf);
    leave(scratch, cursor, stepped, by_frame_pointer)
}

/// Moves [`Scratch::cursor`] from the frame that was appended to its caller, `cursor`, if that was
/// found. `by_frame_pointer`: as the frame itself was.
#[inline(always)]
fn leave(scratch: &mut Scratch, cursor: Cursor, stepped: Result<(), Stop>, by_frame_pointer: u64) -> u64 {
    match stepped {
        Ok(()) => {
            scratch.callee = scratch.cursor;
            scratch.cursor = cursor;
            WALKED
        }
        Err(stop) => {
            if by_frame_pointer != 0 {
                drop_false_frame(scratch);
            }
            stop as u64
        }
    }
}

/// Kinds of frames beside those of [`CachedPc`].
const HOTSPOT: u32 = 16;
const FRAME_POINTER: u32 = 17;
const ROWS_MISSING: u32 = 18;
const GENERATED: u32 = 19;
const WALKED_CACHED: u32 = 20;

/// Returns true for a return address of the interpreter: nothing in it is cached.
#[inline(always)]
fn is_interpreted(scratch: &Scratch, pc: Avma) -> bool {
    cache_lookup::jvm(scratch).is_some_and(|jvm| jvm.returns_to_interpreter(pc))
}

/// Writes the cursor's region to [`Scratch::region`] and its rule to [`Scratch::rule`], and returns
/// the kind of its frame.
#[inline(always)]
fn find_code(scratch: &mut Scratch, here: &Cursor, is_leaf: bool) -> Result<u32, Stop> {
    let at = if here.exact { here.pc } else { here.pc - 1 };
    if !cache_lookup::find_region(scratch, at) {
        if is_leaf {
            // A jump through a bad pointer, or code that was mapped a moment ago.
            scratch.push(FrameWord::exact(here.pc.0).0);
            scratch.frames += 1;
        } else {
            // No return address leads out of the code: the daemon steps the callee again.
            scratch.cursor = scratch.callee;
        }
        return Err(Stop::UnknownCode);
    }
    match scratch.region.kind {
        Region::HOTSPOT => return Ok(HOTSPOT),
        Region::ROWS_MISSING => return Ok(ROWS_MISSING),
        Region::GENERATED => return Ok(GENERATED),
        Region::ROWS => {}
        _ => return Ok(FRAME_POINTER),
    }
    let Region { table, bias, .. } = scratch.region;
    match tables::row(scratch.slot, table, at.0.wrapping_sub(bias)) {
        Some(rule) => {
            scratch.rule = *rule;
            Ok(CachedPc::ROWS)
        }
        None => Ok(FRAME_POINTER),
    }
}

/// Returns true if the cached frame's code is still there. If so, a compiled frame is stepped over.
#[inline(always)]
fn step_cached(scratch: &mut Scratch, copies: *mut Copies, cursor: &mut Cursor, kind: u32) -> bool {
    let cached = scratch.frame.cached;
    let Some(jvm) = cache_lookup::jvm(scratch) else { return false };
    let mut target = frame_target!(scratch, copies, None, 0);
    if !cached.is_valid(&mut target, jvm) {
        return false;
    }
    if kind == CachedPc::STUB {
        scratch.frame.words = [FrameWord::stub(cursor.pc.0, cursor.exact).0, cached.word, 0];
        scratch.frame.count = 2;
        return true;
    }
    hotspot::cached_frames::step(cursor, &mut target, jvm, &cached, &mut scratch.frame)
}

#[inline(always)]
fn step_hotspot(
    scratch: &mut Scratch,
    copies: *mut Copies,
    cursor: &mut Cursor,
    is_leaf: bool,
) -> Result<(), Stop> {
    let jvm = cache_lookup::jvm(scratch).ok_or(Stop::CodeUnreadable)?;
    let registers = if is_leaf { Some(&scratch.header.registers) } else { None };
    let mut target = frame_target!(scratch, copies, registers, jvm.code_start);
    if is_leaf {
        hotspot::step_leaf(cursor, &mut target, jvm, &mut scratch.frame)
    } else {
        hotspot::step(cursor, &mut target, jvm, &mut scratch.frame)
    }
}

/// Steps over a frame by its rule, or by the frame pointer.
#[inline(always)]
fn step_by_rule(
    scratch: &mut Scratch,
    copies: *mut Copies,
    cursor: &mut Cursor,
    kind: u32,
    is_leaf: bool,
) -> Result<(), Stop> {
    if kind == ROWS_MISSING {
        return Err(Stop::RowsMissing);
    }
    let registers = if is_leaf { Some(&scratch.header.registers) } else { None };
    let rule = scratch.rule;
    let jvm = cache_lookup::jvm(scratch);
    let mut target = frame_target!(scratch, copies, registers, 0);
    if kind == FRAME_POINTER || kind == GENERATED {
        frame_pointer_stepper::step(cursor, &mut target).map_err(|stop| {
            // A zero there only shows that the code keeps no frame pointer. The daemon may know
            // more of it, and needs the stack.
            if kind == GENERATED && stop == Stop::ChainEnded { Stop::FramePointerInvalid } else { stop }
        })?;
        scratch.by_frame_pointer = 1;
        return Ok(());
    }
    row_stepper::step(cursor, &rule, &mut target)?;
    if kind == CachedPc::STUB
        && is_leaf
        && let Some(jvm) = jvm
    {
        hotspot::skip_pushed_arguments(cursor, &mut target, jvm);
    }
    Ok(())
}

/// Takes the last frame back if its return address doesn't follow a call: code that keeps something
/// else in rbp has led the chain off the stack, and the daemon goes on from the callee.
#[inline(always)]
fn drop_false_frame(scratch: &mut Scratch) {
    let mut before = [0u8; 8];
    // Code that isn't in memory right now can't be checked.
    if user_memory::read(scratch.cursor.pc - 8, &mut before) && !ends_in_call(u64::from_le_bytes(before)) {
        scratch.drop_frame(1);
    }
}
