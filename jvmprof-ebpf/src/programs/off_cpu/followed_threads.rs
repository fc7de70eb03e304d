//! The threads whose waits are followed: see [`FollowedThread`].
//!
//! A followed thread's slot is found without a search, twice a switch. Threads of one slot at a
//! time are rare, as the kernel gives ids by turns; all but the first are in a hash map.

use core::hint::black_box;

use aya_ebpf::{
    bindings::{BPF_EXIST, BPF_F_MMAPABLE, BPF_NOEXIST},
    macros::map,
    maps::{Array, HashMap},
};
use jvmprof_common::off_cpu::FollowedThread;

use crate::{atomic, globals};

/// The daemon sets the sizes of both, and reads the slots in its own memory.
#[map]
static FOLLOWED_THREADS: Array<FollowedThread> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static OVERFLOW_THREADS: HashMap<u32, FollowedThread> = HashMap::with_max_entries(1, 0);
/// At least the entries of that map: mostly there are none, and a look-up costs more than this.
#[map]
static OVERFLOW_COUNT: Array<u64> = Array::with_max_entries(1, 0);
/// Slots that a CPU is about to give to a thread. The daemon sets its size.
#[map]
static CLAIMED_SLOTS: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

#[inline(always)]
fn slot_of(tid: u32) -> Option<*mut FollowedThread> {
    FOLLOWED_THREADS.get_ptr_mut(tid & globals::followed_mask())
}

/// A thread that is followed, in one of the maps.
#[derive(Clone, Copy)]
pub struct FoundThread {
    pub thread: *mut FollowedThread,
    /// It is in its slot.
    pub has_slot: bool,
}

/// Returns what is known of a thread, if it is followed.
#[inline(always)]
pub fn find(tid: u32) -> Option<FoundThread> {
    let slot = slot_of(tid)?;
    // SAFETY: the slot is the map's; whose it is changes with one write.
    if unsafe { (*slot).tid } == tid {
        return Some(FoundThread { thread: slot, has_slot: true });
    }
    if OVERFLOW_COUNT.get(0).is_none_or(|count| *count == 0) {
        return None;
    }
    OVERFLOW_THREADS.get_ptr_mut(tid).map(|thread| FoundThread { thread, has_slot: false })
}

/// Begins to follow the thread that is being switched away, or to follow it as another one than its
/// id's last. Returns false if too many are.
#[inline(always)]
pub fn insert(thread: &FollowedThread) -> bool {
    take_slot(thread)
        || insert_overflow(thread)
        // It was found to wait meanwhile.
        || OVERFLOW_THREADS.insert(thread.tid, thread, u64::from(BPF_EXIST)).is_ok()
}

/// Gives a thread that is being switched away and has no slot its own, if nobody else has it.
#[inline(always)]
pub fn move_to_slot(thread: &FollowedThread) {
    let slot = slot_of(thread.tid);
    // SAFETY: the slot is the map's.
    if slot.is_some_and(|slot| unsafe { (*slot).tid } == 0) && take_slot(thread) {
        remove_overflow(thread.tid);
    }
}

/// Returns false if another thread has the slot.
#[inline(always)]
fn take_slot(thread: &FollowedThread) -> bool {
    let index = thread.tid & globals::followed_mask();
    // Another CPU may be about to give the slot to another thread.
    if CLAIMED_SLOTS.insert(index, thread.tid, u64::from(BPF_NOEXIST)).is_err() {
        return false;
    }
    let is_free = match slot_of(thread.tid) {
        // SAFETY: the slot is the map's, and no other CPU claims it. The thread's id is written
        // last, so that who finds it finds the rest.
        Some(slot) if unsafe { (*slot).tid } == 0 => unsafe {
            slot.write(FollowedThread { tid: 0, ..*thread });
            // What was written before stays before.
            (&raw mut (*black_box(slot)).tid).write_volatile(thread.tid);
            true
        },
        _ => false,
    };
    let _ = CLAIMED_SLOTS.remove(index);
    is_free
}

/// Begins to follow a thread that waits, from another one: into the hash map, since its own switch
/// may take its slot meanwhile.
#[inline(always)]
pub fn adopt(thread: &FollowedThread) {
    // One that was switched meanwhile is there already.
    let adopted = insert_overflow(thread);
    // SAFETY: as above.
    if adopted && slot_of(thread.tid).is_some_and(|slot| unsafe { (*slot).tid } == thread.tid) {
        remove_overflow(thread.tid);
    }
}

/// Ends following a thread, the current one or one that has none.
#[inline(always)]
pub fn remove(tid: u32) {
    if let Some(slot) = slot_of(tid) {
        // SAFETY: as above. Who takes the slot next writes all of it.
        unsafe {
            if (*slot).tid == tid {
                (&raw mut (*slot).tid).write_volatile(0);
            }
        }
    }
    remove_overflow(tid);
}

#[inline(always)]
fn insert_overflow(thread: &FollowedThread) -> bool {
    // Before it is there, so that nobody misses it.
    count_overflow(1);
    let is_new = OVERFLOW_THREADS.insert(thread.tid, thread, u64::from(BPF_NOEXIST)).is_ok();
    if !is_new {
        count_overflow(u64::MAX);
    }
    is_new
}

#[inline(always)]
fn remove_overflow(tid: u32) {
    // One that isn't there needs no removal.
    if OVERFLOW_THREADS.remove(tid).is_ok() {
        count_overflow(u64::MAX);
    }
}

/// Adds to the number of entries; `u64::MAX` takes one away.
#[inline(always)]
fn count_overflow(change: u64) {
    if let Some(count) = OVERFLOW_COUNT.get_ptr_mut(0) {
        // SAFETY: the word is the map's.
        unsafe { atomic::add(count, change) };
    }
}
