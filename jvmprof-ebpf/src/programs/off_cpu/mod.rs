//! Time that threads wait off the CPU: `wait_begin` at each switch of the scheduler, where the one
//! thread's wait begins and the other's ends. Only waits that are kept are walked, and for that the
//! thread that waited must be the current one again, which it is once the switch is done. So
//! `wait_begin` raises an interrupt, which is taken as soon as the switch enables interrupts, and
//! `wait_end` runs there: a switch whose waits aren't kept runs no second program.

pub(super) mod followed_threads;
mod switch_clock;
mod thread_ends;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_F_CURRENT_CPU, pt_regs},
    helpers::{
        bpf_get_current_task, bpf_get_current_task_btf, bpf_get_prandom_u32, bpf_get_stack,
        bpf_perf_event_output, bpf_task_pt_regs,
    },
    macros::{btf_tracepoint, map, raw_tracepoint},
    maps::{Array, HashMap, PerCpuArray, PerfEventArray},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use jvmprof_common::{
    abi::{Counter, Event, FLAG_KERNEL_MODE, FLAG_OFF_CPU, MAX_KERNEL_FRAMES, SAMPLE_WORDS, Stop},
    allocation::exponential_distance,
    blocker::Blocker,
    off_cpu::{
        CpuSwitches, FollowedThread, LATER_PART, OffCpuSettings, PREEMPTED, ReportedPart, TASK_DEAD,
        WAIT_WORDS, WaitRecord, WaitTotals, is_runnable,
    },
};

use super::sample::{fill_header, find_process, start};
use crate::{
    counters::count,
    emit, process_filter,
    program_kind::ProgramKind,
    scratch::{self, Scratch, ScratchSlot},
    task::{Task, TypedTask},
    thread::blocker,
};

#[map]
static OFF_CPU_SETTINGS: Array<OffCpuSettings> = Array::with_max_entries(1, 0);
#[map]
static CPU_SWITCHES: PerCpuArray<CpuSwitches> = PerCpuArray::with_max_entries(1, 0);
/// The daemon sets its size.
#[map]
static REPORTED_PARTS: HashMap<u32, ReportedPart> = HashMap::with_max_entries(1, 0);
/// The wait that `wait_begin` leaves for the program after the switch.
#[map]
static KEPT_WAIT: PerCpuArray<KeptWait> = PerCpuArray::with_max_entries(1, 0);
/// A perf event of each CPU. What is written to it is of no use but that the kernel then raises the
/// interrupt in which it wakes the event's readers (`perf_output_wakeup`, kernel/events).
#[map]
static SWITCH_INTERRUPTS: PerfEventArray<u64> = PerfEventArray::new(0);

/// Waits from which on a part may have been reported already: others need no search.
const LEAST_REPORTED_NS: u64 = 100_000_000;

/// A wait that has ended, and is kept.
#[derive(Clone, Copy)]
struct KeptWait {
    /// The thread; 0: there is none.
    tid: u32,
    state: u32,
    waited_ns: u64,
    interval: u64,
    /// [`LATER_PART`] if a part of the wait was reported before, else 0.
    later_part: u64,
    run_delay: u64,
    /// [`FollowedThread::start_ns`].
    start_ns: u64,
    /// [`FollowedThread::waited_ns`] with this wait: the same until the thread is switched away.
    all_waited_ns: u64,
    /// [`FollowedThread::monitor_owner`].
    monitor_owner: u64,
    /// [`FollowedThread::group_queue`], and `throttled_ns` of it.
    group_queue: u64,
    throttled_ns: u64,
}

/// `sched_switch(preempt, previous, next, state of the previous)`: since Linux 5.18, of which this
/// has the order of its arguments. The current thread is still the previous one.
#[btf_tracepoint(function = "sched_switch")]
fn wait_begin(ctx: BtfTracePointContext) -> i32 {
    let previous = TypedTask::of_argument(ctx.arg(1));
    let next = TypedTask::of_argument(ctx.arg(2));
    let (tid, next_tid) = (previous.tid(), next.tid());
    let state = ctx.arg::<u64>(3) as u32 | if ctx.arg::<u64>(0) & 1 != 0 { PREEMPTED } else { 0 };
    // SAFETY: it is this CPU's, where one switch follows the other.
    let Some(CpuSwitches { clock, totals }) = CPU_SWITCHES.get_ptr_mut(0).map(|cpu| unsafe { &mut *cpu })
    else {
        return 0;
    };
    // Thread 0 of each CPU is its idle loop.
    let now = switch_clock::now(clock, (tid != 0 && !is_runnable(state)).then_some(previous), next);
    if next_tid != 0
        && let Some(came) = followed_threads::find(next_tid)
        // SAFETY: only the thread's own switches touch it, and this is one.
        && end_wait(unsafe { &mut *came.thread }, totals, next, now)
        && !raise_interrupt(&ctx)
        && let Some(kept) = KEPT_WAIT.get_ptr_mut(0)
    {
        // SAFETY: this CPU's.
        unsafe { (*kept).tid = 0 };
        totals.lost_waits += 1;
    }
    if tid == 0 {
        return 0;
    }
    if state & TASK_DEAD != 0 {
        thread_ends::queue_times(now);
        followed_threads::remove(tid);
        return 0;
    }
    let followed = followed_threads::find(tid);
    if let Some(left) = followed
        // SAFETY: as above. Another start is that of a thread whose end wasn't seen.
        && let thread = unsafe { &mut *left.thread }
        && thread.start_ns == previous.start()
    {
        lose_unended(thread, totals, now);
        thread.state = state;
        thread.run_delay = previous.run_delay();
        thread.monitor_owner =
            if is_runnable(state) { 0 } else { blocker::owner_for_current(previous.tgid()) };
        (thread.group_queue, thread.throttled_ns) =
            if is_runnable(state) { previous.group_queue() } else { (0, 0) };
        thread.since_ns = now;
        if !left.has_slot {
            followed_threads::move_to_slot(thread);
        }
        return 0;
    }
    if followed.is_some() {
        followed_threads::remove(tid);
    }
    follow(previous, totals, state, now);
    0
}

/// Has this CPU interrupted once the switch is done. Returns false if it has no perf event yet.
#[inline(always)]
fn raise_interrupt(ctx: &BtfTracePointContext) -> bool {
    let word = 0u64;
    // SAFETY: the map is a perf event array, and the word is as long as said.
    let written = unsafe {
        bpf_perf_event_output(
            ctx.as_ptr(),
            (&raw const SWITCH_INTERRUPTS).cast_mut().cast(),
            BPF_F_CURRENT_CPU,
            (&raw const word).cast_mut().cast(),
            size_of::<u64>() as u64,
        )
    };
    written == 0
}

/// Counts a wait as lost whose end wasn't seen: its thread is switched away, and still waits. There
/// are kernels that show no switch from some tasks of their machine to others.
#[inline(always)]
fn lose_unended(thread: &mut FollowedThread, totals: &mut WaitTotals, now: u64) {
    if thread.since_ns == 0 {
        return;
    }
    // Nearly all of the time it has waited.
    thread.waited_ns += now.saturating_sub(thread.since_ns);
    totals.lost_waits += 1;
}

/// Begins to follow a thread.
#[inline(always)]
fn follow(task: TypedTask, totals: &mut WaitTotals, state: u32, now: u64) {
    let pid = task.tgid();
    if task.is_kernel_thread() || !process_filter::is_profiled(pid) {
        return;
    }
    let thread = FollowedThread {
        tid: task.tid(),
        state,
        since_ns: now,
        run_delay: task.run_delay(),
        start_ns: task.start(),
        task: task.untyped().0,
        followed_ns: now,
        pid,
        ..FollowedThread::default()
    };
    if !followed_threads::insert(&thread) {
        totals.unfollowed_switches += 1;
    }
}

/// Ends the wait of a thread that goes on now. Returns true if it is kept, which chance decides.
#[inline(always)]
fn end_wait(thread: &mut FollowedThread, totals: &mut WaitTotals, task: TypedTask, now: u64) -> bool {
    let since = thread.since_ns;
    if since == 0 {
        return false;
    }
    thread.since_ns = 0;
    let mut waited = now.saturating_sub(since);
    // The id of a thread whose end wasn't seen.
    if waited >= LEAST_REPORTED_NS && task.start() != thread.start_ns {
        followed_threads::remove(thread.tid);
        return false;
    }
    thread.waited_ns += waited;
    let Some(settings) = OFF_CPU_SETTINGS.get(0) else { return false };
    if waited < settings.least_ns {
        totals.short_waits += 1;
        totals.short_ns += waited;
        return false;
    }
    totals.long_waits += 1;
    totals.long_ns += waited;
    let mut began = since;
    // SAFETY: the value is copied at once; the daemon replaces it as a whole.
    if waited >= LEAST_REPORTED_NS
        && let Some(reported) = unsafe { REPORTED_PARTS.get(thread.tid) }
        && reported.since_ns == since
    {
        began = reported.until_ns;
        waited = now.saturating_sub(began);
    }
    thread.last_since_ns = since;
    thread.last_began_ns = began;
    // SAFETY: the helper has no preconditions.
    if exponential_distance(unsafe { bpf_get_prandom_u32() }, settings.interval) > waited {
        return false;
    }
    let Some(kept) = KEPT_WAIT.get_ptr_mut(0) else { return false };
    // SAFETY: as above, this CPU's. One that is still there had no interrupt.
    if unsafe { (*kept).tid } != 0 {
        totals.lost_waits += 1;
    }
    let wait = KeptWait {
        tid: thread.tid,
        state: thread.state,
        waited_ns: waited,
        interval: settings.interval,
        later_part: if began == since { 0 } else { LATER_PART },
        run_delay: thread.run_delay,
        start_ns: thread.start_ns,
        all_waited_ns: thread.waited_ns,
        monitor_owner: thread.monitor_owner,
        // Of a part of a wait it isn't known.
        group_queue: if began == since { thread.group_queue } else { 0 },
        throttled_ns: thread.throttled_ns,
    };
    // SAFETY: as above, this CPU's.
    unsafe { *kept = wait };
    true
}

/// `irq_work_entry(vector)`: the interrupt that `wait_begin` raised, or one of another reason. The
/// switch is done. Walks and emits the stack of the current thread, if a wait of it is kept.
#[raw_tracepoint(tracepoint = "irq_work_entry")]
fn wait_end(ctx: RawTracePointContext) -> i32 {
    let Some(kept) = KEPT_WAIT.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's, where no switch comes between: interrupts are off.
    let wait = unsafe { &mut *kept };
    if wait.tid != 0 {
        let kept = *wait;
        wait.tid = 0;
        keep(&ctx, &kept);
    }
    0
}

#[inline(always)]
fn keep<C: ProgramKind>(ctx: &C, wait: &KeptWait) {
    // SAFETY: no arguments; the helper returns the current task.
    let task = Task(unsafe { bpf_get_current_task() });
    let is_it = ctx.pid() == wait.tid;
    // Another thread has its id from one whose end wasn't seen.
    let has_id_of_another = is_it && task.start() != Some(wait.start_ns);
    if has_id_of_another {
        followed_threads::remove(wait.tid);
    }
    // However late the interrupt is, as where a hypervisor takes the CPU away during the switch:
    // the thread has not been switched since.
    let is_unswitched = followed_threads::find(wait.tid)
        // SAFETY: only the thread's own switches write it, and it is the current one.
        .is_some_and(|it| unsafe { (*it.thread).waited_ns } == wait.all_waited_ns);
    if !is_it || has_id_of_another || !is_unswitched {
        if let Some(cpu) = CPU_SWITCHES.get_ptr_mut(0) {
            // SAFETY: this CPU's, where no switch comes between: interrupts are off.
            unsafe { (*cpu).totals.lost_waits += 1 };
        }
        return;
    }
    let (tgid, start_ns) = (ctx.tgid(), task.process_start().unwrap_or(0));
    if process_filter::is_dropped(tgid, start_ns) {
        count(Event::OffCpu, Counter::Dropped);
        return;
    }
    count(Event::OffCpu, Counter::Taken);
    let Some(slot) = ScratchSlot::claim_for_wait() else {
        count(Event::OffCpu, Counter::UnwinderUnavailable);
        return;
    };
    let Some(scratch) = scratch::get(slot) else {
        emit::abandon::<C>(slot);
        return;
    };
    scratch.slot = slot;
    find_process(scratch, tgid, start_ns);
    fill_header(scratch, ctx, task, start_ns, FLAG_KERNEL_MODE | FLAG_OFF_CPU);
    let has_memory = task.has_memory();
    // SAFETY: both helpers take and return pointers that the kernel checks; the task is the
    // current one.
    let user = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
    // SAFETY: a task that isn't a kernel thread has its user registers there.
    let user = unsafe { &*user };
    push_record(scratch, task, wait, user.orig_rax, has_memory);
    push_kernel_stack(scratch, ctx);
    if has_memory {
        start(scratch, user, ctx);
    } else {
        emit::finish::<C>(scratch, ctx.as_ptr(), Stop::NoMemory as u64);
    }
}

/// Returns [`WaitRecord::throttled_ns`].
#[inline(always)]
fn throttled_in(task: Task, wait: &KeptWait) -> u64 {
    if wait.group_queue == 0 {
        return 0;
    }
    match task.group_queue() {
        // Elsewhere it waited for another queue, too: nobody knows for how long for which.
        Some(queue) if queue.0 == wait.group_queue => {
            let now = queue.throttled_ns().unwrap_or(0);
            now.saturating_sub(wait.throttled_ns)
        }
        _ => 0,
    }
}

/// Appends the [`WaitRecord`].
#[inline(always)]
fn push_record(scratch: &mut Scratch, task: Task, wait: &KeptWait, system_call: u64, has_memory: bool) {
    let blocker = if has_memory && !is_runnable(wait.state) {
        blocker::of_current(task, scratch.header.pid, scratch.header.start_ns)
    } else {
        Blocker::default()
    };
    let record = WaitRecord {
        waited_ns: wait.waited_ns,
        queued_ns: task.run_delay().wrapping_sub(wait.run_delay),
        interval: wait.interval,
        state: u64::from(wait.state) | wait.later_part,
        system_call,
        blocker,
        monitor_owner: wait.monitor_owner,
        throttled_ns: throttled_in(task, wait),
    };
    // SAFETY: the words are long enough, and aligned.
    unsafe { scratch.words.as_mut_ptr().cast::<WaitRecord>().write(record) };
    scratch.used = WAIT_WORDS as u64;
    scratch.header.head_words = WAIT_WORDS as u16;
}

#[inline(always)]
fn push_kernel_stack(scratch: &mut Scratch, ctx: &impl EbpfContext) {
    const { assert!(WAIT_WORDS + MAX_KERNEL_FRAMES <= SAMPLE_WORDS) };
    let words = scratch.words.as_mut_ptr().wrapping_add(WAIT_WORDS);
    // SAFETY: the buffer is at least as long as the size given.
    let bytes = unsafe { bpf_get_stack(ctx.as_ptr(), words.cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0) };
    if bytes <= 0 {
        count(Event::OffCpu, Counter::KernelStackUnreadable);
        return;
    }
    let frames = (bytes as u64 >> 3) & 0xff;
    scratch.header.head_words = WAIT_WORDS as u16 + frames as u16;
    scratch.used = WAIT_WORDS as u64 + frames;
}
