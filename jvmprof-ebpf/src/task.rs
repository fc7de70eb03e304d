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

    /// Returns for how long the thread has run, ns, as the scheduler counted it when the thread was
    /// switched away, or by the clock's last tick.
    #[inline(always)]
    pub fn ran(self) -> Option<u64> {
        self.read(globals::task_ran())
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
        match globals::queue_throttled() {
            0 => None,
            _ => self.read(globals::task_group_queue()).map(GroupQueue),
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

/// A task whose type the verifier knows: the current one, or an argument of a tracepoint. The
/// program reads what lies there by itself, in a third of the time that the helper takes.
#[derive(Clone, Copy)]
pub struct TypedTask(*const u8);

impl TypedTask {
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: the helper has no preconditions.
        Self(unsafe { bpf_get_current_task_btf() }.cast::<u8>().cast_const())
    }

    /// Takes an argument of a tracepoint with types, which is a `task_struct`.
    #[inline(always)]
    pub fn of_argument(task: *const u8) -> Self {
        Self(task)
    }

    /// Returns the same task by its address.
    #[inline(always)]
    pub fn untyped(self) -> Task {
        Task(self.0.addr() as u64)
    }

    #[inline(always)]
    pub fn is_kernel_thread(self) -> bool {
        self.read::<u32>(globals::task_flags()) & PF_KTHREAD != 0
    }

    #[inline(always)]
    pub fn tid(self) -> u32 {
        self.read(globals::task_pid())
    }

    #[inline(always)]
    pub fn tgid(self) -> u32 {
        self.read(globals::task_tgid())
    }

    /// Returns what [`Task::thread_pointer`] does.
    #[inline(always)]
    pub fn thread_pointer(self) -> Avma {
        Avma(self.read(globals::task_fsbase()))
    }

    /// Returns what [`Task::run_delay`] does.
    #[inline(always)]
    pub fn run_delay(self) -> u64 {
        match globals::task_run_delay() {
            0 => 0,
            offset => self.read(offset),
        }
    }

    /// Returns the address of its [`GroupQueue`], and [`GroupQueue::throttled_ns`] of it; zeros
    /// where they aren't known.
    #[inline(always)]
    pub fn group_queue(self) -> (u64, u64) {
        if globals::queue_throttled() == 0 {
            return (0, 0);
        }
        let queue: *const u8 = self.read(globals::task_group_queue());
        // SAFETY: the verifier knows that this is a queue, and what lies there; a fault gives
        // zeros.
        let [since, ended] = unsafe {
            let at = queue.add(globals::queue_throttled() as usize).cast::<u64>();
            [at.read(), at.add(1).read()]
        };
        let address = queue.addr() as u64;
        let throttled_ns = if since == 0 { Some(ended) } else { GroupQueue(address).throttled_ns() };
        throttled_ns.map_or((0, 0), |throttled_ns| (address, throttled_ns))
    }

    /// Returns its start time, as [`Task::start`] does.
    #[inline(always)]
    pub fn start(self) -> u64 {
        self.read(globals::task_start_boottime())
    }

    /// Returns the scheduler's clock when it was put on a run queue, ns; 0 where that isn't known.
    #[inline(always)]
    pub fn last_queued(self) -> u64 {
        match globals::task_last_queued() {
            0 => 0,
            offset => self.read(offset),
        }
    }

    /// Returns the scheduler's clock (`rq->clock`) of the CPU on which it runs or ran last, ns, as
    /// it was read there last. Only where [`globals::switch_clock`] says that it is there.
    #[inline(always)]
    pub fn last_cpu_clock(self) -> u64 {
        let queue: *const u8 = self.read(globals::task_group_queue());
        // SAFETY: the verifier knows that these are a queue and its CPU's, and what lies there.
        unsafe {
            let cpu = queue.add(globals::queue_cpu() as usize).cast::<*const u8>().read();
            cpu.add(globals::cpu_clock() as usize).cast::<u64>().read()
        }
    }

    #[inline(always)]
    fn read<T>(self, offset: u32) -> T {
        // SAFETY: the verifier refuses another offset than that of a field in the task.
        unsafe { self.0.add(offset as usize).cast::<T>().read() }
    }
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
        // It is now. The time is that of its CPU's clock, as it was read last.
        let cpu = Self(self.read(globals::queue_cpu())?);
        let now: u64 = cpu.read(globals::cpu_clock())?;
        Some(ended + now.saturating_sub(since))
    }

    #[inline(always)]
    fn read<T>(self, offset: u32) -> Option<T> {
        Task(self.0).read(offset)
    }
}
