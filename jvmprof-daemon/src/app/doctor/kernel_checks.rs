//! What the kernel allows.

use std::fs;
use std::path::Path;

use procfs::sys::kernel::Version;

use super::{Check, Status};
use crate::app::errors::explain;
use crate::sampler::ebpf::btf::{Btf, VMLINUX};
use crate::sampler::{Clock, KernelTables, Sampler, SamplerOptions};

/// `bpf_task_pt_regs` and `bpf_get_current_task_btf` are there from here on.
const OLDEST: (u8, u8) = (5, 15);
/// Inode of the initial pid namespace: `PROC_PID_INIT_INO`, include/linux/proc_ns.h.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Checks that change nothing.
pub(super) fn host_checks() -> Vec<Check> {
    vec![version(), btf(), lockdown(), pid_namespace()]
}

/// Tries the real thing.
pub(super) fn sampling_checks() -> Vec<Check> {
    let mut names = None;
    match Sampler::start(&idle(), |tables| names = Some(kernel_names(tables))) {
        Ok(sampler) => {
            let clock = match sampler.clock() {
                Clock::Cycles => "hardware cycles",
                Clock::CpuClock => "cpu-clock (no hardware cycles here, as in most virtual machines)",
            };
            let sampling =
                Check::ok("sampling", format!("the kernel programs load and attach; clock: {clock}"));
            names.into_iter().chain([sampling]).collect()
        }
        Err(error) => {
            let fix = "see the items above; the kernel's log (dmesg) may say more";
            vec![Check::new("sampling", Status::Missing, explain(&error), fix)]
        }
    }
}

/// A process that doesn't exist: nothing is sampled, everything is loaded and attached.
pub(super) fn idle() -> SamplerOptions {
    SamplerOptions { frequency: 1, pids: Some(vec![u32::MAX]), ring_bytes: 4096, kernel_log: false }
}

fn version() -> Check {
    let name = "kernel";
    match Version::current() {
        Ok(version) if (version.major, version.minor) >= OLDEST => {
            Check::ok(name, format!("{}.{}.{}", version.major, version.minor, version.patch))
        }
        Ok(version) => Check::new(
            name,
            Status::Missing,
            format!("{}.{} is too old", version.major, version.minor),
            format!("use Linux {}.{} or newer", OLDEST.0, OLDEST.1),
        ),
        Err(error) => {
            Check::new(name, Status::Degraded, format!("its version can't be read: {error}"), "mount /proc")
        }
    }
}

fn btf() -> Check {
    let name = "BTF";
    match Btf::of_running_kernel().and_then(|btf| btf.offset_of("task_struct", "group_leader")) {
        Ok(_) => Check::ok(name, format!("{VMLINUX} is readable")),
        Err(error) => Check::new(
            name,
            Status::Missing,
            error.to_string(),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of all large distributions are, and mount /sys",
        ),
    }
}

fn lockdown() -> Check {
    let name = "lockdown";
    let Ok(text) = fs::read_to_string("/sys/kernel/security/lockdown") else {
        return Check::ok(name, "not in force (or not to be seen)");
    };
    // The mode in force stands in brackets.
    let mode = text.split(['[', ']']).nth(1).unwrap_or("none");
    if mode != "confidentiality" {
        return Check::ok(name, mode);
    }
    let fix = "boot with lockdown=integrity: confidentiality forbids eBPF programs to read memory";
    Check::new(name, Status::Missing, mode, fix)
}

fn pid_namespace() -> Check {
    let name = "pid namespace";
    match fs::read_link("/proc/self/ns/pid") {
        Ok(target) if target == Path::new(INITIAL_PID_NAMESPACE) => Check::ok(name, "the host's"),
        Ok(_) => Check::new(
            name,
            Status::Missing,
            "a container's own: the host's processes have other pids",
            "run with hostPID: true (Kubernetes) or --pid=host (docker)",
        ),
        Err(error) => Check::new(name, Status::Degraded, format!("can't be told: {error}"), "mount /proc"),
    }
}

/// Whether the kernel names its own functions.
fn kernel_names(mut tables: KernelTables) -> Check {
    let name = "kernel symbols";
    match tables.take_names().map(|mut names| names.own_caller()).transpose() {
        Ok(Some(Some(caller))) => Check::ok(name, format!("the kernel tells them: {caller}")),
        Ok(Some(None)) => Check::new(
            name,
            Status::Degraded,
            "the kernel knows none",
            "use a kernel built with CONFIG_KALLSYMS=y, as those of all distributions are",
        ),
        Ok(None) => Check::new(
            name,
            Status::Degraded,
            "the kernel program for them can't be loaded",
            "the log above says why; kernel frames are [unknown kernel] meanwhile",
        ),
        Err(error) => {
            let fix = "kernel frames are [unknown kernel] meanwhile";
            Check::new(name, Status::Degraded, error.to_string(), fix)
        }
    }
}
