//! Threads that end, where their times are wanted: how long a thread ran and waited, the kernel
//! says only while it is there.

use aya_ebpf::{helpers::bpf_get_current_task, macros::map, maps::Queue};
use jvmprof_common::off_cpu::EndedThread;

use super::followed_threads;
use crate::{globals, process_filter, task::Task};

/// The daemon sets its size.
#[map]
static ENDED_THREADS: Queue<EndedThread> = Queue::with_max_entries(1, 0);

/// Queues the times of the current thread, which leaves its CPU for the last time, where that is
/// wanted. `now`: of this switch.
#[inline(always)]
pub fn queue_times(now: u64) {
    if globals::thread_ends() != 0 {
        queue_ended_thread(now);
    }
}

/// Reads the maps and the thread alone. A global function: the verifier checks it once, and its
/// stack is its own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn queue_ended_thread(now: u64) -> u64 {
    // SAFETY: the helper has no preconditions.
    let task = Task(unsafe { bpf_get_current_task() });
    u64::from(queue_times_of(task, now).is_some())
}

#[inline(always)]
fn queue_times_of(task: Task, now: u64) -> Option<()> {
    let (tid, pid) = (task.tid()?, task.tgid()?);
    if task.is_kernel_thread() || !process_filter::is_profiled(pid) {
        return None;
    }
    let mut ended = EndedThread {
        tid,
        pid,
        start_ns: task.start()?,
        ended_ns: now,
        ran_ns: task.ran()?,
        followed_ns: 0,
        waited_ns: 0,
        comm: task.name()?,
    };
    // One that was never switched away before isn't followed.
    if let Some(followed) = followed_threads::find(tid) {
        // SAFETY: only the thread's own switches touch it, and this is one.
        let followed = unsafe { &*followed.thread };
        // Another start is that of a thread whose end wasn't seen.
        if followed.start_ns == ended.start_ns {
            ended.followed_ns = followed.followed_ns;
            ended.waited_ns = followed.waited_ns;
        }
    }
    // If the queue is full, nobody knows its times.
    ENDED_THREADS.push(ended, 0).ok()
}
