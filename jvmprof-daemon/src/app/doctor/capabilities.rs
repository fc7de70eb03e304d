//! Checks of this process's capabilities.

use super::{CheckStatus, HostCheck};
use crate::own_process::capabilities::{
    BPF, CHECKPOINT_RESTORE, Capability, DAC_READ_SEARCH, PERFMON, SYS_PTRACE, advice, effective,
};

/// A capability, what it is for, and what it means where it is missing.
struct RequiredCapability {
    capability: Capability,
    purpose: &'static str,
    without: CheckStatus,
}

const REQUIRED: [RequiredCapability; 5] = [
    RequiredCapability {
        capability: BPF,
        purpose: "loading the kernel programs",
        without: CheckStatus::Missing,
    },
    RequiredCapability {
        capability: PERFMON,
        purpose: "perf events of all processes",
        without: CheckStatus::Missing,
    },
    RequiredCapability {
        capability: SYS_PTRACE,
        purpose: "reading what other users' processes have mapped",
        without: CheckStatus::Degraded,
    },
    RequiredCapability {
        capability: DAC_READ_SEARCH,
        purpose: "reading other users' programs and perf maps",
        without: CheckStatus::Degraded,
    },
    RequiredCapability {
        capability: CHECKPOINT_RESTORE,
        purpose: "symbols of programs whose file was deleted",
        without: CheckStatus::Degraded,
    },
];

pub(super) fn checks() -> Vec<HostCheck> {
    match effective() {
        Some(effective) => REQUIRED.iter().map(|required| check(required, effective)).collect(),
        None => {
            let found = "/proc/self/status doesn't list them".to_owned();
            vec![HostCheck::new("capabilities", CheckStatus::Missing, found, "mount /proc")]
        }
    }
}

fn check(required: &RequiredCapability, effective: u64) -> HostCheck {
    let RequiredCapability { capability, purpose, without } = required;
    if capability.is_in(effective) {
        return HostCheck::ok(capability.name, *purpose);
    }
    HostCheck::new(capability.name, *without, format!("not there: no {purpose}"), advice(&[*capability]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deployed_has_each_capability_that_is_asked_for() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("it is committed");
        let unit = read("deploy/jvmprof.service");
        for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
            let line = unit.lines().find_map(|line| line.strip_prefix(key)).expect("it is said");
            let granted: Vec<&str> = line.split(' ').collect();
            assert_eq!(granted, REQUIRED.map(|required| required.capability.name), "{key}");
        }
        for file in ["deploy/kubernetes/daemonset.yaml", "deploy/helm/jvmprof/templates/daemonset.yaml"] {
            let manifest = read(file);
            let is_added = |name: &str| manifest.lines().any(|line| line.trim() == format!("- {name}"));
            for required in &REQUIRED {
                let name = required.capability.name;
                assert!(is_added(name.trim_start_matches("CAP_")), "{file} lacks {name}");
            }
        }
        for required in &REQUIRED {
            let row = format!("| `{}` |", required.capability.name);
            assert!(read("docs/deploy.md").contains(&row), "docs/deploy.md lacks {row}");
        }
    }

    #[test]
    fn each_capability_is_told_by_its_bit() {
        for required in &REQUIRED {
            let Capability { number, name, or } = required.capability;
            for enough in [Some(number), or].into_iter().flatten() {
                assert_eq!(check(required, 1 << enough).status, CheckStatus::Ok, "{name}");
            }
            let without = check(required, 0);
            assert_eq!(without.status, required.without);
            assert!(without.fix.is_some_and(|fix| fix.contains(name)));
        }
    }
}
