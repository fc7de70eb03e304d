//! Options of the sampler, and the clock that it samples by.

/// Processes to sample, frequency and size of the ring buffer.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// Samples per second and CPU, in 1..=20,000.
    pub frequency: u32,
    /// Only these processes (thread group ids) and, as they fork, their children; `None`: all.
    pub pids: Option<Vec<u32>>,
    /// Bytes of the ring buffer, rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Allocations in the heaps of JVMs are seen, too.
    pub allocation: bool,
    /// Time that threads wait off the CPU is seen, too.
    pub off_cpu: bool,
    /// Waits for monitors carry their owners, too.
    pub monitor_owners: bool,
    /// The times of threads that end are kept, where [`Self::off_cpu`] is set.
    pub thread_ends: bool,
    /// Pauses of JVMs are seen, too.
    pub pauses: bool,
    /// Samples carry the contexts that their threads publish.
    pub thread_context: bool,
    /// Kernel programs log to `tracing` through aya-log.
    pub kernel_log: bool,
}

impl SamplerOptions {
    /// Returns options for samples of the CPU time of all processes, and nothing else. `frequency`:
    /// as [`Self::frequency`].
    pub const fn of_cpu_time(frequency: u32) -> Self {
        Self {
            frequency,
            pids: None,
            ring_bytes: 1 << 20,
            allocation: false,
            off_cpu: false,
            monitor_owners: false,
            thread_ends: false,
            pauses: false,
            thread_context: false,
            kernel_log: false,
        }
    }
}

/// The perf event by whose overflows samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleClock {
    /// Hardware cycles.
    Cycles,
    /// The kernel's cpu-clock: used where no hardware counter is available, as in most virtual
    /// machines.
    CpuClock,
}

impl SampleClock {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }
}
