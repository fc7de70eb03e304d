//! The processes that are sampled, their children, and when they started.

use aya_ebpf::{
    macros::{map, raw_tracepoint},
    maps::{Array, HashMap, LruHashMap},
    programs::RawTracePointContext,
};
use jvmprof_common::abi::{Counter, Event};

use crate::{
    counters::count,
    globals, tables,
    task::Task,
    thread::{blocker, context},
};

#[map]
static PROFILED_PIDS: HashMap<u32, u8> = HashMap::with_max_entries(16_384, 0);

#[inline(always)]
pub fn is_profiled(tgid: u32) -> bool {
    // SAFETY: the value is copied at once, and nobody depends on what it was.
    globals::filter() == 0 || unsafe { PROFILED_PIDS.get(tgid) }.is_some()
}

#[map]
static DROPPED_PIDS: HashMap<u32, u64> = HashMap::with_max_entries(8192, 0);

/// 1 once a process was dropped: mostly none ever is, and a look-up costs more than this.
#[map]
static DROPS: Array<u32> = Array::with_max_entries(1, 0);

#[map]
static EXEC_STARTS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(4096, 0);

/// Returns true if nobody wants samples of this process.
#[inline(always)]
pub fn is_dropped(tgid: u32, start_ns: u64) -> bool {
    if DROPS.get(0).is_none_or(|drops| *drops == 0) {
        return false;
    }
    // SAFETY: the value is copied at once, and nobody depends on what it was.
    unsafe { DROPPED_PIDS.get(tgid) }.copied() == Some(start_ns)
}

/// `sched_process_fork(parent, child)`: a profiled process's child is profiled from its first
/// instruction. Raw tracepoints need no tracefs.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn process_fork(ctx: RawTracePointContext) -> i32 {
    let parent = Task(ctx.arg::<u64>(0));
    let child = Task(ctx.arg::<u64>(1));
    if let (Some(parent), Some(child)) = (parent.tgid(), child.tgid()) {
        // A new thread has its parent's tgid.
        if parent == child {
            return 0;
        }
        if !is_profiled(parent) {
            // A process that has ended may have had its id.
            let _ = PROFILED_PIDS.remove(child);
        } else if PROFILED_PIDS.insert(child, 1, 0).is_err() {
            count(Event::Cpu, Counter::FilterFull);
        }
    }
    0
}

/// `sched_process_exec(task, old pid, program)`: what the tables say of the process doesn't hold
/// any more.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn process_exec(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg::<u64>(0));
    if let Some(tgid) = task.tgid() {
        tables::forget(tgid);
        context::forget(tgid);
        blocker::forget(tgid);
        // The rules are evaluated again for the new program.
        let _ = DROPPED_PIDS.remove(tgid);
        if is_profiled(tgid)
            && let Some(start_ns) = task.process_start()
        {
            let _ = EXEC_STARTS.insert(tgid, start_ns, 0);
        }
    }
    0
}
