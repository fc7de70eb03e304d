//! The pipeline's options, made of sampling flags.

use std::collections::BTreeSet;
use std::time::Duration;

use super::args::{AllocationArgs, ClassArg, CpuSamplingArgs, DaemonArgs, OffCpuArgs, SamplingArgs};
use crate::event_type::EventType;
use crate::own_process::DEFAULT_URGENT_PERCENT;
use crate::own_process::memory_limit::memory_limit;
use crate::pipeline::MemoryLimits;
use crate::pipeline::PipelineOptions;
use crate::pipeline::allocation::{AllocationOptions, ClassPlace};
use crate::pipeline::labels::LabelOptions;
use crate::pipeline::off_cpu::OffCpuOptions;
use crate::pipeline::thread_contexts::ThreadContextOptions;
use crate::sampler::SamplerOptions;
use crate::symbolize::NativeOptions;

/// Default size of the ring buffer: half a second of the deepest stacks at 99 Hz on each CPU.
const RING_KIB_PER_CPU: u32 = 512;
const MAX_DEFAULT_RING_KIB: u32 = 16 << 10;

/// Returns the options of these flags. `pids`: the processes to sample, if not all. `native`: the
/// options for names of native frames. `events`: what is profiled.
pub(super) fn options(
    sampling: &SamplingArgs,
    pids: Option<Vec<u32>>,
    native: NativeOptions,
    events: &BTreeSet<EventType>,
) -> PipelineOptions {
    let mut options = cpu_options(&sampling.cpu, pids, native);
    options.sampler.allocation = events.contains(&EventType::Allocation);
    options.sampler.off_cpu = events.contains(&EventType::OffCpu);
    options.sampler.monitor_owners = events.contains(&EventType::Lock);
    options.sampler.pauses = sampling.pauses.pauses;
    options.sampler.thread_context = sampling.thread_context.options().is_some();
    options.allocation = allocation_options(&sampling.allocation);
    options.off_cpu = off_cpu_options(&sampling.off_cpu);
    options.off_cpu.locks = events.contains(&EventType::Lock);
    options.thread_context = sampling.thread_context.options().unwrap_or_default();
    options
}

/// The same for CPU time alone.
pub(super) fn cpu_options(
    sampling: &CpuSamplingArgs,
    pids: Option<Vec<u32>>,
    native: NativeOptions,
) -> PipelineOptions {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(1));
    let ring_kib =
        sampling.ring_buffer_kib.unwrap_or_else(|| (cpus * RING_KIB_PER_CPU).min(MAX_DEFAULT_RING_KIB));
    PipelineOptions {
        sampler: SamplerOptions {
            frequency: sampling.frequency,
            pids,
            ring_bytes: ring_kib << 10,
            allocation: false,
            off_cpu: false,
            monitor_owners: false,
            thread_ends: false,
            pauses: false,
            thread_context: false,
            kernel_log: sampling.kernel_log,
        },
        memory: MemoryLimits::new(sampling.symbol_cache_mib << 20, None),
        urgent_percent: DEFAULT_URGENT_PERCENT,
        labels: LabelOptions::plain(node_name()),
        java_frame_types: sampling.java_frame_types,
        native,
        containers: None,
        allocation: AllocationOptions::default(),
        off_cpu: OffCpuOptions::default(),
        thread_context: ThreadContextOptions::default(),
    }
}

fn off_cpu_options(args: &OffCpuArgs) -> OffCpuOptions {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    OffCpuOptions {
        least_ns: nanoseconds(args.offcpu_min),
        interval: nanoseconds(args.offcpu_interval),
        max_events: args.offcpu_max_events,
        idle: args.offcpu_idle.clone(),
        ..OffCpuOptions::default()
    }
}

fn allocation_options(args: &AllocationArgs) -> AllocationOptions {
    AllocationOptions {
        interval: args.alloc_interval,
        max_events: args.alloc_max_events,
        census_cpu_ppm: (args.alloc_census_cpu * 1e4) as u32,
        class: match args.alloc_class {
            ClassArg::Leaf => ClassPlace::Leaf,
            ClassArg::Label => ClassPlace::Label,
            ClassArg::Off => ClassPlace::Off,
        },
    }
}

/// Returns the limits of the daemon's caches and queues.
pub(super) fn daemon_memory(args: &DaemonArgs) -> MemoryLimits {
    let requested = args.budget.max_memory.map(|mib| mib << 20);
    let budget = requested.or_else(|| memory_limit().map(MemoryLimits::budget_within));
    MemoryLimits::new(args.sampling.cpu.symbol_cache_mib << 20, budget)
}

/// Returns the host's name.
pub(super) fn node_name() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}
