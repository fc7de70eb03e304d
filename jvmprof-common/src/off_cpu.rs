//! Time that threads spend off the CPU, as the kernel programs of the scheduler report it to
//! the daemon.
//!
//! A wait begins when a thread is switched away and ends when it is switched back. Points are
//! spread over the time that each thread waits, at random distances with an exponential
//! distribution of mean [`OffCpuSettings::interval`], and a wait with a point in it is kept. What
//! is left of such a distance doesn't depend on what has passed: each wait draws one anew.

pub mod switch_clock;

use core::mem::offset_of;

use crate::blocker::Blocker;
use switch_clock::SwitchClock;

/// The daemon's settings for waits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCpuSettings {
    /// Shorter waits aren't kept, ns.
    pub least_ns: u64,
    /// The mean distance of the points, ns; 2^40 at most.
    pub interval: u64,
}

/// A thread that is followed: what each switch reads and writes comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedThread {
    /// 0: nobody has this slot.
    pub tid: u32,
    /// Its state when it was switched away: see [`is_runnable`].
    pub state: u32,
    /// When it was switched away, `CLOCK_MONOTONIC` in ns; 0: it runs.
    pub since_ns: u64,
    /// What it has waited since it is followed, but for a wait that goes on, ns.
    pub waited_ns: u64,
    /// What it has waited on run queues when it was switched away, ns.
    pub run_delay: u64,
    /// The owner of the monitor that it entered when it was switched away, as the JVM has it: see
    /// [`crate::blocker::entered_monitor`].
    pub monitor_owner: u64,
    /// Of a thread that could run when it was switched away: the run queue of its control group
    /// that it was on, the address of a `struct cfs_rq`, and for how long that had been out of CPU
    /// quota since it was made, ns. 0: it isn't known.
    pub group_queue: u64,
    pub throttled_ns: u64,
    /// `task_struct.start_boottime` of the thread, ns: with its id its identity.
    pub start_ns: u64,
    /// The address of its `task_struct`.
    pub task: u64,
    /// When its last wait began, of those that are long enough, and from when on that was reported
    /// when it ended: what was before that is in the [`ReportedPart`].
    pub last_since_ns: u64,
    pub last_began_ns: u64,
    /// Since when it is followed, `CLOCK_MONOTONIC` in ns.
    pub followed_ns: u64,
    pub pid: u32,
    /// Fills two lines of the CPU's cache, so that what one thread's switches write lies in no line
    /// of another thread, whose CPU would lose it.
    pub padding: [u32; 7],
}

/// Slots of threads that are followed, a power of two: thread `tid` has slot `tid % slots`, in
/// [`FOLLOWED_THREADS`], or where another thread has that, an entry of [`OVERFLOW_THREADS`].
pub const FOLLOWED_THREADS: &str = "FOLLOWED_THREADS";
/// Hash map from `tid` to [`FollowedThread`].
pub const OVERFLOW_THREADS: &str = "OVERFLOW_THREADS";

/// The times of a thread that has ended, as nobody can ask for them any more.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedThread {
    pub tid: u32,
    pub pid: u32,
    /// [`FollowedThread::start_ns`].
    pub start_ns: u64,
    /// When it left its CPU for the last time, `CLOCK_MONOTONIC` in ns.
    pub ended_ns: u64,
    /// For how long it has run, ns: `task_struct.se.sum_exec_runtime`.
    pub ran_ns: u64,
    /// [`FollowedThread::followed_ns`]; 0: it wasn't followed.
    pub followed_ns: u64,
    /// [`FollowedThread::waited_ns`].
    pub waited_ns: u64,
    pub comm: [u8; 16],
}

/// Queue of [`EndedThread`].
pub const ENDED_THREADS: &str = "ENDED_THREADS";

/// The part of a wait that was reported while it went on, by the thread's id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedPart {
    /// When the wait began, `CLOCK_MONOTONIC` in ns.
    pub since_ns: u64,
    /// Until when it was reported.
    pub until_ns: u64,
}

/// State that a CPU's switches keep from one to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSwitches {
    pub clock: SwitchClock,
    pub totals: WaitTotals,
}

/// Waits that have ended, kept or not: one CPU's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotals {
    /// Waits of [`OffCpuSettings::least_ns`] or more, and nanoseconds of them.
    pub long_waits: u64,
    pub long_ns: u64,
    /// Shorter ones.
    pub short_waits: u64,
    pub short_ns: u64,
    /// Switches of threads that could not be followed, since too many are.
    pub unfollowed_switches: u64,
    /// Kept waits whose stacks could not be taken, and waits whose ends weren't seen.
    pub lost_waits: u64,
}

/// Data of a kept wait beside its stack: the first words of its sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitRecord {
    /// The time that decided by chance whether the wait is kept: the whole of it, or what wasn't
    /// reported yet.
    pub waited_ns: u64,
    /// The end of the wait in which the thread could run, but didn't, ns.
    pub queued_ns: u64,
    /// [`OffCpuSettings::interval`] when it was kept.
    pub interval: u64,
    /// The thread's state when it was switched away, see [`is_runnable`], and [`LATER_PART`].
    pub state: u64,
    /// The number of the system call, `orig_ax`; negative: it was in none.
    pub system_call: u64,
    /// What a thread of a JVM waited for.
    pub blocker: Blocker,
    /// [`FollowedThread::monitor_owner`].
    pub monitor_owner: u64,
    /// The part of the wait in which the thread's control group had used up its CPU quota, ns; 0
    /// where that isn't known.
    pub throttled_ns: u64,
}

/// Bit of [`WaitRecord::state`] that no thread's state has: a part of the wait was reported before,
/// so that this one isn't counted as a wait again.
pub const LATER_PART: u64 = 1 << 32;

impl WaitRecord {
    /// Returns true if no part of the wait was reported before.
    pub const fn is_first_part(&self) -> bool {
        self.state & LATER_PART == 0
    }
}

/// A thread that still waits, as it is inspected: the arguments and results of the program
/// `inspect_waiting`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingThread {
    /// The thread to inspect.
    pub tid: u32,
    /// 1: what follows is of it, and it waits.
    pub is_waiting: u32,
    /// [`FollowedThread::since_ns`] of the wait.
    pub since_ns: u64,
    /// `task_struct.start_boottime` of its process, ns.
    pub process_start_ns: u64,
    pub pid: u32,
    pub state: u32,
    pub comm: [u8; 16],
    /// The base of `fs`.
    pub thread_pointer: u64,
    /// The user's registers as the kernel saved them: `struct pt_regs` of x86-64.
    pub registers: [u64; 21],
}

/// Array of one [`WaitingThread`].
pub const WAITING: &str = "WAITING";
/// Raw tracepoint program that is run by hand: it inspects the thread that [`WAITING`] names.
pub const INSPECT_PROGRAM: &str = "inspect_waiting";

/// Raw tracepoint program that is run by hand: it begins to follow the threads that the process of
/// [`WaitingThread::tid`] has and that have waited since [`WaitingThread::since_ns`], which is
/// [`WaitingThread::process_start_ns`] by `CLOCK_BOOTTIME`.
pub const ADOPT_PROGRAM: &str = "adopt_waiting";
/// Threads of one process that it considers, at most.
pub const MAX_ADOPTED: u32 = 4096;

/// Words of a [`WaitRecord`].
pub const WAIT_WORDS: usize = size_of::<WaitRecord>() / 8;

/// Bit of a state that is none of the kernel's: the thread was preempted.
pub const PREEMPTED: u32 = 1 << 31;
/// `TASK_INTERRUPTIBLE` and `TASK_UNINTERRUPTIBLE` (include/linux/sched.h).
pub const TASK_INTERRUPTIBLE: u32 = 1;
pub const TASK_UNINTERRUPTIBLE: u32 = 2;
/// `TASK_DEAD`: the thread has left its CPU for the last time.
pub const TASK_DEAD: u32 = 0x80;

/// Returns true if a thread could have gone on when it was switched away.
#[inline(always)]
pub const fn is_runnable(state: u32) -> bool {
    state == 0 || state & PREEMPTED != 0
}

/// Bytes of a line of the CPU's cache.
const CACHE_LINE: usize = 64;

const _: () = {
    assert!(size_of::<FollowedThread>() == 2 * CACHE_LINE, "no padding: it lies in a map");
    assert!(offset_of!(FollowedThread, start_ns) + 8 == CACHE_LINE, "one line a switch");
    assert!(size_of::<EndedThread>() == 8 * 8, "no padding: it lies in a map");
};
