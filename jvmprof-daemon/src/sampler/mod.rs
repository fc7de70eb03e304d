//! The sample source: loads and attaches the kernel programs and brings what they and the kernel's
//! own process records say into one order.
//!
//! Samples come through the BPF ring buffer. Process events (exec, exit, fork, new executable
//! mappings, names) come as perf records of a dummy event on each CPU: the kernel writes them with
//! path and build id at the time of the event, without tracefs, and for a process that is gone a
//! moment later. Both carry `CLOCK_MONOTONIC` times.

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

pub use counts::SamplerCounts;
pub use ebpf::dropped_processes::DroppedProcesses;
pub use ebpf::kernel_symbols::{KernelNames, KernelSymbol};
pub use ebpf::maps::{KernelTables, TableSizes};
pub use error::SamplerError;
pub use event::{Event, EventKind};
pub use event_source::{SETTLE, Sampler};
pub use options::{Clock, SamplerOptions};
pub use ring_reader_thread::{BackgroundSampler, QueueLimits};
pub use sample::Sample;
pub use sampling_period::{FrequencyChange, Periods, period_ns};
