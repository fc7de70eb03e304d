//! The ABI between the kernel program and the daemon: ring buffer records, frame words, counters, limits.
//!
//! Both sides are built from this file. The daemon embeds the object it was built with, so there is no version to
//! negotiate; [`SampleHeader::magic`] only catches a committed object that is older than this file.

/// User frames of one sample, at most.
pub const MAX_USER_FRAMES: usize = 1024;
/// Kernel frames of one sample, at most; the default of `/proc/sys/kernel/perf_event_max_stack`.
pub const MAX_KERNEL_FRAMES: usize = 127;
/// Stack words (8 bytes each) copied behind the last frame where few frames were walked: the daemon continues there with
/// unwind rows.
pub const MAX_TAIL_WORDS: usize = 512;
/// Stack words copied behind many frames whose chain ended the way it should: enough for the C library's own start frames.
pub const END_TAIL_WORDS: usize = 64;
/// Stack words copied behind many frames whose chain broke.
pub const BROKEN_TAIL_WORDS: usize = 128;
/// From here on frames are many.
pub const SHALLOW_FRAMES: u64 = 8;
/// Words behind a [`SampleHeader`], at most. A power of two, so that an index is bounded by a mask.
pub const SAMPLE_WORDS: usize = 2048;
/// Frames that one kernel program walks before it tail-calls itself. The kernel allows 33 tail calls:
/// 33 * 32 = 1,056 >= [`MAX_USER_FRAMES`].
pub const FRAMES_PER_PROGRAM: usize = 32;

const _: () = assert!(MAX_KERNEL_FRAMES + MAX_USER_FRAMES + MAX_TAIL_WORDS <= SAMPLE_WORDS);
const _: () = assert!(SAMPLE_WORDS.is_power_of_two());
const _: () = assert!(FRAMES_PER_PROGRAM * 33 >= MAX_USER_FRAMES);

/// First word of every sample: "jvmprof" and the version of this layout.
pub const SAMPLE_MAGIC: u64 = u64::from_le_bytes(*b"jvmprof\x01");

/// A sample as it stands in the ring buffer, followed by `kernel_frames` kernel addresses (leaf first), `user_words` frame
/// words (leaf first, see [`FrameWord`]) and `tail_words` words of stack starting at `tail_sp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleHeader {
    pub magic: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// `task_struct.start_boottime` of the thread group's leader, ns: with `pid` the identity of a process.
    pub start_ns: u64,
    /// Thread group id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Name of the thread, NUL-padded.
    pub comm: [u8; 16],
    /// Stack pointer in the frame whose callee was the last one walked: where the tail begins.
    pub tail_sp: u64,
    /// Frame pointer (rbp) in that frame.
    pub tail_fp: u64,
    pub cpu: u32,
    pub kernel_frames: u16,
    pub user_words: u16,
    pub tail_words: u16,
    /// A [`Stop`] as `u8`.
    pub stop: u8,
    /// [`FLAG_KERNEL_MODE`].
    pub flags: u8,
    pub reserved: u32,
}

/// The sample interrupted the kernel; the user stack starts from the registers saved at its entry.
pub const FLAG_KERNEL_MODE: u8 = 1;

/// Why the walk of the user stack ended.
///
/// Whether the stack is whole is the daemon's to say: it knows which code is a thread's root.
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
    /// What stands where the return address should be is no user code address.
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
}

impl Stop {
    pub const ALL: [Self; 10] = [
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
        }
    }
}

/// One word of a user stack: an address with a tag in its top four bits (user addresses have at most 57).
///
/// Frames that need more than an address to be identified will take further words; the tag says how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameWord(pub u64);

impl FrameWord {
    const TAG_SHIFT: u32 = 60;
    const ADDRESS_MASK: u64 = (1 << Self::TAG_SHIFT) - 1;
    const TAG_RETURN: u64 = 0;
    const TAG_EXACT: u64 = 1;

    /// A return address: the call is the instruction before it.
    #[inline(always)]
    pub const fn return_address(address: u64) -> Self {
        Self(address & Self::ADDRESS_MASK | Self::TAG_RETURN << Self::TAG_SHIFT)
    }

    /// The interrupted instruction itself: a leaf, or a frame below a signal handler.
    #[inline(always)]
    pub const fn exact(address: u64) -> Self {
        Self(address & Self::ADDRESS_MASK | Self::TAG_EXACT << Self::TAG_SHIFT)
    }

    /// The address as it was found.
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.0 & Self::ADDRESS_MASK
    }

    #[inline(always)]
    pub const fn is_exact(self) -> bool {
        self.0 >> Self::TAG_SHIFT == Self::TAG_EXACT
    }

    /// The address to look up: the call instruction's last byte for a return address.
    pub const fn lookup_address(self) -> u64 {
        if self.is_exact() { self.address() } else { self.address().saturating_sub(1) }
    }
}

/// Per-CPU counters of the kernel program, by index of its counter map.
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
    /// Walks of user stacks, by how they ended: this index plus the [`Stop`].
    StopBase = 16,
}

impl Counter {
    pub const LEN: u32 = 32;
    /// All but [`Counter::StopBase`].
    pub const ALL: [Self; 8] = [
        Self::Taken,
        Self::Emitted,
        Self::RingBufferFull,
        Self::UnwinderUnavailable,
        Self::Filtered,
        Self::Idle,
        Self::KernelStackUnreadable,
        Self::FilterFull,
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
            Self::StopBase => "stop",
        }
    }
}

/// Kernel field offsets and switches that the daemon sets before it loads the object, by the names of the globals.
pub mod globals {
    /// `u32`: offset of `task_struct.group_leader`.
    pub const TASK_GROUP_LEADER: &str = "TASK_GROUP_LEADER";
    /// `u32`: offset of `task_struct.start_boottime`.
    pub const TASK_START_BOOTTIME: &str = "TASK_START_BOOTTIME";
    /// `u32`: offset of `task_struct.flags`.
    pub const TASK_FLAGS: &str = "TASK_FLAGS";
    /// `u32`: offset of `task_struct.tgid`.
    pub const TASK_TGID: &str = "TASK_TGID";
    /// `u32`: 1 if only the processes in [`super::PROFILED_PIDS`] are sampled.
    pub const FILTER: &str = "FILTER";
    /// `u32`: unread bytes in the ring buffer from which on a sample wakes the reader.
    pub const WAKEUP_BYTES: &str = "WAKEUP_BYTES";
    /// `u32`: 1 if the kernel program logs through aya-log.
    pub const LOG: &str = "LOG";
}

/// Map `u32 -> u8`: the thread group ids that are sampled where [`globals::FILTER`] is set.
pub const PROFILED_PIDS: &str = "PROFILED_PIDS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_address_is_looked_up_at_its_call_and_a_leaf_as_it_is() {
        let call = FrameWord::return_address(0x7f00_0000_1000);
        assert_eq!((call.address(), call.lookup_address()), (0x7f00_0000_1000, 0x7f00_0000_0fff));
        let leaf = FrameWord::exact(0x7f00_0000_1000);
        assert_eq!((leaf.address(), leaf.lookup_address()), (0x7f00_0000_1000, 0x7f00_0000_1000));
        assert!(leaf.is_exact() && !call.is_exact());
    }

    #[test]
    fn every_stop_survives_the_wire() {
        for (value, stop) in Stop::ALL.into_iter().enumerate() {
            assert_eq!(Stop::from_u8(value as u8), Some(stop));
            assert_eq!(stop as usize, value);
        }
        assert_eq!(Stop::from_u8(Stop::ALL.len() as u8), None);
        assert!((Counter::StopBase as usize + Stop::ALL.len()) <= Counter::LEN as usize);
    }

    #[test]
    fn the_header_has_no_padding() {
        assert_eq!(size_of::<SampleHeader>(), 8 * 3 + 4 * 2 + 16 + 8 * 2 + 4 + 2 * 3 + 2 + 4);
        assert_eq!(size_of::<SampleHeader>() % 8, 0);
    }
}
