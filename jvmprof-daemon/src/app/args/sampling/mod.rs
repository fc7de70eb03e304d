//! Flags for sampling, of `record` and `daemon` alike.

mod allocation;
mod native_symbols;
mod off_cpu;
mod pauses;
mod thread_context;

use clap::Args;

pub use allocation::{AllocationArgs, ClassArg};
pub use native_symbols::NativeSymbolArgs;
pub(in crate::app) use native_symbols::parse_url;
pub use off_cpu::OffCpuArgs;
use pauses::PauseArgs;
use thread_context::ThreadContextArgs;

/// Flags for sampling, the same for `record` and `daemon`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    #[command(flatten)]
    pub cpu: CpuSamplingArgs,

    #[command(flatten)]
    pub allocation: AllocationArgs,

    #[command(flatten)]
    pub off_cpu: OffCpuArgs,

    #[command(flatten)]
    pub pauses: PauseArgs,

    #[command(flatten)]
    pub thread_context: ThreadContextArgs,

    #[command(flatten)]
    pub native: NativeSymbolArgs,
}

/// Those of them that `top` has, too.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct CpuSamplingArgs {
    /// Samples per second and CPU
    #[arg(short = 'F', long, default_value_t = 99, value_name = "HZ",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub frequency: u32,

    /// Memory for symbols of files, in MiB
    #[arg(long, hide_short_help = true, default_value_t = 24, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub symbol_cache_mib: u64,

    /// Size of the ring buffer between kernel and daemon, in KiB (rounded up to a power of two)
    /// [default: 512 a CPU]
    #[arg(long, hide_short_help = true, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=1_048_576))]
    pub ring_buffer_kib: Option<u32>,

    // No doc comment: its brackets would be links.
    #[arg(
        long,
        help = "Append to names of Java methods how they ran: _[0] interpreted, _[1] C1, _[j] C2, _[i] \
                inlined, _[n] native"
    )]
    pub java_frame_types: bool,

    /// Log what the kernel programs do (at level debug)
    #[arg(long, hide_short_help = true)]
    pub kernel_log: bool,
}
