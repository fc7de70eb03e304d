//! The capabilities of this process: what the kernel lets it do.

use std::fs;

/// A capability that profiling needs, by its number in include/uapi/linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub number: u32,
    pub name: &'static str,
    /// Another capability that does as well.
    pub or: Option<u32>,
}

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SYS_ADMIN: u32 = 21;

/// Loads kernel programs.
pub const BPF: Capability = Capability { number: 39, name: "CAP_BPF", or: Some(CAP_SYS_ADMIN) };
/// Opens perf events of all processes.
pub const PERFMON: Capability = Capability { number: 38, name: "CAP_PERFMON", or: Some(CAP_SYS_ADMIN) };
/// Reads memory and mappings of other users' processes.
pub const SYS_PTRACE: Capability = Capability { number: 19, name: "CAP_SYS_PTRACE", or: None };
/// Reads other users' files.
pub const DAC_READ_SEARCH: Capability =
    Capability { number: 2, name: "CAP_DAC_READ_SEARCH", or: Some(CAP_DAC_OVERRIDE) };
/// Opens `/proc/PID/map_files`.
pub const CHECKPOINT_RESTORE: Capability =
    Capability { number: 40, name: "CAP_CHECKPOINT_RESTORE", or: Some(CAP_SYS_ADMIN) };
/// Sets uprobes, where `PERFMON` doesn't do: on Linux 6.16 and later, and on stable kernels since
/// July 2025 (commit ba677dbe77af, "perf: Revert to requiring CAP_SYS_ADMIN for uprobes").
pub const SYS_ADMIN: Capability = Capability { number: CAP_SYS_ADMIN, name: "CAP_SYS_ADMIN", or: None };

/// All that profiling needs everywhere, the indispensable ones first.
pub const PROFILING: [Capability; 5] = [BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE];

impl Capability {
    /// Returns true if a set of capabilities has it, or the one that does as well.
    pub fn is_in(self, effective: u64) -> bool {
        let has = |number: u32| effective >> number & 1 == 1;
        has(self.number) || self.or.is_some_and(has)
    }

    /// Returns true if this process has it. Where `/proc` doesn't say, it counts as there: the
    /// kernel will report.
    pub fn is_effective(self) -> bool {
        effective().is_none_or(|set| self.is_in(set))
    }
}

/// Returns the effective capabilities of this process; `None` if `/proc` doesn't say.
pub fn effective() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Returns those of these capabilities that this process lacks.
pub fn missing(needed: &[Capability]) -> Vec<Capability> {
    needed.iter().filter(|it| !it.is_effective()).copied().collect()
}

/// Returns what to do where these capabilities are missing.
pub fn advice(missing: &[Capability]) -> String {
    let names = |separator: &str| missing.iter().map(|it| it.name).collect::<Vec<_>>().join(separator);
    let program = std::env::current_exe().ok();
    let program = program.map_or_else(|| "jvmprof".to_owned(), |path| path.display().to_string());
    format!(
        "run as root (sudo), or `setcap {}+ep {program}`, or AmbientCapabilities={} in its systemd unit",
        names(",").to_lowercase(),
        names(" ")
    )
}

/// Returns what to do where the kernel demands [`SYS_ADMIN`] for uprobes.
pub fn uprobe_advice() -> String {
    // Each way to grant capabilities replaces those that were there.
    let all: Vec<Capability> = PROFILING.into_iter().chain([SYS_ADMIN]).collect();
    let all = advice(&all);
    format!("newer kernels demand CAP_SYS_ADMIN for uprobes: {all}, or add it to a container's capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_found_among_the_lines_of_a_status() {
        assert_eq!(parse("CapPrm:\t0\nCapEff:\t000001c000080004\nCapBnd:\tff\n"), Some(0x1c0_0008_0004));
        assert_eq!((parse("CapPrm:\t0\n"), parse("CapEff:\tx\n")), (None, None));
        assert!(PROFILING.iter().all(|it| it.is_in(0x1c0_0008_0004)));
        assert!(BPF.is_in(1 << CAP_SYS_ADMIN) && !SYS_PTRACE.is_in(1 << CAP_SYS_ADMIN));
    }

    #[test]
    fn the_advice_names_all_that_is_missing_at_once() {
        let advice = advice(&[BPF, PERFMON]);
        assert!(advice.contains("setcap cap_bpf,cap_perfmon+ep /"), "{advice}");
        assert!(advice.contains("AmbientCapabilities=CAP_BPF CAP_PERFMON"), "{advice}");
    }

    #[test]
    fn the_advice_for_uprobes_keeps_what_profiling_needs() {
        let advice = uprobe_advice();
        for Capability { name, .. } in PROFILING.into_iter().chain([SYS_ADMIN]) {
            assert!(advice.contains(name) && advice.contains(&name.to_lowercase()), "{name}: {advice}");
        }
    }
}
