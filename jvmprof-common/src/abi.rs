//! The ABI between the kernel program and the daemon: ring buffer records, frame words, counters,
//! limits.
//!
//! Both sides are built from this file. The daemon embeds the object it was built with, so there is
//! no version to negotiate; [`SampleHeader::magic`] only catches a committed object that is older
//! than this file.

use crate::thread_context::MAX_RECORD_WORDS;

/// User frames of one sample, at most.
pub const MAX_USER_FRAMES: usize = 1024;
/// Kernel frames of one sample, at most; the default of `/proc/sys/kernel/perf_event_max_stack`.
pub const MAX_KERNEL_FRAMES: usize = 127;
/// Stack words (8 bytes each) copied where the kernel program knows too little of the code to walk:
/// a process that isn't published yet, a file whose rows aren't in its tables. The daemon walks
/// them. Programs have frames of 64 KiB, Chromium two of them one above the other.
pub const MAX_TAIL_WORDS: usize = 20_480;
/// The same where a quarter of the ring buffer is unread.
pub const CROWDED_TAIL_WORDS: usize = 4096;
/// Stack words copied of a goroutine that its thread has left for the system stack.
pub const FAR_WORDS: usize = 2048;
/// Stack words copied after a frame whose caller could not be found.
pub const BROKEN_TAIL_WORDS: usize = 512;
/// Stack words copied after a frame whose caller's address is zero.
pub const END_TAIL_WORDS: usize = 64;
/// Stack words copied below the stack pointer: what a function may use there (System V ABI AMD64
/// supplement, 3.2.2), and where what it has just popped still is.
pub const RED_ZONE_WORDS: usize = 16;
/// Words that are copied at a time: a page.
pub const COPY_WORDS: usize = 512;
/// Words of one frame, at most.
pub const MAX_FRAME_WORDS: usize = 3;
/// Words after a [`SampleHeader`], at most. A power of two, so that an index is bounded by a mask.
pub const SAMPLE_WORDS: usize = 32_768;
/// Frames that one kernel program walks before it tail-calls itself. The kernel allows 33 tail
/// calls, of which the first leads to the interrupted frame's program: 32 * 32 = 1,024 frames above
/// that one.
pub const FRAMES_PER_PROGRAM: usize = 32;

const _: () = assert!(
    MAX_KERNEL_FRAMES
        + MAX_USER_FRAMES * MAX_FRAME_WORDS
        + MAX_TAIL_WORDS
        + RED_ZONE_WORDS
        + FAR_WORDS
        + COPY_WORDS
        + MAX_RECORD_WORDS
        <= SAMPLE_WORDS
);
const _: () = assert!(SAMPLE_WORDS.is_power_of_two());
const _: () = assert!(FRAMES_PER_PROGRAM * 32 >= MAX_USER_FRAMES);

/// Addresses of the kernel's code that are named at a time.
pub const KERNEL_NAMES: usize = 16;
/// Bytes of a name with what stands after it, at most: a name of 512 bytes, a module's of 56, two
/// numbers (`KSYM_SYMBOL_LEN` without the build id, include/linux/kallsyms.h).
pub const KERNEL_NAME_BYTES: usize = 640;

/// The name of an address in the kernel's code.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelName {
    /// The address to name; 0: the function that runs the program which names it.
    pub address: u64,
    /// Bytes that are used of `text`, with the zero at its end; negative: an error number.
    pub length: i64,
    /// As `printk` writes `%pS`: `name+0xoffset/0xsize`, and after a space the module in brackets.
    pub text: [u8; KERNEL_NAME_BYTES],
}

/// First word of every sample: "jvmprof" and the version of this layout.
pub const SAMPLE_MAGIC: u64 = u64::from_le_bytes(*b"jvmprof\x06");

/// A sample as it stands in the ring buffer, followed by `head_words` words of its event,
/// `user_words` frame words (leaf first, see [`crate::frame::UserFrame`]), `tail_words` words of
/// stack starting `tail_below` bytes below `tail_sp`, and `far_words` words of other stretches of
/// memory: each its address, the number of its words, and these. With [`FLAG_THREAD_CONTEXT`] the
/// rest of it is the begin of the thread's context ([`crate::thread_context`]), filled up to a
/// word.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleHeader {
    pub magic: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// `task_struct.start_boottime` of the thread group's leader, ns: with `pid` the identity of a
    /// process.
    pub start_ns: u64,
    /// Thread group id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Name of the thread, NUL-padded.
    pub comm: [u8; 16],
    /// Stack pointer in the frame whose callee was the last one walked: see `tail_below`.
    pub tail_sp: u64,
    /// Frame pointer (rbp) in that frame.
    pub tail_fp: u64,
    pub cpu: u32,
    /// Kernel addresses, leaf first; with [`FLAG_ALLOCATION`] a
    /// [`crate::allocation::AllocationRecord`], with [`FLAG_OFF_CPU`] a
    /// [`crate::off_cpu::WaitRecord`] and then kernel addresses.
    pub head_words: u16,
    pub user_words: u16,
    pub tail_words: u16,
    /// A [`Stop`] as `u8`.
    pub stop: u8,
    /// [`FLAG_KERNEL_MODE`], [`FLAG_ALLOCATION`], [`FLAG_OFF_CPU`], [`FLAG_THREAD_CONTEXT`].
    pub flags: u8,
    /// Bytes of the tail that lie below `tail_sp`.
    pub tail_below: u16,
    pub far_words: u16,
    /// The base of `fs`, where there are other stretches; else zero.
    pub thread_pointer: u64,
    /// A monitor that the thread has and another one waits for, as far as that is asked for and
    /// known; else 0: see [`crate::held_monitor`].
    pub held_monitor: u64,
    /// General-purpose registers of the interrupted user code, by their numbers in instruction
    /// encodings.
    pub registers: [u64; 16],
}

/// The sample interrupted the kernel; the user stack starts from the registers saved at its entry.
pub const FLAG_KERNEL_MODE: u8 = 1;
/// The sample is of an allocation in a JVM's heap, not of CPU time.
pub const FLAG_ALLOCATION: u8 = 2;
/// The sample is of a wait off the CPU.
pub const FLAG_OFF_CPU: u8 = 4;
/// The sample ends in the context of the request that its thread worked on.
pub const FLAG_THREAD_CONTEXT: u8 = 8;

/// The events that samples are taken of, each with counters of its own.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Cpu = 0,
    Allocation = 1,
    OffCpu = 2,
}

impl Event {
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Allocation, Self::OffCpu];

    /// Returns the index of the event's first counter.
    pub const fn first_counter(self) -> u32 {
        self as u32 * Counter::LEN
    }
}

/// The reason why the walk of the user stack ended.
///
/// It doesn't say if the stack is whole: the daemon knows which code is a thread's root.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stop {
    /// A kernel thread: there is no user stack.
    KernelThread = 0,
    /// The frame pointer or return address is zero: the ABI's mark of the outermost frame.
    ChainEnded = 1,
    /// The frame pointer is misaligned, lies below the stack pointer, or is no user address.
    FramePointerInvalid = 2,
    /// The stack's memory could not be read at the time of the sample (paged out, or not a stack).
    StackUnreadable = 3,
    /// The word in the return address's slot is no user code address.
    ReturnAddressInvalid = 4,
    /// [`MAX_USER_FRAMES`] frames were walked.
    DepthReached = 5,
    /// A 32-bit process.
    Not64Bit = 6,
    /// The code's rule says that it has no caller: the thread's root.
    Root = 7,
    /// The pc lies in no known code.
    UnknownCode = 8,
    /// The code's unwind rule can't be expressed.
    UnsupportedRule = 9,
    /// The daemon hasn't published this process to the kernel's tables yet.
    UnknownProcess = 10,
    /// The file has unwind rows, but not in the kernel's tables.
    RowsMissing = 11,
    /// Generated code of HotSpot that could not be read at the time of the sample.
    CodeUnreadable = 12,
    /// Generated code of HotSpot in whose frame the return address isn't known.
    UnknownStub = 13,
    /// A virtual thread's frames go on in the Java heap.
    Frozen = 14,
    /// The process is ending or replacing its program: it has no user memory any more.
    NoMemory = 15,
    /// A virtual thread's frames go on in the Java heap, where the collector is moving them.
    FrozenMoving = 16,
}

impl Stop {
    pub const ALL: [Self; 17] = [
        Self::KernelThread,
        Self::ChainEnded,
        Self::FramePointerInvalid,
        Self::StackUnreadable,
        Self::ReturnAddressInvalid,
        Self::DepthReached,
        Self::Not64Bit,
        Self::Root,
        Self::UnknownCode,
        Self::UnsupportedRule,
        Self::UnknownProcess,
        Self::RowsMissing,
        Self::CodeUnreadable,
        Self::UnknownStub,
        Self::Frozen,
        Self::NoMemory,
        Self::FrozenMoving,
    ];

    /// The reason with this discriminant.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// A few words for people, as in `[truncated: ...]`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KernelThread => "kernel thread",
            Self::ChainEnded => "frame pointer chain ended",
            Self::FramePointerInvalid => "frame pointer invalid",
            Self::StackUnreadable => "stack unreadable",
            Self::ReturnAddressInvalid => "return address invalid",
            Self::DepthReached => "depth limit reached",
            Self::Not64Bit => "32-bit process",
            Self::Root => "root",
            Self::UnknownCode => "unknown code",
            Self::UnsupportedRule => "unsupported unwind rule",
            Self::UnknownProcess => "process not yet known",
            Self::RowsMissing => "unwind rows not loaded",
            Self::CodeUnreadable => "JVM code unreadable",
            Self::UnknownStub => "unknown JVM stub",
            Self::NoMemory => "no user memory",
            Self::Frozen => "virtual thread's frames in the heap",
            Self::FrozenMoving => "virtual thread's frames being moved",
        }
    }
}

/// Per-CPU counters of an event's kernel programs, by index from [`Event::first_counter`] on.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// Samples of processes that are profiled; each is either emitted or counted by a loss below.
    Taken = 0,
    /// Samples in the ring buffer.
    Emitted = 1,
    /// Lost: the ring buffer was full.
    RingBufferFull = 2,
    /// Lost: the unwinder could not be started (its tail call or its scratch memory is missing).
    UnwinderUnavailable = 3,
    /// Not taken: the process isn't profiled.
    Filtered = 4,
    /// Not taken: the CPU was idle.
    Idle = 5,
    /// Emitted without kernel frames although the sample was in the kernel.
    KernelStackUnreadable = 6,
    /// Children that could not be added to the profiled processes: the filter map was full.
    FilterFull = 7,
    /// Not taken: the process is in [`DROPPED_PIDS`].
    Dropped = 8,
    /// Buffers chosen for a census whose record found no space in the ring buffer.
    TlabsLost = 9,
    /// Emitted without the thread's context, or its attributes, although there is one: its memory
    /// could not be read.
    ThreadContextUnreadable = 10,
    /// Walks of user stacks, by how they ended: this index plus the [`Stop`].
    StopBase = 16,
}

impl Counter {
    pub const LEN: u32 = 48;
    /// All but [`Counter::StopBase`].
    pub const ALL: [Self; 11] = [
        Self::Taken,
        Self::Emitted,
        Self::RingBufferFull,
        Self::UnwinderUnavailable,
        Self::Filtered,
        Self::Idle,
        Self::KernelStackUnreadable,
        Self::FilterFull,
        Self::Dropped,
        Self::TlabsLost,
        Self::ThreadContextUnreadable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Emitted => "emitted",
            Self::RingBufferFull => "ring_buffer_full",
            Self::UnwinderUnavailable => "unwinder_unavailable",
            Self::Filtered => "filtered",
            Self::Idle => "idle",
            Self::KernelStackUnreadable => "kernel_stack_unreadable",
            Self::FilterFull => "filter_full",
            Self::Dropped => "dropped",
            Self::TlabsLost => "tlabs_lost",
            Self::ThreadContextUnreadable => "thread_context_unreadable",
            Self::StopBase => "stop",
        }
    }
}

const _: () = assert!(Counter::StopBase as usize + Stop::ALL.len() <= Counter::LEN as usize);

/// One CPU's counters of all events.
pub type CpuCounters = [u64; Counter::LEN as usize * Event::ALL.len()];

/// Kernel field offsets and switches that the daemon sets before it loads the object, by the names
/// of the globals.
pub mod globals {
    /// `u32`: offset of `task_struct.group_leader`.
    pub const TASK_GROUP_LEADER: &str = "TASK_GROUP_LEADER";
    /// `u32`: offset of `task_struct.start_boottime`.
    pub const TASK_START_BOOTTIME: &str = "TASK_START_BOOTTIME";
    /// `u32`: offset of `task_struct.flags`.
    pub const TASK_FLAGS: &str = "TASK_FLAGS";
    /// `u32`: offset of `task_struct.tgid`.
    pub const TASK_TGID: &str = "TASK_TGID";
    /// `u32`: offset of `task_struct.mm`.
    pub const TASK_MM: &str = "TASK_MM";
    /// `u32`: offset of `task_struct.thread.fsbase`.
    pub const TASK_FSBASE: &str = "TASK_FSBASE";
    /// `u32`: offset of `task_struct.pid`.
    pub const TASK_PID: &str = "TASK_PID";
    /// `u32`: offset of `task_struct.on_cpu`.
    pub const TASK_ON_CPU: &str = "TASK_ON_CPU";
    /// `u32`: offset of `task_struct.__state`.
    pub const TASK_STATE: &str = "TASK_STATE";
    /// `u32`: offset of `task_struct.signal`.
    pub const TASK_SIGNAL: &str = "TASK_SIGNAL";
    /// `u32`: offset of `task_struct.thread_node`.
    pub const TASK_THREAD_NODE: &str = "TASK_THREAD_NODE";
    /// `u32`: offset of `signal_struct.thread_head`.
    pub const SIGNAL_THREAD_HEAD: &str = "SIGNAL_THREAD_HEAD";
    /// `u32`: offset of `task_struct.stack`.
    pub const TASK_STACK: &str = "TASK_STACK";
    /// `u32`: offset of `task_struct.se.sum_exec_runtime`.
    pub const TASK_RAN: &str = "TASK_RAN";
    /// `u32`: offset of `task_struct.sched_info.run_delay`; 0: this kernel has none.
    pub const TASK_RUN_DELAY: &str = "TASK_RUN_DELAY";
    /// `u32`: offset of `task_struct.sched_info.last_queued`; 0: this kernel has none.
    pub const TASK_LAST_QUEUED: &str = "TASK_LAST_QUEUED";
    /// `u32`: offset of `task_struct.se.cfs_rq`; 0 where the kernel has no queues of control
    /// groups.
    pub const TASK_GROUP_QUEUE: &str = "TASK_GROUP_QUEUE";
    /// `u32`: offset of `cfs_rq.throttled_clock_self`, and of `throttled_clock_self_time` behind
    /// it; 0 where the kernel doesn't say for how long control groups were out of CPU quota.
    pub const QUEUE_THROTTLED: &str = "QUEUE_THROTTLED";
    /// `u32`: offset of `cfs_rq.rq`.
    pub const QUEUE_CPU: &str = "QUEUE_CPU";
    /// `u32`: offset of `rq.clock`.
    pub const CPU_CLOCK: &str = "CPU_CLOCK";
    /// `u32`: 1 if `rq.clock` is there and keeps time as `CLOCK_MONOTONIC` does.
    pub const SWITCH_CLOCK: &str = "SWITCH_CLOCK";
    /// `u32`: slots of [`crate::off_cpu::FOLLOWED_THREADS`], less one.
    pub const FOLLOWED_MASK: &str = "FOLLOWED_MASK";
    /// `u32`: offset of `task_struct.comm`.
    pub const TASK_COMM: &str = "TASK_COMM";
    /// `u32`: offset of `vm_area_struct.vm_start`.
    pub const VMA_START: &str = "VMA_START";
    /// `u32`: offset of `vm_area_struct.vm_end`.
    pub const VMA_END: &str = "VMA_END";
    /// `u32`: offset of `vm_area_struct.vm_flags`.
    pub const VMA_FLAGS: &str = "VMA_FLAGS";
    /// `u32`: offset of `vm_area_struct.vm_file`.
    pub const VMA_FILE: &str = "VMA_FILE";
    /// `u32`: offset of `vm_unmapped_area_info.length`.
    pub const AREA_LENGTH: &str = "AREA_LENGTH";
    /// `u32`: 1 if only the processes in [`super::PROFILED_PIDS`] are sampled.
    pub const FILTER: &str = "FILTER";
    /// `u32`: unread bytes in the ring buffer from which on a sample wakes the reader.
    pub const WAKEUP_BYTES: &str = "WAKEUP_BYTES";
    /// `u32`: index of the first scratch slot of uprobes and waits.
    pub const FIRST_PROBE_SLOT: &str = "FIRST_PROBE_SLOT";
    /// `u32`: 1 if samples carry the contexts of their threads.
    pub const THREAD_CONTEXT: &str = "THREAD_CONTEXT";
    /// `u32`: 1 if the owners of monitors that threads enter are read at each switch.
    pub const MONITOR_OWNERS: &str = "MONITOR_OWNERS";
    /// `u32`: 1 if threads that end leave their times in [`crate::off_cpu::ENDED_THREADS`].
    pub const THREAD_ENDS: &str = "THREAD_ENDS";
    /// `u32`: 1 if the kernel program logs through aya-log.
    pub const LOG: &str = "LOG";
}

/// Scratch slots of uprobes, which may be under way on several CPUs and preempt one another, and of
/// waits.
pub const PROBE_SLOTS: u32 = 8;

/// Map `u32 -> u8`: the thread group ids that are sampled where [`globals::FILTER`] is set.
pub const PROFILED_PIDS: &str = "PROFILED_PIDS";

/// Map `u32 -> u64`: thread group ids that aren't sampled, with their `start_boottime` in ns, so
/// that another tenant of the pid isn't meant. Exec removes an entry.
pub const DROPPED_PIDS: &str = "DROPPED_PIDS";

/// Map `u32 -> u64`: `start_boottime` in ns of thread groups that have begun a program, and are
/// sampled, since `/proc` rounds it. The least recently used give way.
pub const EXEC_STARTS: &str = "EXEC_STARTS";

/// Raw tracepoint program that is run by hand; its first argument is the number of [`NAMES`] that
/// it names.
pub const KERNEL_NAMES_PROGRAM: &str = "kernel_names";

/// Array of one `[KernelName; KERNEL_NAMES]`.
pub const NAMES: &str = "NAMES";

/// Array of one `u32`: 1 once there was an entry in [`DROPPED_PIDS`].
pub const DROPS: &str = "DROPS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stop_survives_the_wire() {
        for (value, stop) in Stop::ALL.into_iter().enumerate() {
            assert_eq!(Stop::from_u8(value as u8), Some(stop));
            assert_eq!(stop as usize, value);
        }
        assert_eq!(Stop::from_u8(Stop::ALL.len() as u8), None);
    }

    #[test]
    fn the_header_has_no_padding() {
        assert_eq!(
            size_of::<SampleHeader>(),
            8 * 3 + 4 * 2 + 16 + 8 * 2 + 4 + 2 * 3 + 2 + 2 * 2 + 8 * 2 + 16 * 8
        );
        assert_eq!(size_of::<SampleHeader>() % 8, 0);
    }
}
