//! Processes that this one may not inspect, why, and what would let it.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::own_process::capabilities::{SYS_PTRACE, advice};
use crate::process::procfs::{self, ProcfsError};

/// Pids that a message lists.
const MAX_LISTED: usize = 20;

/// The processes that can't be seen on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::app) struct InaccessibleProcesses {
    /// Processes whose memory and mappings may not be read.
    count: usize,
    /// Those of them that are called `java`.
    called_java: Vec<u32>,
    /// `/proc` shows other users' processes to nobody.
    proc_hides: bool,
    /// What to do.
    fix: String,
    #[serde(skip)]
    denial: Denial,
}

/// The reason why the kernel doesn't let this process inspect others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Denial {
    /// It lacks the capability.
    #[default]
    Capability,
    /// Its capabilities hold in its own user namespace alone.
    UserNamespace,
    /// It has the capability, and something else forbids it.
    SecurityModule,
}

impl Denial {
    fn of(has_capability: bool, uid_map: &str) -> Self {
        // All ids, each as itself: user_namespaces(7).
        let is_initial = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
        match (has_capability, is_initial || uid_map.is_empty()) {
            (false, _) => Self::Capability,
            (true, false) => Self::UserNamespace,
            (true, true) => Self::SecurityModule,
        }
    }

    fn now() -> Self {
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::of(SYS_PTRACE.is_effective(), &uid_map)
    }

    fn fix(self) -> String {
        match self {
            Self::Capability => advice(&[SYS_PTRACE]),
            Self::UserNamespace => "run outside of the user namespace, as the host's root".to_owned(),
            Self::SecurityModule => "run without the profile of the security module (docker: --security-opt \
                                     apparmor=unconfined), or see the kernel's log for what forbids it"
                .to_owned(),
        }
    }
}

impl InaccessibleProcesses {
    /// Returns what is hidden of these processes and their names; `None`: nothing is.
    fn of(denied: &[(u32, String)], proc_hides: bool, denial: Denial) -> Option<Self> {
        if denied.is_empty() && !proc_hides {
            return None;
        }
        let java = denied.iter().filter(|(_, comm)| comm == "java").map(|(pid, _)| *pid);
        Some(Self { count: denied.len(), called_java: java.collect(), proc_hides, fix: denial.fix(), denial })
    }

    /// Returns what this process can't see now.
    pub(in crate::app) fn now() -> Option<Self> {
        let denied = procfs::pids().into_iter().filter(|pid| !is_kernel_thread(*pid)).filter_map(|pid| {
            let is_denied = matches!(procfs::mappings(pid), Err(ProcfsError::Denied { .. }));
            is_denied.then(|| (pid, comm(pid)))
        });
        Self::of(&denied.collect::<Vec<_>>(), !SYS_PTRACE.is_effective() && proc_hides(), Denial::now())
    }
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns true for a thread of the kernel: it has no arguments, and no memory to inspect.
fn is_kernel_thread(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
}

/// Returns true if `/proc` is mounted with `hidepid`, by its line in the table of mounts.
fn proc_hides() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    hides(&mounts)
}

fn hides(mounts: &str) -> bool {
    let of_proc = mounts.lines().filter(|line| line.split(' ').nth(1) == Some("/proc"));
    let options = of_proc.filter_map(|line| line.split(' ').nth(3)).flat_map(|options| options.split(','));
    let mut hide = options.filter_map(|option| option.strip_prefix("hidepid="));
    hide.any(|value| !matches!(value, "0" | "off" | "1" | "noaccess"))
}

impl fmt::Display for InaccessibleProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count > 0 {
            let why = match self.denial {
                Denial::Capability => format!("for lack of {}", SYS_PTRACE.name),
                Denial::UserNamespace => {
                    format!("because {} holds in this user namespace alone", SYS_PTRACE.name)
                }
                Denial::SecurityModule => format!(
                    "though {} is there: a security module such as AppArmor or SELinux forbids it",
                    SYS_PTRACE.name
                ),
            };
            let them = match self.count {
                1 => "1 process can't be looked at, and may be a JVM".to_owned(),
                count => format!("{count} processes can't be looked at, and may be JVMs"),
            };
            writeln!(f, "  {them}, {why}")?;
        }
        if !self.called_java.is_empty() {
            let pids = self.called_java.iter().take(MAX_LISTED).map(u32::to_string).collect::<Vec<_>>();
            let more = if self.called_java.len() > MAX_LISTED { ", ..." } else { "" };
            writeln!(f, "    called java: {}{more}", pids.join(", "))?;
        }
        if self.proc_hides {
            writeln!(f, "  /proc is mounted with hidepid: other users' processes don't even show")?;
        }
        writeln!(f, "    do: {}", self.fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_counted_and_told_with_what_to_do() {
        assert_eq!(InaccessibleProcesses::of(&[], false, Denial::Capability), None);
        let denied = [(7, "java".to_owned()), (8, "sshd".to_owned())];
        let said = InaccessibleProcesses::of(&denied, false, Denial::Capability)
            .map(|it| it.to_string())
            .unwrap_or_default();
        for part in
            ["2 processes can't be looked at", "CAP_SYS_PTRACE", "called java: 7\n", "do: run as root"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        let said = InaccessibleProcesses::of(&[], true, Denial::Capability)
            .map(|it| it.to_string())
            .unwrap_or_default();
        assert!(said.contains("hidepid") && !said.contains("processes can't be looked at"), "{said}");
    }

    #[test]
    fn who_has_the_capability_is_not_told_to_get_it() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(Denial::of(false, whole), Denial::Capability);
        assert_eq!(Denial::of(true, "         0       1000          1\n"), Denial::UserNamespace);
        assert_eq!(Denial::of(true, whole), Denial::SecurityModule);
        let denied = [(7, "java".to_owned())];
        for denial in [Denial::UserNamespace, Denial::SecurityModule] {
            let said = InaccessibleProcesses::of(&denied, false, denial).map(|it| it.to_string());
            let said = said.unwrap_or_default();
            assert!(!said.contains("for lack of") && !said.contains("sudo"), "{said}");
            assert!(said.starts_with("  1 process can't be looked at, and may be a JVM, "), "{said}");
        }
    }

    #[test]
    fn the_mounts_tell_whether_proc_hides_processes() {
        assert!(hides("proc /proc proc rw,nosuid,hidepid=invisible 0 0\n"));
        assert!(hides("proc /proc proc rw,hidepid=2,gid=4 0 0\n"));
        for open in [
            "proc /proc proc rw 0 0\n",
            "proc /proc proc rw,hidepid=noaccess 0 0\n",
            "x /mnt/proc proc hidepid=2 0 0\n",
        ] {
            assert!(!hides(open), "{open}");
        }
    }
}
