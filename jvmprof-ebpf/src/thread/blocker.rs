//! The blockers of threads of JVMs, and the monitors that they hold: see
//! [`jvmprof_common::blocker`] and [`jvmprof_common::held_monitor`].

use aya_ebpf::{helpers::bpf_get_current_task, macros::map, maps::HashMap};
use jvmprof_common::{
    blocker::{Blocker, BlockerLayout, entered_monitor, find_blocker},
    held_monitor::{ContendedMonitors, held_monitor, is_owner},
    unwind_tables::NS_PER_TICK,
};

use crate::{globals, task::Task, user_memory::UserMemory};

/// The daemon sets its size.
#[map]
static BLOCKER_LAYOUTS: HashMap<u32, BlockerLayout> = HashMap::with_max_entries(1, 0);
/// The same.
#[map]
static CONTENDED_MONITORS: HashMap<u32, ContendedMonitors> = HashMap::with_max_entries(1, 0);

/// Removes what is known of a process that replaced its program.
#[inline(always)]
pub fn forget(tgid: u32) {
    // An entry that isn't there needs no removal.
    let _ = BLOCKER_LAYOUTS.remove(tgid);
    let _ = CONTENDED_MONITORS.remove(tgid);
}

/// Returns what the current thread, which has just waited, waited for. `start_ns`: of its process.
#[inline(always)]
pub fn of_current(task: Task, tgid: u32, start_ns: u64) -> Blocker {
    // SAFETY: the daemon replaces entries, it doesn't change them.
    let Some(layout) = (unsafe { BLOCKER_LAYOUTS.get(tgid) }) else {
        return Blocker::default();
    };
    if layout.current_thread.start_ticks != start_ns / NS_PER_TICK {
        return Blocker::default();
    }
    let Some(thread_pointer) = task.thread_pointer() else {
        return Blocker::default();
    };
    find_blocker(&UserMemory, thread_pointer, layout).unwrap_or_default()
}

/// Returns the owner of the monitor that the current thread enters, where that is asked for, and
/// notes both for samples of the owner.
#[inline(always)]
pub fn owner_for_current(tgid: u32) -> u64 {
    if globals::monitor_owners() == 0 { 0 } else { record_contended(u64::from(tgid)) }
}

/// Returns a monitor that the current thread has and another one waits for, where that is asked
/// for; 0 if there is none. `stack_pointer`: the user's.
#[inline(always)]
pub fn held_by_current(tgid: u32, stack_pointer: u64) -> u64 {
    if globals::monitor_owners() == 0 { 0 } else { read_held(u64::from(tgid), stack_pointer) }
}

/// Reads the maps and the thread alone. A global function: the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn record_contended(tgid: u64) -> u64 {
    // SAFETY: as above.
    let Some(layout) = (unsafe { BLOCKER_LAYOUTS.get(tgid as u32) }) else {
        return 0;
    };
    // SAFETY: the helper has no preconditions.
    let Some(thread_pointer) = Task(unsafe { bpf_get_current_task() }).thread_pointer() else {
        return 0;
    };
    let Some(entered) = entered_monitor(&UserMemory, thread_pointer, layout) else {
        return 0;
    };
    if is_owner(entered.owner)
        && let Some(contended) = CONTENDED_MONITORS.get_ptr_mut(tgid as u32)
    {
        // SAFETY: other CPUs write whole words, too, and who reads them checks what they say.
        unsafe { &mut *contended }.note(entered);
    }
    entered.owner
}

/// Reads the maps and the thread alone. A global function, as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_held(tgid: u64, stack_pointer: u64) -> u64 {
    // SAFETY: as above.
    let (contended, layout) =
        unsafe { (CONTENDED_MONITORS.get(tgid as u32), BLOCKER_LAYOUTS.get(tgid as u32)) };
    let (Some(contended), Some(layout)) = (contended, layout) else {
        return 0;
    };
    // SAFETY: the helper has no preconditions.
    let Some(thread_pointer) = Task(unsafe { bpf_get_current_task() }).thread_pointer() else {
        return 0;
    };
    held_monitor(&UserMemory, thread_pointer, stack_pointer, layout, contended)
}
