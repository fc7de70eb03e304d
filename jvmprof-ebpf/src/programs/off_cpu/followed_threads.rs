//! The threads whose waits are followed: see [`FollowedThread`].
//!
//! A thread's slot is found without a search, twice a switch. Threads of one slot at a time are
//! rare, as the kernel gives ids by turns; all but the first are in a hash map.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_NOEXIST},
    macros::map,
    maps::{Array, HashMap},
};
use jvmprof_common::off_cpu::FollowedThread;

use crate::globals;

/// The daemon sets the sizes of both, and reads the slots in its own memory.
#[map]
static FOLLOWED_THREADS: Array<FollowedThread> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static OVERFLOW_THREADS: HashMap<u32, FollowedThread> = HashMap::with_max_entries(1, 0);

#[inline(always)]
fn slot_of(tid: u32) -> Option<*mut FollowedThread> {
    FOLLOWED_THREADS.get_ptr_mut(tid & globals::followed_mask())
}

/// Returns what is known of a thread, if it is followed.
#[inline(always)]
pub fn find(tid: u32) -> Option<*mut FollowedThread> {
    let slot = slot_of(tid)?;
    // SAFETY: the slot is the map's; whose it is changes with one write.
    if unsafe { (*slot).tid } == tid { Some(slot) } else { OVERFLOW_THREADS.get_ptr_mut(tid) }
}

/// Begins to follow the thread that is being switched away, which isn't followed yet. Returns false
/// if too many are.
///
/// Of two threads that take a slot on two CPUs at the same time the second one has it, and the
/// first is followed from its next switch on. A start that isn't its own ends a wait as lost.
#[inline(always)]
pub fn insert(thread: &FollowedThread) -> bool {
    let Some(slot) = slot_of(thread.tid) else { return false };
    // SAFETY: the slot is the map's. The thread's id is written last, so that who finds it finds
    // the rest.
    unsafe {
        if (*slot).tid != 0 {
            return OVERFLOW_THREADS.insert(thread.tid, thread, 0).is_ok();
        }
        slot.write(FollowedThread { tid: 0, ..*thread });
        (&raw mut (*slot).tid).write_volatile(thread.tid);
    }
    true
}

/// Begins to follow a thread that waits, from another one: into the hash map, since its own switch
/// may take its slot meanwhile.
#[inline(always)]
pub fn adopt(thread: &FollowedThread) {
    // One that was switched meanwhile is there already.
    let adopted = OVERFLOW_THREADS.insert(thread.tid, thread, u64::from(BPF_NOEXIST)).is_ok();
    // SAFETY: as above.
    if adopted && slot_of(thread.tid).is_some_and(|slot| unsafe { (*slot).tid } == thread.tid) {
        let _ = OVERFLOW_THREADS.remove(thread.tid);
    }
}

/// Ends following a thread.
#[inline(always)]
pub fn remove(tid: u32) {
    match slot_of(tid) {
        // SAFETY: as above. What the slot's next thread hasn't written yet is no wait.
        Some(slot) if unsafe { (*slot).tid } == tid => unsafe {
            (*slot).since_ns = 0;
            (&raw mut (*slot).tid).write_volatile(0);
        },
        // One that isn't there needs no removal.
        _ => drop(OVERFLOW_THREADS.remove(tid)),
    }
}
