//! Pauses of JVMs: the uprobes `pause_begin`, `pause_reached` and `pause_end`, all of them run by a
//! JVM's VM thread. The second one says that samples from now on fall in a pause, the last one
//! reports it whole.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_task, bpf_ktime_get_ns},
    macros::{map, uprobe},
    maps::HashMap,
    programs::ProbeContext,
};
use jvmprof_common::{
    address::Avma,
    pause::{
        CAUSE_BYTES, JvmPauseState, NO_CAUSE, NO_CAUSE_BITS, NO_OPERATION, PAUSE_MAGIC, PauseRecord,
        begin_time, step_time,
    },
};

use crate::{emit::emit_pause, task::Task, user_memory};

/// The daemon sets its size.
#[map]
static PAUSED_JVMS: HashMap<u32, JvmPauseState> = HashMap::with_max_entries(1, 0);

/// `RuntimeService::record_safepoint_begin`: threads are going to be stopped. Attached only where
/// the next one has no argument that says how long that took.
#[uprobe]
fn pause_begin(ctx: ProbeContext) -> u32 {
    if let Some(jvm) = jvm_of(&ctx) {
        begin(jvm, now());
    }
    0
}

/// `RuntimeService::record_safepoint_synchronized`: all threads have stopped.
#[uprobe]
fn pause_reached(ctx: ProbeContext) -> u32 {
    let Some(jvm) = jvm_of(&ctx) else { return 0 };
    if jvm.has_duration != 0 {
        let reached_ns = time_of(jvm.reached_time_at, jvm.ended_ns);
        // SAFETY: the context of an uprobe is the registers of the thread.
        let duration_ns = unsafe { &*ctx.regs }.rdi;
        let began_ns = begin_time(reached_ns, duration_ns, jvm.ended_ns);
        begin(jvm, began_ns);
        jvm.reached_ns = reached_ns;
    } else if jvm.began_ns != 0 {
        jvm.reached_ns = time_of(jvm.reached_time_at, jvm.began_ns);
    } else {
        // It began before the JVM was followed, and isn't known whole.
        return 0;
    }
    // Without it samples of the pause miss their label; the pause itself is reported when it ends.
    emit_pause(&record(&ctx, jvm, jvm.reached_ns));
    0
}

/// `RuntimeService::record_safepoint_end`: the threads go on.
#[uprobe]
fn pause_end(ctx: ProbeContext) -> u32 {
    let Some(jvm) = jvm_of(&ctx).filter(|jvm| jvm.reached_ns != 0) else { return 0 };
    jvm.ended_ns = time_of(jvm.end_time_at, jvm.reached_ns);
    let mut record = record(&ctx, jvm, jvm.ended_ns);
    record.is_over = 1;
    if collections(jvm.collections_at) != jvm.collections {
        read_cause(jvm, &mut record.cause);
    }
    jvm.began_ns = 0;
    jvm.reached_ns = 0;
    jvm.taken += 1;
    if !emit_pause(&record) {
        jvm.lost += 1;
    }
    0
}

/// Notes a pause that has begun. The operation and the number of collections are the same until all
/// threads have stopped.
#[inline(always)]
fn begin(jvm: &mut JvmPauseState, began_ns: u64) {
    jvm.operation = current_operation(jvm.operation_at);
    jvm.collections = collections(jvm.collections_at);
    jvm.reached_ns = 0;
    jvm.began_ns = began_ns;
}

/// Returns the JVM that runs, if it is followed.
#[inline(always)]
fn jvm_of<'a>(ctx: &ProbeContext) -> Option<&'a mut JvmPauseState> {
    let jvm = PAUSED_JVMS.get_ptr_mut(ctx.tgid())?;
    // SAFETY: the map lends a valid pointer, and only one thread of a JVM comes here.
    let jvm = unsafe { &mut *jvm };
    // SAFETY: no arguments; the helper returns the current task.
    let task = Task(unsafe { bpf_get_current_task() });
    // An earlier process may have had the id.
    if task.process_start().unwrap_or(0) == jvm.start_ns { Some(jvm) } else { None }
}

#[inline(always)]
fn record(ctx: &ProbeContext, jvm: &JvmPauseState, time_ns: u64) -> PauseRecord {
    PauseRecord {
        magic: PAUSE_MAGIC,
        time_ns,
        start_ns: jvm.start_ns,
        pid: ctx.tgid(),
        is_over: 0,
        began_ns: jvm.began_ns,
        reached_ns: jvm.reached_ns,
        operation: jvm.operation,
        cause: [0; CAUSE_BYTES / 8],
    }
}

/// Returns [`PauseRecord::operation`].
#[inline(always)]
fn current_operation(at: u64) -> u64 {
    if at == 0 {
        return 0;
    }
    match user_memory::read_word(Avma(at)) {
        Some(0) => NO_OPERATION,
        Some(operation) => user_memory::read_word(Avma(operation)).unwrap_or(0),
        None => 0,
    }
}

/// Returns how many collections have begun; 0 where that isn't known.
#[inline(always)]
fn collections(at: u64) -> u64 {
    if at == 0 { 0 } else { user_memory::read_word(Avma(at)).unwrap_or(0) & 0xffff_ffff }
}

/// Reads the cause of the collection that is under way, which goes on beside the threads after the
/// pause, or else of the last one, which the pause was.
#[inline(always)]
fn read_cause(jvm: &JvmPauseState, cause: &mut [u64; CAUSE_BYTES / 8]) {
    let Some(first) = user_memory::read_word(Avma(jvm.cause_at)) else { return };
    let at = if first & NO_CAUSE_BITS == NO_CAUSE { jvm.last_cause_at } else { jvm.cause_at };
    // SAFETY: the words are as long.
    let bytes = unsafe { &mut *cause.as_mut_ptr().cast::<[u8; CAUSE_BYTES]>() };
    if !user_memory::read(Avma(at), bytes) {
        *cause = [0; CAUSE_BYTES / 8];
    }
}

/// Returns when the step was that the JVM now reports, by its variable or else by the clock.
/// `least_ns`: the time of the step before.
#[inline(always)]
fn time_of(at: u64, least_ns: u64) -> u64 {
    let now_ns = now();
    if at == 0 {
        return now_ns;
    }
    user_memory::read_word(Avma(at)).map_or(now_ns, |read| step_time(read, least_ns, now_ns))
}

#[inline(always)]
fn now() -> u64 {
    // SAFETY: helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}
