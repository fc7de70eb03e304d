//! Values of the kernel programs' globals: offsets in the running kernel's structures, from its
//! BTF, and switches.

use std::fs;

use jvmprof_common::abi::globals;

use super::off_cpu::maps as off_cpu_maps;
use crate::sampler::btf::{Btf, BtfError};
use crate::sampler::options::SamplerOptions;

/// A global's name and value.
type Global = (&'static str, u32);

/// Returns all globals for a machine with so many possible CPUs.
///
/// # Errors
/// Fails if the kernel has no such structure or field.
pub(super) fn of(options: &SamplerOptions, btf: &Btf, cpus: u32) -> Result<Vec<Global>, BtfError> {
    let queues = QueueOffsets::of(btf).unwrap_or_default();
    let mut values = Vec::new();
    values.extend(task_offsets(btf)?);
    values.extend(memory_offsets(btf)?);
    values.extend(wait_globals(options, btf, queues));
    values.extend(switches(options, cpus));
    Ok(values)
}

/// Returns the offsets in a thread's structure and in its process's list of threads.
fn task_offsets(btf: &Btf) -> Result<[Global; 14], BtfError> {
    let field = |name| btf.offset_of("task_struct", name);
    Ok([
        (globals::TASK_GROUP_LEADER, field("group_leader")?),
        (globals::TASK_START_BOOTTIME, field("start_boottime")?),
        (globals::TASK_FLAGS, field("flags")?),
        (globals::TASK_TGID, field("tgid")?),
        (globals::TASK_MM, field("mm")?),
        (globals::TASK_PID, field("pid")?),
        (globals::TASK_ON_CPU, field("on_cpu")?),
        (globals::TASK_STATE, field("__state")?),
        (globals::TASK_SIGNAL, field("signal")?),
        (globals::TASK_THREAD_NODE, field("thread_node")?),
        (globals::SIGNAL_THREAD_HEAD, btf.offset_of("signal_struct", "thread_head")?),
        (globals::TASK_STACK, field("stack")?),
        (globals::TASK_COMM, field("comm")?),
        (globals::TASK_RAN, field("se")? + btf.offset_of("sched_entity", "sum_exec_runtime")?),
    ])
}

/// Returns the offsets by which user memory, its mappings and thread-local variables are found.
fn memory_offsets(btf: &Btf) -> Result<[Global; 6], BtfError> {
    let fsbase = btf.offset_of("task_struct", "thread")? + btf.offset_of("thread_struct", "fsbase")?;
    Ok([
        (globals::TASK_FSBASE, fsbase),
        (globals::VMA_START, btf.offset_of("vm_area_struct", "vm_start")?),
        (globals::VMA_END, btf.offset_of("vm_area_struct", "vm_end")?),
        (globals::VMA_FLAGS, btf.offset_of("vm_area_struct", "vm_flags")?),
        (globals::VMA_FILE, btf.offset_of("vm_area_struct", "vm_file")?),
        (globals::AREA_LENGTH, btf.offset_of("vm_unmapped_area_info", "length")?),
    ])
}

/// Returns what the programs of waits know of run queues. A kernel without one of these has 0.
fn wait_globals(options: &SamplerOptions, btf: &Btf, queues: QueueOffsets) -> [Global; 8] {
    let queued = |name| {
        let of_task = btf.offset_of("task_struct", "sched_info")?;
        Ok::<_, BtfError>(of_task + btf.offset_of("sched_info", name)?)
    };
    [
        // Without it waits on run queues are a part of what came before.
        (globals::TASK_RUN_DELAY, queued("run_delay").unwrap_or(0)),
        (globals::TASK_LAST_QUEUED, queued("last_queued").unwrap_or(0)),
        (globals::TASK_GROUP_QUEUE, queues.of_task),
        (globals::QUEUE_THROTTLED, queues.throttled),
        (globals::QUEUE_CPU, queues.cpu),
        (globals::CPU_CLOCK, queues.cpu_clock),
        (globals::SWITCH_CLOCK, u32::from(queues.of_task != 0 && has_stable_clock())),
        (globals::FOLLOWED_MASK, off_cpu_maps::slots(options.off_cpu) - 1),
    ]
}

/// Returns what the recording asks for.
fn switches(options: &SamplerOptions, cpus: u32) -> [Global; 7] {
    [
        (globals::FILTER, u32::from(options.pids.is_some())),
        (globals::WAKEUP_BYTES, options.ring_bytes / 4),
        (globals::FIRST_PROBE_SLOT, cpus),
        (globals::THREAD_CONTEXT, u32::from(options.thread_context)),
        (globals::MONITOR_OWNERS, u32::from(options.monitor_owners)),
        (globals::THREAD_ENDS, u32::from(options.thread_ends)),
        (globals::LOG, u32::from(options.kernel_log)),
    ]
}

/// The clock by which the kernel measures time.
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
