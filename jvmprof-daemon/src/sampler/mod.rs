//! The source of samples and process events: kernel programs, rings, and one order by time.
//!
//! [`Sampler`] loads the kernel programs ([`ebpf`]), attaches them to each CPU and reads what they
//! and the kernel write (`rings`) in the order of time; [`BackgroundSampler`] does so on a thread
//! of its own, with a queue after it. Samples ([`StackSample`]) come through the BPF ring buffer.
//! Process events (exec, exit, fork, new executable mappings, names) come as perf records of a
//! dummy event on each CPU: the kernel writes them with path and build id at the time of the event,
//! without tracefs, also for a process that is gone a moment later. Both carry `CLOCK_MONOTONIC`
//! times.

pub mod btf;
mod counts;
pub mod ebpf;
mod error;
pub mod event;
mod event_source;
mod online_cpus;
mod options;
mod ring_reader_thread;
mod rings;
mod sample;
mod sampling_period;

pub use counts::{EventCounts, ProgramRunTime, ProgramRunTimes, SamplerCounts};
pub use ebpf::allocation_maps::AllocationMaps;
pub use ebpf::kernel_symbols::{KernelSymbol, KernelSymbolizer};
pub use ebpf::maps::{BpfMaps, MapSizes};
pub use ebpf::off_cpu::maps::{MAX_BLOCKER_LAYOUTS, OffCpuMaps};
pub use ebpf::pause_maps::PauseMap;
pub use ebpf::process_filter::{DroppedProcesses, ExecStarts};
pub use ebpf::thread_context_map::ThreadContextMap;
pub use ebpf::uprobes::{AllocationFunctions, AttachedProbes, PauseFunctions, ProbedFunctions, try_uprobe};
pub use error::SamplerError;
pub use event::{KernelEvent, KernelEventKind};
pub use event_source::{RECORD_WRITE_DELAY, Sampler};
pub use options::{SampleClock, SamplerOptions};
pub use ring_reader_thread::{BackgroundSampler, QueueLimits};
pub use sample::{SampledEvent, StackSample};
pub use sampling_period::{FrequencyChange, SamplingPeriods, period_ns};
