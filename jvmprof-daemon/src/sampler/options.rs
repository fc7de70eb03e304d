//! What the sampler is asked to do, and the clock that it found.

/// What to sample and how often.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// Samples per second and CPU, in 1..=20,000.
    pub frequency: u32,
    /// `Some`: only these processes (thread group ids) and, as they fork, their children.
    pub pids: Option<Vec<u32>>,
    /// Bytes of the ring buffer; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// The kernel programs log to `tracing` through aya-log.
    pub kernel_log: bool,
}

/// The clock that ticks the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Hardware cycles.
    Cycles,
    /// The kernel's cpu-clock: where the hardware has no counter to lend, as in most virtual
    /// machines.
    CpuClock,
}

impl Clock {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }
}
