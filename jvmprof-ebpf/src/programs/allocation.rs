//! Allocations in a JVM's heap: the uprobes `alloc_in_new_tlab` and `alloc_outside_tlab`, and
//! `alloc_thread_end`. They follow what each thread has allocated, keep some events at random by
//! bytes, whose stacks are walked, and name some buffers that were given up for a census.
//!
//! Arguments: openjdk src/hotspot/share/gc/shared/allocTracer.hpp, services/threadService.hpp.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_task, bpf_get_prandom_u32, bpf_ktime_get_ns},
    macros::{map, uprobe},
    maps::HashMap,
    programs::ProbeContext,
};
use jvmprof_common::{
    abi::{Counter, Event, FLAG_ALLOCATION, SAMPLE_WORDS},
    address::Avma,
    allocation::{
        ALLOCATION_WORDS, AllocatedTotals, AllocatingThread, AllocationRecord, AllocationTarget, CountedKey,
        LARGE_OBJECT, ObjectTotals, RandomDistance, TLAB_MAGIC, TlabRecord, size_class,
    },
};

use super::sample::{fill_header, find_process, start};
use crate::{
    atomic,
    counters::count,
    emit::{self, emit_tlab},
    scratch::{self, Scratch, ScratchSlot},
    task::Task,
    user_memory,
};

/// The daemon sets the sizes of these.
#[map]
static ALLOCATION_TARGETS: HashMap<u32, AllocationTarget> = HashMap::with_max_entries(1, 0);
#[map]
static ALLOCATING_THREADS: HashMap<u32, AllocatingThread> = HashMap::with_max_entries(1, 0);
#[map]
static ALLOCATED: HashMap<u32, AllocatedTotals> = HashMap::with_max_entries(1, 0);
#[map]
static COUNTED: HashMap<CountedKey, ObjectTotals> = HashMap::with_max_entries(1, 0);

/// Adds to a field of totals that other threads add to, too.
macro_rules! add {
    ($totals:expr, $field:ident, $value:expr) => {
        // SAFETY: the map lends a valid pointer, and its fields are aligned.
        unsafe { atomic::add(&raw mut (*$totals).$field, $value) }
    };
}

/// One event, in a process that is a target.
struct AllocationEvent {
    target: AllocationTarget,
    task: Task,
    tid: u32,
    tgid: u32,
    /// The address of the `JavaThread`.
    thread: u64,
    klass: u64,
    object_bytes: u64,
    /// The buffer that the object is the first one of; `bytes` 0: it is outside.
    tlab_start: u64,
    tlab_bytes: u64,
}

/// `send_allocation_in_new_tlab(klass, object, bytes of the buffer, bytes of the object, thread)`.
#[uprobe]
fn alloc_in_new_tlab(ctx: ProbeContext) -> u32 {
    // SAFETY: the context of an uprobe is the registers of the thread.
    let regs = unsafe { &*ctx.regs };
    let (tlab_start, tlab_bytes) = (regs.rsi, regs.rdx);
    if let Some(allocation) =
        AllocationEvent::of_target(&ctx, regs.rdi, regs.rcx, regs.r8, tlab_start, tlab_bytes)
    {
        handle(&ctx, &allocation);
    }
    0
}

/// `send_allocation_outside_tlab(klass, object, bytes of the object, thread)`.
#[uprobe]
fn alloc_outside_tlab(ctx: ProbeContext) -> u32 {
    // SAFETY: as above.
    let regs = unsafe { &*ctx.regs };
    if let Some(allocation) = AllocationEvent::of_target(&ctx, regs.rdi, regs.rdx, regs.rcx, 0, 0) {
        handle(&ctx, &allocation);
    }
    0
}

/// `ThreadService::remove_thread(thread, is_daemon)`: a thread ends, and has retired its buffer.
#[uprobe]
fn alloc_thread_end(ctx: ProbeContext) -> u32 {
    // SAFETY: as above.
    let regs = unsafe { &*ctx.regs };
    if let Some(allocation) = AllocationEvent::of_target(&ctx, 0, 0, regs.rdi, 0, 0) {
        end_thread(&allocation);
    }
    0
}

impl AllocationEvent {
    #[inline(always)]
    fn of_target(
        ctx: &ProbeContext,
        klass: u64,
        object_bytes: u64,
        thread: u64,
        tlab_start: u64,
        tlab_bytes: u64,
    ) -> Option<Self> {
        let (tgid, tid) = (ctx.tgid(), ctx.pid());
        // SAFETY: the value is copied at once; the daemon replaces it as a whole.
        let target = *unsafe { ALLOCATION_TARGETS.get(tgid) }?;
        // SAFETY: no arguments; the helper returns the current task.
        let task = Task(unsafe { bpf_get_current_task() });
        Some(Self { target, task, tid, tgid, thread, klass, object_bytes, tlab_start, tlab_bytes })
    }

    /// Returns false if an earlier process with this pid was the target.
    #[inline(always)]
    fn is_of_target(&self) -> bool {
        self.task.process_start().unwrap_or(0) == self.target.start_ns
    }

    #[inline(always)]
    const fn is_outside(&self) -> bool {
        self.tlab_bytes == 0
    }

    /// Returns the object's bytes, if it is counted where it is the first of its buffer; else 0.
    #[inline(always)]
    const fn large_bytes(&self) -> u64 {
        if self.object_bytes >= LARGE_OBJECT { self.object_bytes } else { 0 }
    }

    #[inline(always)]
    fn allocated_bytes(&self) -> Option<u64> {
        user_memory::read_word(Avma(self.thread) + u64::from(self.target.allocated_bytes_offset))
    }

    /// Returns how many collections have begun.
    #[inline(always)]
    fn collections(&self) -> u64 {
        let at = self.target.collections_at;
        user_memory::read_word(Avma(at)).map_or(u64::MAX, |word| word & 0xffff_ffff)
    }
}

#[inline(always)]
fn handle(ctx: &ProbeContext, allocation: &AllocationEvent) {
    let Some(weighed) = follow(allocation) else { return };
    if weighed.bytes != 0 {
        keep(ctx, allocation, weighed);
    }
}

/// The bytes that an event was kept for: see [`AllocationRecord`]. No bytes: it isn't kept.
#[derive(Clone, Copy, Default)]
struct SampleDraw {
    bytes: u64,
    drawn: u64,
}

/// Follows the thread: adds to the totals what it has allocated since its last event, and chooses
/// its buffer for a census.
#[inline(always)]
fn follow(allocation: &AllocationEvent) -> Option<SampleDraw> {
    let totals = totals_of(allocation.tgid)?;
    let Some(allocated) = allocation.allocated_bytes() else {
        add!(totals, unfollowed_events, 1);
        return None;
    };
    let Some(state) = ALLOCATING_THREADS.get_ptr_mut(allocation.tid) else {
        return begin(allocation, totals, allocated);
    };
    // SAFETY: the state is this thread's, and only its own events touch it.
    let state = unsafe { &mut *state };
    // Another thread had the id, or this JVM did something that isn't known.
    let is_same = state.thread == allocation.thread && state.start_ns == allocation.target.start_ns;
    if !is_same || allocated < state.allocated {
        if !allocation.is_of_target() {
            return None;
        }
        *state = new_thread(allocation, allocated);
    }
    let mut weighed = SampleDraw::default();
    let own = if allocation.is_outside() { allocation.object_bytes } else { 0 };
    let used = (allocated - state.allocated).saturating_sub(state.outside + own);
    // For an object outside a buffer is given up, too, where then there is no room for one with it
    // (openjdk 11 share/gc/g1/g1Allocator.cpp, `unsafe_max_tlab_alloc`: at the end of a region). A
    // buffer that a collection has taken is the next event's, if that is in a buffer.
    let gives_up = !allocation.is_outside() || used != 0 && state.collections == allocation.collections();
    if gives_up {
        add!(totals, inside, used);
        let collections = allocation.collections();
        let is_filled = state.collections == collections;
        // What a thread allocates first, or first after a collection, depends on where it was, and
        // not on how much of it there is. Where a thread fills buffers, these alone are draws.
        let is_drawn = used != 0 && (is_filled || state.has_filled == 0);
        give_up(allocation, totals, state, used, collections);
        state.allocated = allocated;
        state.outside = 0;
        state.tlab_start = allocation.tlab_start;
        state.tlab_bytes = allocation.tlab_bytes;
        state.large_first = if allocation.is_outside() { 0 } else { allocation.large_bytes() };
        state.collections = collections;
        state.has_filled = u64::from(is_filled);
        state.undrawn += used;
        if is_drawn {
            weighed.drawn = state.undrawn;
            state.undrawn = 0;
        }
    } else {
        state.outside += own;
    }
    if allocation.is_outside() {
        add_outside(allocation, totals);
        weighed.bytes = weighed.drawn + own;
    } else {
        add_first(allocation, totals);
        weighed.bytes = match (weighed.drawn, used) {
            // Its first buffer gives none up.
            (0, 0) => allocation.tlab_bytes,
            (0, used) => used,
            (drawn, _) => drawn,
        };
    }
    let is_kept = state.to_sample.is_reached(weighed.bytes, allocation.target.interval, random);
    Some(if is_kept { weighed } else { SampleDraw::default() })
}

/// Counts what a thread that ends has allocated since its last event, and forgets it.
#[inline(always)]
fn end_thread(allocation: &AllocationEvent) {
    let Some(totals) = totals_of(allocation.tgid) else { return };
    let Some(state) = ALLOCATING_THREADS.get_ptr_mut(allocation.tid) else { return };
    // SAFETY: the state is this thread's, and only its own events touch it.
    let state = unsafe { &mut *state };
    // Otherwise the state is of a thread that had the id before.
    if state.thread == allocation.thread && state.start_ns == allocation.target.start_ns {
        let allocated = allocation.allocated_bytes().filter(|allocated| *allocated >= state.allocated);
        if let Some(allocated) = allocated {
            let used = (allocated - state.allocated).saturating_sub(state.outside);
            add!(totals, inside, used);
            give_up(allocation, totals, state, used, allocation.collections());
        } else {
            add!(totals, unfollowed_events, 1);
        }
    }
    let _ = ALLOCATING_THREADS.remove(allocation.tid);
}

/// Names the buffer that a thread gives up for a census, if chance says so; counts its bytes if a
/// collection has cut it. A large first object, which is counted already, has no part in either: a
/// buffer with nothing else is never chosen.
#[inline(always)]
fn give_up(
    allocation: &AllocationEvent,
    totals: *mut AllocatedTotals,
    state: &mut AllocatingThread,
    used: u64,
    collections: u64,
) {
    let uncounted = used.saturating_sub(state.large_first);
    let interval = allocation.target.census_interval;
    if used > state.tlab_bytes || state.collections != collections {
        add!(totals, cut, uncounted);
    } else if interval != 0 && state.to_census.is_reached(uncounted, interval, random) {
        name_tlab(allocation, state, used);
    }
}

/// Begins to follow a thread.
#[inline(always)]
fn begin(allocation: &AllocationEvent, totals: *mut AllocatedTotals, allocated: u64) -> Option<SampleDraw> {
    if !allocation.is_of_target() {
        return None;
    }
    let mut state = new_thread(allocation, allocated);
    let before = allocated.saturating_sub(state.allocated);
    let weighed = if allocation.is_outside() {
        state.allocated = allocated;
        allocation.object_bytes
    } else {
        state.allocated = allocated;
        state.tlab_start = allocation.tlab_start;
        state.tlab_bytes = allocation.tlab_bytes;
        state.large_first = allocation.large_bytes();
        state.collections = allocation.collections();
        allocation.tlab_bytes
    };
    let is_kept = state.to_sample.is_reached(weighed, allocation.target.interval, random);
    // `allocated` has an object outside already: what was before it is in no event.
    let inside = before.saturating_sub(if allocation.is_outside() { allocation.object_bytes } else { 0 });
    state.undrawn = inside;
    // Its next event would begin again, and count all once more.
    if ALLOCATING_THREADS.insert(allocation.tid, state, 0).is_err() {
        add!(totals, unfollowed_events, 1);
        return None;
    }
    add!(totals, inside, inside);
    add!(totals, cut, inside);
    if allocation.is_outside() {
        add_outside(allocation, totals);
    } else {
        add_first(allocation, totals);
    }
    Some(SampleDraw { bytes: if is_kept { weighed } else { 0 }, drawn: 0 })
}

/// Returns the state of a thread that has had no event. What it allocated before counts, unless it
/// is older than the profile.
#[inline(always)]
fn new_thread(allocation: &AllocationEvent, allocated: u64) -> AllocatingThread {
    let is_whole = allocation.task.start().unwrap_or(0) >= allocation.target.since_ns;
    AllocatingThread {
        thread: allocation.thread,
        start_ns: allocation.target.start_ns,
        allocated: if is_whole { 0 } else { allocated },
        to_sample: RandomDistance::draw(allocation.target.interval, random()),
        to_census: RandomDistance::draw(allocation.target.census_interval, random()),
        ..AllocatingThread::default()
    }
}

/// Returns a uniformly distributed number.
#[inline(always)]
fn random() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_prandom_u32() }
}

#[inline(always)]
fn name_tlab(allocation: &AllocationEvent, state: &AllocatingThread, used: u64) {
    let record = TlabRecord {
        magic: TLAB_MAGIC,
        // SAFETY: helper without arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        start_ns: allocation.target.start_ns,
        pid: allocation.tgid,
        tid: allocation.tid,
        start: state.tlab_start,
        used,
        large_first: state.large_first,
        collections: state.collections,
        interval: allocation.target.census_interval,
    };
    if !emit_tlab(&record) {
        count(Event::Allocation, Counter::TlabsLost);
    }
}

/// Walks and emits the stack of an event that is kept.
#[inline(always)]
fn keep(ctx: &ProbeContext, allocation: &AllocationEvent, weighed: SampleDraw) {
    count(Event::Allocation, Counter::Taken);
    let Some(slot) = ScratchSlot::claim() else {
        count(Event::Allocation, Counter::UnwinderUnavailable);
        return;
    };
    let Some(scratch) = scratch::get(slot) else {
        emit::abandon::<ProbeContext>(slot);
        return;
    };
    scratch.slot = slot;
    let start_ns = allocation.target.start_ns;
    find_process(scratch, allocation.tgid, start_ns);
    fill_header(scratch, ctx, allocation.task, start_ns, FLAG_ALLOCATION);
    push_record(scratch, allocation, weighed);
    // SAFETY: the context of an uprobe is the registers of the thread.
    start(scratch, unsafe { &*ctx.regs }, ctx);
}

/// Appends the [`AllocationRecord`].
#[inline(always)]
fn push_record(scratch: &mut Scratch, allocation: &AllocationEvent, weighed: SampleDraw) {
    const { assert!(ALLOCATION_WORDS <= SAMPLE_WORDS) };
    let record = AllocationRecord {
        klass: allocation.klass,
        object_bytes: allocation.object_bytes,
        tlab_bytes: allocation.tlab_bytes,
        weighed_bytes: weighed.bytes,
        interval: allocation.target.interval,
        drawn_bytes: weighed.drawn,
    };
    // SAFETY: the words are long enough, and aligned.
    unsafe { scratch.words.as_mut_ptr().cast::<AllocationRecord>().write(record) };
    scratch.used = ALLOCATION_WORDS as u64;
    scratch.header.head_words = ALLOCATION_WORDS as u16;
}

/// Returns the totals of a process, which the daemon has made.
#[inline(always)]
fn totals_of(tgid: u32) -> Option<*mut AllocatedTotals> {
    ALLOCATED.get_ptr_mut(tgid)
}

/// Adds an object outside buffers to the totals, and to those of its class.
#[inline(always)]
fn add_outside(allocation: &AllocationEvent, totals: *mut AllocatedTotals) {
    add!(totals, outside, allocation.object_bytes);
    add_to_class(allocation, totals, 0);
}

/// The same for the first object of a buffer, if it is large.
#[inline(always)]
fn add_first(allocation: &AllocationEvent, totals: *mut AllocatedTotals) {
    if allocation.large_bytes() != 0 {
        add!(totals, large_first, allocation.object_bytes);
        add_to_class(allocation, totals, 1);
    }
}

#[inline(always)]
fn add_to_class(allocation: &AllocationEvent, totals: *mut AllocatedTotals, is_first: u16) {
    let bytes = allocation.object_bytes;
    let key = CountedKey {
        klass: allocation.klass,
        pid: allocation.tgid,
        size_class: size_class(bytes) as u16,
        is_first,
    };
    let of_class = match COUNTED.get_ptr_mut(key) {
        Some(of_class) => Some(of_class),
        None => {
            // Another thread may have inserted it, or the map is full: either shows below.
            let _ = COUNTED.insert(key, ObjectTotals::default(), 1);
            COUNTED.get_ptr_mut(key)
        }
    };
    let Some(of_class) = of_class else {
        add!(totals, unclassified, bytes);
        return;
    };
    add!(of_class, objects, 1);
    add!(of_class, bytes, bytes);
}
