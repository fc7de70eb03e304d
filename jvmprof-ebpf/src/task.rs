//! Fields of `task_struct`, at the offsets that the daemon read from the kernel's BTF.

use aya_ebpf::helpers::{bpf_get_current_task_btf, bpf_probe_read_kernel};
use jvmprof_common::address::Avma;

use crate::globals;

/// `PF_KTHREAD` of include/linux/sched.h: the task has no user memory.
const PF_KTHREAD: u32 = 0x0020_0000;

/// The address of a `task_struct`.
#[derive(Clone, Copy)]
pub struct Task(pub u64);

impl Task {
    #[inline(always)]
    pub fn is_kernel_thread(self) -> bool {
        self.read::<u32>(globals::task_flags()).unwrap_or(0) & PF_KTHREAD != 0
    }

    /// Returns false once the task has released its user memory.
    #[inline(always)]
    pub fn has_memory(self) -> bool {
        self.read::<u64>(globals::task_mm()).unwrap_or(0) != 0
    }

    /// Returns the thread's id.
    #[inline(always)]
    pub fn tid(self) -> Option<u32> {
        self.read(globals::task_pid())
    }

    /// Returns true while the thread runs, and where that can't be read.
    #[inline(always)]
    pub fn is_running(self) -> bool {
        self.read::<u32>(globals::task_on_cpu()) != Some(0)
    }

    /// Returns its state: 0 if it could run.
    #[inline(always)]
    pub fn state(self) -> Option<u32> {
        self.read(globals::task_state())
    }

    /// Returns the address of the head of its process's list of threads.
    #[inline(always)]
    pub fn thread_list(self) -> Option<u64> {
        let signal: u64 = self.read(globals::task_signal())?;
        Some(signal.wrapping_add(u64::from(globals::signal_thread_head())))
    }

    /// Returns the thread of a node of that list.
    #[inline(always)]
    pub fn of_node(node: u64) -> Self {
        Self(node.wrapping_sub(u64::from(globals::task_thread_node())))
    }

    /// Returns the lowest address of the thread's kernel stack.
    #[inline(always)]
    pub fn kernel_stack(self) -> Option<u64> {
        self.read(globals::task_stack())
    }

    /// Returns what the thread has waited on run queues, ns; 0 where the kernel doesn't say.
    #[inline(always)]
    pub fn run_delay(self) -> u64 {
        match globals::task_run_delay() {
            0 => 0,
            offset => self.read(offset).unwrap_or(0),
        }
    }

    /// Returns the run queue of its control group that it is on; `None` where that isn't known, or
    /// the kernel doesn't say for how long such a queue was out of CPU quota.
    #[inline(always)]
    pub fn group_queue(self) -> Option<GroupQueue> {
        match globals::task_group_queue() {
            0 => None,
            offset => self.read(offset).map(GroupQueue),
        }
    }

    #[inline(always)]
    pub fn tgid(self) -> Option<u32> {
        self.read(globals::task_tgid())
    }

    /// Returns the start time of the process (of its first thread): `CLOCK_BOOTTIME`, ns.
    #[inline(always)]
    pub fn process_start(self) -> Option<u64> {
        let leader = Self(self.read(globals::task_group_leader())?);
        leader.read(globals::task_start_boottime())
    }

    /// Returns the start time of this thread: `CLOCK_BOOTTIME`, ns.
    #[inline(always)]
    pub fn start(self) -> Option<u64> {
        self.read(globals::task_start_boottime())
    }

    /// Returns the thread's name.
    #[inline(always)]
    pub fn name(self) -> Option<[u8; 16]> {
        self.read(globals::task_comm())
    }

    /// Returns the base of `fs` as it was set by a system call. Code that sets it by instruction is
    /// unknown to the kernel until it leaves the CPU; neither glibc nor Go's runtime does.
    #[inline(always)]
    pub fn thread_pointer(self) -> Option<Avma> {
        self.read(globals::task_fsbase()).map(Avma)
    }

    #[inline(always)]
    pub fn is_of(self, pid: u32) -> bool {
        self.tgid() == Some(pid)
    }

    #[inline(always)]
    fn read<T>(self, offset: u32) -> Option<T> {
        // SAFETY: the helper reads any kernel address without faulting and reports failure.
        unsafe { bpf_probe_read_kernel((self.0 + offset as u64) as *const T) }.ok()
    }
}

/// Reads a number or pointer of the current task: the verifier knows where its task is and what
/// lies there, so that the program reads it by itself, in a third of the time that the helper
/// takes.
#[inline(always)]
fn read_of_current<T>(offset: u32) -> T {
    // SAFETY: the helper has no preconditions, and the verifier refuses another offset than that of
    // a field in the task.
    unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>().cast_const();
        task.add(offset as usize).cast::<T>().read()
    }
}

/// Returns what [`Task::thread_pointer`] does, of the current thread.
#[inline(always)]
pub fn current_thread_pointer() -> Avma {
    Avma(read_of_current(globals::task_fsbase()))
}

/// Returns what [`Task::run_delay`] does, of the current thread.
#[inline(always)]
pub fn current_run_delay() -> u64 {
    match globals::task_run_delay() {
        0 => 0,
        offset => read_of_current(offset),
    }
}

/// Returns the address of the current thread's [`GroupQueue`], and its
/// [`GroupQueue::throttled_ns`]; zeros where they aren't known.
#[inline(always)]
pub fn current_group_queue() -> (u64, u64) {
    if globals::task_group_queue() == 0 {
        return (0, 0);
    }
    let queue: *const u8 = read_of_current(globals::task_group_queue());
    // SAFETY: the verifier knows that this is a queue, and what lies there; a fault gives zeros.
    let [since, ended] = unsafe {
        let at = queue.add(globals::queue_throttled() as usize).cast::<u64>();
        [at.read(), at.add(1).read()]
    };
    let address = queue.addr() as u64;
    let throttled_ns = if since == 0 { Some(ended) } else { GroupQueue(address).throttled_ns() };
    throttled_ns.map_or((0, 0), |throttled_ns| (address, throttled_ns))
}

/// The address of a `struct cfs_rq`: the threads of one control group that are to run on one CPU.
#[derive(Clone, Copy)]
pub struct GroupQueue(pub u64);

impl GroupQueue {
    /// Returns for how long it was out of CPU quota since it was made, ns: because of its own group
    /// or of one above it. `None` if it is gone.
    #[inline(always)]
    pub fn throttled_ns(self) -> Option<u64> {
        let [since, ended]: [u64; 2] = self.read(globals::queue_throttled())?;
        if since == 0 {
            return Some(ended);
        }
        // It is now. The time is that of its CPU's clock, which the switch has just updated.
        let cpu = Self(self.read(globals::queue_cpu())?);
        let now: u64 = cpu.read(globals::cpu_clock())?;
        Some(ended + now.saturating_sub(since))
    }

    #[inline(always)]
    fn read<T>(self, offset: u32) -> Option<T> {
        Task(self.0).read(offset)
    }
}
