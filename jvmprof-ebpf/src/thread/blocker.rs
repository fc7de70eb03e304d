//! What a thread of a JVM waits for: see [`jvmprof_common::blocker`].

use aya_ebpf::{helpers::bpf_get_current_task, macros::map, maps::HashMap};
use jvmprof_common::{
    blocker::{Blocker, BlockerLayout, find_blocker, find_owner},
    unwind_tables::NS_PER_TICK,
};

use crate::{globals, task::Task, user_memory::UserMemory};

/// The daemon sets its size.
#[map]
static BLOCKER_LAYOUTS: HashMap<u32, BlockerLayout> = HashMap::with_max_entries(1, 0);

/// Removes the layout of a process that replaced its program.
#[inline(always)]
pub fn forget(tgid: u32) {
    // An entry that isn't there needs no removal.
    let _ = BLOCKER_LAYOUTS.remove(tgid);
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

/// Returns the owner of the monitor that the current thread enters, where that is wanted.
#[inline(always)]
pub fn owner_for_current(tgid: u32) -> u64 {
    if globals::monitor_owners() == 0 { 0 } else { read_owner(u64::from(tgid)) }
}

/// Returns what [`find_owner`] does of the current thread; reads the maps alone. A global function:
/// the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_owner(tgid: u64) -> u64 {
    // SAFETY: as above.
    let Some(layout) = (unsafe { BLOCKER_LAYOUTS.get(tgid as u32) }) else {
        return 0;
    };
    // SAFETY: the helper has no preconditions.
    let Some(thread_pointer) = Task(unsafe { bpf_get_current_task() }).thread_pointer() else {
        return 0;
    };
    find_owner(&UserMemory, thread_pointer, layout)
}
