//! Loading of the eBPF object: sizes of its maps, and offsets of kernel structures as globals.

use std::{fs, thread};

use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use jvmprof_common::abi::{PROBE_SLOTS, globals};
use landlock::{AccessFs, Ruleset, RulesetAttr as _, RulesetError, RulesetStatus};

use super::maps::MapSizes;
use super::off_cpu::maps as off_cpu_maps;
use super::{allocation_maps, pause_maps, thread_context_map};
use crate::sampler::btf::{Btf, BtfError};
use crate::sampler::error::SamplerError;
use crate::sampler::online_cpus;
use crate::sampler::options::SamplerOptions;

/// Built by `cargo xtask ebpf` and committed, so that a build needs no eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../ebpf/jvmprof.bpf.o");

/// Scratch memory of the unwinder and its caches, a slot for each CPU and then those of uprobes and
/// waits.
const SCRATCH: &str = "SCRATCH";
pub(super) const RING: &str = "SAMPLES";

/// Creates the maps and sets the globals. No program is loaded yet.
pub(super) fn load(
    options: &SamplerOptions,
    btf: &Btf,
    verifier_log: VerifierLogLevel,
) -> Result<Ebpf, SamplerError> {
    let task_group_leader = btf.offset_of("task_struct", "group_leader")?;
    let task_start_boottime = btf.offset_of("task_struct", "start_boottime")?;
    let task_flags = btf.offset_of("task_struct", "flags")?;
    let task_tgid = btf.offset_of("task_struct", "tgid")?;
    let task_mm = btf.offset_of("task_struct", "mm")?;
    let task_pid = btf.offset_of("task_struct", "pid")?;
    let field = |name| {
        Ok::<_, BtfError>(btf.offset_of("task_struct", "sched_info")? + btf.offset_of("sched_info", name)?)
    };
    let task_ran = btf.offset_of("task_struct", "se")? + btf.offset_of("sched_entity", "sum_exec_runtime")?;
    // Without it waits on run queues are a part of what came before.
    let task_run_delay = field("run_delay").unwrap_or(0);
    let task_last_queued = field("last_queued").unwrap_or(0);
    let queues = QueueOffsets::of(btf).unwrap_or_default();
    let task_on_cpu = btf.offset_of("task_struct", "on_cpu")?;
    let task_state = btf.offset_of("task_struct", "__state")?;
    let task_signal = btf.offset_of("task_struct", "signal")?;
    let task_thread_node = btf.offset_of("task_struct", "thread_node")?;
    let signal_thread_head = btf.offset_of("signal_struct", "thread_head")?;
    let task_stack = btf.offset_of("task_struct", "stack")?;
    let task_comm = btf.offset_of("task_struct", "comm")?;
    let task_fsbase = btf.offset_of("task_struct", "thread")? + btf.offset_of("thread_struct", "fsbase")?;
    let vma_start = btf.offset_of("vm_area_struct", "vm_start")?;
    let vma_end = btf.offset_of("vm_area_struct", "vm_end")?;
    let vma_flags = btf.offset_of("vm_area_struct", "vm_flags")?;
    let vma_file = btf.offset_of("vm_area_struct", "vm_file")?;
    let area_length = btf.offset_of("vm_unmapped_area_info", "length")?;
    let filter = u32::from(options.pids.is_some());
    let wakeup_bytes = options.ring_bytes / 4;
    let thread_context = u32::from(options.thread_context);
    let switch_clock = u32::from(queues.of_task != 0 && has_stable_clock());
    let followed_mask = off_cpu_maps::slots(options.off_cpu) - 1;
    let monitor_owners = u32::from(options.monitor_owners);
    let thread_ends = u32::from(options.thread_ends);
    let log = u32::from(options.kernel_log);
    let log_level: u8 = if options.kernel_log { aya_log::Level::Debug as u8 } else { 0 };
    let mut loader = loader_without_kernel_types();
    let sizes = MapSizes::of_machine().entries().into_iter();
    let sizes = sizes.chain(allocation_maps::sizes(options.allocation));
    let sizes = sizes.chain(off_cpu_maps::sizes(options));
    let single = [thread_context_map::size(options.thread_context), pause_maps::size(options.pauses)];
    for (name, entries) in sizes.chain(single) {
        loader.map_max_entries(name, entries);
    }
    let cpus = online_cpus::possible()?;
    let probe_slots = if options.allocation || options.off_cpu { PROBE_SLOTS } else { 0 };
    loader
        .btf(None)
        .verifier_log_level(verifier_log)
        .override_global(globals::TASK_GROUP_LEADER, &task_group_leader, true)
        .override_global(globals::TASK_START_BOOTTIME, &task_start_boottime, true)
        .override_global(globals::TASK_FLAGS, &task_flags, true)
        .override_global(globals::TASK_TGID, &task_tgid, true)
        .override_global(globals::TASK_MM, &task_mm, true)
        .override_global(globals::TASK_FSBASE, &task_fsbase, true)
        .override_global(globals::TASK_PID, &task_pid, true)
        .override_global(globals::TASK_ON_CPU, &task_on_cpu, true)
        .override_global(globals::TASK_STATE, &task_state, true)
        .override_global(globals::TASK_SIGNAL, &task_signal, true)
        .override_global(globals::TASK_THREAD_NODE, &task_thread_node, true)
        .override_global(globals::SIGNAL_THREAD_HEAD, &signal_thread_head, true)
        .override_global(globals::TASK_STACK, &task_stack, true)
        .override_global(globals::TASK_RAN, &task_ran, true)
        .override_global(globals::TASK_RUN_DELAY, &task_run_delay, true)
        .override_global(globals::TASK_LAST_QUEUED, &task_last_queued, true)
        .override_global(globals::TASK_GROUP_QUEUE, &queues.of_task, true)
        .override_global(globals::QUEUE_THROTTLED, &queues.throttled, true)
        .override_global(globals::QUEUE_CPU, &queues.cpu, true)
        .override_global(globals::CPU_CLOCK, &queues.cpu_clock, true)
        .override_global(globals::SWITCH_CLOCK, &switch_clock, true)
        .override_global(globals::FOLLOWED_MASK, &followed_mask, true)
        .override_global(globals::TASK_COMM, &task_comm, true)
        .override_global(globals::VMA_START, &vma_start, true)
        .override_global(globals::VMA_END, &vma_end, true)
        .override_global(globals::VMA_FLAGS, &vma_flags, true)
        .override_global(globals::VMA_FILE, &vma_file, true)
        .override_global(globals::AREA_LENGTH, &area_length, true)
        .override_global(globals::FILTER, &filter, true)
        .override_global(globals::WAKEUP_BYTES, &wakeup_bytes, true)
        .override_global(globals::FIRST_PROBE_SLOT, &cpus, true)
        .override_global(globals::THREAD_CONTEXT, &thread_context, true)
        .override_global(globals::MONITOR_OWNERS, &monitor_owners, true)
        .override_global(globals::THREAD_ENDS, &thread_ends, true)
        .override_global(globals::LOG, &log, true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries(RING, options.ring_bytes.next_power_of_two().max(4096))
        .map_max_entries(SCRATCH, cpus + probe_slots)
        .load(OBJECT)
        .map_err(SamplerError::Load)
}

/// Creates a loader that hasn't read the kernel's types. No relocation needs them, and they take
/// 10 MB and 20 ms, but aya reads them whenever it makes a loader (up to 0.14, the last version
/// that Rust 1.95 builds). So the loader is made by a thread that may open no file, where Landlock
/// is there.
fn loader_without_kernel_types() -> EbpfLoader<'static> {
    let make = || {
        match deny_reading_files() {
            Ok(RulesetStatus::FullyEnforced) => {}
            status => tracing::debug!(?status, "the kernel's types are read, which nothing needs"),
        }
        EbpfLoader::new()
    };
    let thread = thread::Builder::new().name("loader".to_owned()).spawn(make);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Keeps this thread, and only it, from opening files for reading from now on.
fn deny_reading_files() -> Result<RulesetStatus, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::ReadFile)?.create()?;
    Ok(ruleset.restrict_self()?.ruleset)
}

/// The clock by which the kernel tells the time.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Returns true if the kernel tells the time by the processor's counter: it has found then that
/// this is the same on all CPUs, and the scheduler's clock needs no corrections.
fn has_stable_clock() -> bool {
    fs::read_to_string(CLOCK_SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

/// Offsets at which the kernel has the run queues of control groups, and of CPUs; zeros: it has
/// none.
#[derive(Clone, Copy, Debug, Default)]
struct QueueOffsets {
    of_task: u32,
    /// 0 where the kernel doesn't say for how long a control group was out of CPU quota: before
    /// 6.6, without `CONFIG_CFS_BANDWIDTH`, and where the two numbers aren't neighbours.
    throttled: u32,
    cpu: u32,
    cpu_clock: u32,
}

impl QueueOffsets {
    /// Reads these offsets; an error without `CONFIG_FAIR_GROUP_SCHED`.
    fn of(btf: &Btf) -> Result<Self, BtfError> {
        let throttled = btf.offset_of("cfs_rq", "throttled_clock_self").unwrap_or(0);
        let sum = btf.offset_of("cfs_rq", "throttled_clock_self_time").unwrap_or(0);
        Ok(Self {
            of_task: btf.offset_of("task_struct", "se")? + btf.offset_of("sched_entity", "cfs_rq")?,
            throttled: if sum == throttled + 8 { throttled } else { 0 },
            cpu: btf.offset_of("cfs_rq", "rq")?,
            cpu_clock: btf.offset_of("rq", "clock")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_may_read_no_file_is_the_only_one() {
        let denied = thread::spawn(|| (deny_reading_files(), fs::read("/proc/self/status")));
        let (status, read) = denied.join().expect("the thread ends");
        let enforced = matches!(status, Ok(RulesetStatus::FullyEnforced));
        assert_eq!(read.is_err(), enforced, "{status:?}");
        assert!(fs::read("/proc/self/status").is_ok());
    }
}
