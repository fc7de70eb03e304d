//! Threads that wait and don't come back: `inspect_waiting` finds where a thread's user code was
//! when it entered the kernel, and `adopt_waiting`, which follows threads that have waited since
//! before the first switch was seen.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs},
    macros::{map, raw_tracepoint},
    maps::Array,
    programs::RawTracePointContext,
};
use jvmprof_common::off_cpu::{FollowedThread, MAX_ADOPTED, TASK_DEAD, WaitingThread};

use super::off_cpu::followed_threads;
use crate::task::Task;

const _: () = assert!(size_of::<pt_regs>() == 21 * 8);

#[map]
static WAITING: Array<WaitingThread> = Array::with_max_entries(1, 0);

/// Fills [`WAITING`]. It belongs to no tracepoint: `BPF_PROG_TEST_RUN` runs it.
#[raw_tracepoint]
fn inspect_waiting(_: RawTracePointContext) -> i32 {
    if let Some(waiting) = WAITING.get_ptr_mut(0) {
        // SAFETY: the daemon waits for this program before it reads.
        let waiting = unsafe { &mut *waiting };
        waiting.is_waiting = u32::from(inspect(waiting).is_some());
    }
    0
}

/// Begins to follow the threads of the process of [`WAITING`]'s thread that have been where they
/// are since it says: the daemon runs this program, too.
#[raw_tracepoint]
fn adopt_waiting(_: RawTracePointContext) -> i32 {
    if let Some(waiting) = WAITING.get_ptr_mut(0) {
        // SAFETY: as above.
        adopt(unsafe { &*waiting });
    }
    0
}

#[inline(always)]
fn adopt(waiting: &WaitingThread) -> Option<()> {
    let since_ns = waiting.since_ns;
    // SAFETY: the values are copied at once.
    let known = unsafe { *followed_threads::find(waiting.tid)?.thread };
    let head = Task(known.task).thread_list()?;
    let mut node = next(head)?;
    for _ in 0..MAX_ADOPTED {
        node = adopt_one(node, head, u64::from(known.pid), since_ns, waiting.process_start_ns);
        if node == 0 {
            break;
        }
    }
    Some(())
}

/// Begins to follow the thread of a node, if it is one to follow, and returns the node after it; 0:
/// there is none. A global function: the verifier checks it once, and not for each thread.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn adopt_one(node: u64, head: u64, pid: u64, since_ns: u64, since_boot_ns: u64) -> u64 {
    // The kernel keeps the nodes for as long as the program runs, but not the list as it is.
    let task = Task::of_node(node);
    if node == head || !task.is_of(pid as u32) {
        return 0;
    }
    if task.start().is_some_and(|start| start < since_boot_ns) {
        follow(task, pid as u32, since_ns);
    }
    next(node).unwrap_or(0)
}

#[inline(always)]
fn next(node: u64) -> Option<u64> {
    // SAFETY: the helper reads any kernel address without faulting and reports failure.
    unsafe { bpf_probe_read_kernel(node as *const u64) }.ok()
}

/// Begins to follow a thread that wasn't switched since then: a switch would have begun to.
#[inline(always)]
fn follow(task: Task, pid: u32, since_ns: u64) -> Option<()> {
    let tid = task.tid()?;
    let start_ns = task.start()?;
    let state = task.state()?;
    // One that has ended stays on the list where its process has other threads.
    if task.is_running() || state & TASK_DEAD != 0 || followed_threads::find(tid).is_some() {
        return None;
    }
    followed_threads::adopt(&FollowedThread {
        tid,
        state,
        since_ns,
        run_delay: task.run_delay(),
        start_ns,
        task: task.0,
        followed_ns: since_ns,
        pid,
        ..FollowedThread::default()
    });
    Some(())
}

#[inline(always)]
fn inspect(waiting: &mut WaitingThread) -> Option<()> {
    // SAFETY: the values are read one by one, and checked again below.
    let thread = unsafe { &*followed_threads::find(waiting.tid)?.thread };
    let (task, since) = (Task(thread.task), thread.since_ns);
    waiting.since_ns = since;
    waiting.pid = thread.pid;
    waiting.state = thread.state;
    waiting.comm = task.name()?;
    waiting.process_start_ns = task.process_start()?;
    waiting.thread_pointer = task.thread_pointer()?.0;
    // All kernel stacks have the registers at the same place, which depends on the kernel's
    // configuration: it is where this thread has its own.
    // SAFETY: no arguments; the helper returns the current task.
    let own = Task(unsafe { bpf_get_current_task() });
    // SAFETY: both helpers take and return pointers that the kernel checks.
    let own_registers = number_of(waiting, unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64);
    let offset = own_registers.wrapping_sub(own.kernel_stack()?);
    let registers = task.kernel_stack()?.wrapping_add(offset) as *const [u64; 21];
    // SAFETY: the helper reads any kernel address without faulting and reports failure.
    waiting.registers = unsafe { bpf_probe_read_kernel(registers) }.ok()?;
    // The structure may be another thread's by now, and the thread may have gone on.
    let is_same = task.tid() == Some(waiting.tid) && task.start() == Some(thread.start_ns);
    (is_same && !task.is_running() && since != 0 && thread.since_ns == since).then_some(())
}

/// Returns the address that a pointer has: the verifier lets nobody calculate with pointers of its
/// own, but with what was written and read again.
#[inline(always)]
fn number_of(waiting: &mut WaitingThread, pointer: u64) -> u64 {
    let place = &raw mut waiting.registers[0];
    // SAFETY: the place is there, and nobody else uses it meanwhile.
    unsafe {
        place.write_volatile(pointer);
        place.read_volatile()
    }
}
