//! Checks of the kernel: version, BTF, lockdown, namespaces, and a trial of the programs.

use std::{fs, io};

use procfs::sys::kernel::Version;

use super::{CheckStatus, HostCheck};
use crate::app::errors::with_causes;
use crate::own_process::capabilities::uprobe_advice;
use crate::own_process::pid_namespace as own_pid_namespace;
use crate::sampler::btf::{Btf, VMLINUX};
use crate::sampler::{BpfMaps, SampleClock, Sampler, SamplerError, SamplerOptions, try_uprobe};

/// `bpf_task_pt_regs` and `bpf_get_current_task_btf` are there from here on.
const OLDEST: (u8, u8) = (5, 15);

/// Returns the checks that change nothing.
pub(super) fn host_checks() -> Vec<HostCheck> {
    vec![version(), btf(), lockdown(), pid_namespace()]
}

/// Loads and attaches the kernel programs: if that fails, without those of waits, which need a
/// newer kernel than all others.
pub(super) fn sampling_checks() -> Vec<HostCheck> {
    let without_waits = || SamplerOptions { off_cpu: false, monitor_owners: false, ..idle() };
    let with_waits = start(&idle());
    let refused = with_waits.as_ref().err().map(with_causes_in_a_line);
    match with_waits.or_else(|_| start(&without_waits())) {
        Ok(checks) => checks.into_iter().chain([waits(refused)]).collect(),
        Err(error) => {
            let fix = "see the items above; the kernel's log (dmesg) may say more";
            vec![HostCheck::new("sampling", CheckStatus::Missing, with_causes(&error), fix)]
        }
    }
}

fn start(options: &SamplerOptions) -> Result<Vec<HostCheck>, SamplerError> {
    let mut names = None;
    let sampler = Sampler::start(options, |tables| names = Some(kernel_names(tables)))?;
    let clock = match sampler.clock() {
        SampleClock::Cycles => "hardware cycles",
        SampleClock::CpuClock => "cpu-clock (no hardware cycles here, as in most virtual machines)",
    };
    let sampling = HostCheck::ok("sampling", format!("the kernel programs load and attach; clock: {clock}"));
    Ok(names.into_iter().chain([sampling]).collect())
}

/// The verifier's log is in `doctor --programs`.
fn with_causes_in_a_line(error: &SamplerError) -> String {
    with_causes(error).lines().next().unwrap_or_default().to_owned()
}

/// Returns what a refusal of the scheduler's programs means; `None`: they load and attach.
fn waits(refused: Option<String>) -> HostCheck {
    let (name, unseen) = ("waits", "waits, locks and wall-clock time (-e offcpu, lock, wall) aren't seen");
    match refused {
        None => HostCheck::ok(name, "the scheduler says when threads leave their CPUs, and come back"),
        Some(error) => HostCheck::new(
            name,
            CheckStatus::Degraded,
            format!("{unseen}: {error}"),
            "use Linux 5.18 or newer: older ones don't say how a thread leaves its CPU",
        ),
    }
}

/// Tries an uprobe: allocation and pauses of JVMs are seen by these.
pub(super) fn uprobes() -> HostCheck {
    uprobe_check(try_uprobe())
}

fn uprobe_check(tried: io::Result<()>) -> HostCheck {
    let (name, unseen) = ("uprobes", "allocation (-e alloc) and single pauses (--pauses) aren't seen");
    match tried {
        Ok(()) => HostCheck::ok(name, "allocation and pauses of JVMs"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => HostCheck::new(
            name,
            CheckStatus::Degraded,
            format!("{unseen}: refused ({error})"),
            uprobe_advice(),
        ),
        Err(error) => HostCheck::new(
            name,
            CheckStatus::Degraded,
            format!("{unseen}: {error}"),
            "use a kernel built with CONFIG_UPROBE_EVENTS=y, as those of all large distributions are, and mount /sys",
        ),
    }
}

/// Returns options for a process that doesn't exist: all is loaded and attached, nothing sampled.
pub(super) fn idle() -> SamplerOptions {
    SamplerOptions {
        frequency: 1,
        pids: Some(vec![u32::MAX]),
        ring_bytes: 4096,
        allocation: true,
        off_cpu: true,
        monitor_owners: true,
        thread_ends: true,
        pauses: true,
        thread_context: true,
        kernel_log: false,
    }
}

fn version() -> HostCheck {
    let name = "kernel";
    match Version::current() {
        Ok(version) if (version.major, version.minor) >= OLDEST => {
            HostCheck::ok(name, format!("{}.{}.{}", version.major, version.minor, version.patch))
        }
        Ok(version) => HostCheck::new(
            name,
            CheckStatus::Missing,
            format!("{}.{} is too old", version.major, version.minor),
            format!("use Linux {}.{} or newer", OLDEST.0, OLDEST.1),
        ),
        Err(error) => HostCheck::new(
            name,
            CheckStatus::Degraded,
            format!("its version can't be read: {error}"),
            "mount /proc",
        ),
    }
}

fn btf() -> HostCheck {
    let name = "BTF";
    match Btf::of_running_kernel().and_then(|btf| btf.offset_of("task_struct", "group_leader")) {
        Ok(_) => HostCheck::ok(name, format!("{VMLINUX} is readable")),
        Err(error) => HostCheck::new(
            name,
            CheckStatus::Missing,
            error.to_string(),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as those of all large distributions are, and mount /sys",
        ),
    }
}

fn lockdown() -> HostCheck {
    let name = "lockdown";
    let Ok(text) = fs::read_to_string("/sys/kernel/security/lockdown") else {
        return HostCheck::ok(name, "not in force (or not to be seen)");
    };
    // The mode in force stands in brackets.
    let mode = text.split(['[', ']']).nth(1).unwrap_or("none");
    if mode != "confidentiality" {
        return HostCheck::ok(name, mode);
    }
    let fix = "boot with lockdown=integrity: confidentiality forbids eBPF programs to read memory";
    HostCheck::new(name, CheckStatus::Missing, mode, fix)
}

fn pid_namespace() -> HostCheck {
    let name = "pid namespace";
    match own_pid_namespace::is_initial() {
        Ok(true) => HostCheck::ok(name, "the host's"),
        Ok(false) => HostCheck::new(
            name,
            CheckStatus::Missing,
            "a container's own: the host's processes have other pids",
            own_pid_namespace::ADVICE,
        ),
        Err(error) => HostCheck::new(name, CheckStatus::Degraded, format!("unknown: {error}"), "mount /proc"),
    }
}

/// Checks that the kernel names its own functions.
fn kernel_names(mut tables: BpfMaps) -> HostCheck {
    let name = "kernel symbols";
    match tables.kernel_symbolizer.take().map(|mut names| names.probe()).transpose() {
        Ok(Some(Some(caller))) => HostCheck::ok(name, format!("the kernel reports them: {caller}")),
        Ok(Some(None)) => HostCheck::new(
            name,
            CheckStatus::Degraded,
            "the kernel knows none",
            "use a kernel built with CONFIG_KALLSYMS=y, as those of all distributions are",
        ),
        Ok(None) => HostCheck::new(
            name,
            CheckStatus::Degraded,
            "the kernel program for them can't be loaded",
            "the log above says why; kernel frames are [unknown kernel] meanwhile",
        ),
        Err(error) => {
            let fix = "kernel frames are [unknown kernel] meanwhile";
            HostCheck::new(name, CheckStatus::Degraded, error.to_string(), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::{EACCES, ENOENT, EPERM};

    use super::*;

    #[test]
    fn a_kernel_without_waits_still_profiles() {
        assert_eq!(waits(None).status, CheckStatus::Ok);
        let refused = with_causes_in_a_line(&SamplerError::of_uprobe(EACCES));
        let check = waits(Some(refused));
        assert_eq!(check.status, CheckStatus::Degraded, "all else works");
        assert!(check.found.contains("-e offcpu") && check.found.lines().count() == 1, "{check:?}");
        assert!(check.fix.is_some_and(|fix| fix.contains("5.18")));
    }

    #[test]
    fn a_kernel_that_denies_uprobes_is_told_what_it_demands() {
        assert_eq!(uprobe_check(Ok(())).status, CheckStatus::Ok);
        let refused = |number| uprobe_check(Err(io::Error::from_raw_os_error(number)));
        for number in [EACCES, EPERM] {
            let check = refused(number);
            assert_eq!(check.status, CheckStatus::Degraded, "all else works");
            assert!(check.found.contains("allocation") && check.found.contains("pauses"), "{check:?}");
            assert!(check.fix.is_some_and(|fix| fix.contains("demand CAP_SYS_ADMIN for uprobes")));
        }
        assert!(refused(ENOENT).fix.is_some_and(|fix| !fix.contains("CAP_SYS_ADMIN")));
    }
}
