//! Checks of this process's capabilities.

use procfs::process::Process;

use super::{CheckStatus, HostCheck};

/// A capability by its number in include/uapi/linux/capability.h.
struct RequiredCapability {
    number: u32,
    name: &'static str,
    purpose: &'static str,
    without: CheckStatus,
    /// Another capability that does as well.
    or: Option<u32>,
}

const CAP_SYS_ADMIN: u32 = 21;

const REQUIRED: [RequiredCapability; 5] = [
    RequiredCapability {
        number: 39,
        name: "CAP_BPF",
        purpose: "loading the kernel programs",
        without: CheckStatus::Missing,
        or: Some(CAP_SYS_ADMIN),
    },
    RequiredCapability {
        number: 38,
        name: "CAP_PERFMON",
        purpose: "perf events of all processes",
        without: CheckStatus::Missing,
        or: Some(CAP_SYS_ADMIN),
    },
    RequiredCapability {
        number: 19,
        name: "CAP_SYS_PTRACE",
        purpose: "reading what other users' processes have mapped",
        without: CheckStatus::Degraded,
        or: None,
    },
    RequiredCapability {
        number: 2,
        name: "CAP_DAC_READ_SEARCH",
        purpose: "reading other users' programs and perf maps",
        without: CheckStatus::Degraded,
        or: Some(1),
    },
    RequiredCapability {
        number: 40,
        name: "CAP_CHECKPOINT_RESTORE",
        purpose: "symbols of programs whose file was deleted",
        without: CheckStatus::Degraded,
        or: Some(CAP_SYS_ADMIN),
    },
];

pub(super) fn checks() -> Vec<HostCheck> {
    match Process::myself().and_then(|process| process.status()) {
        Ok(status) => REQUIRED.iter().map(|required| check(required, status.capeff)).collect(),
        Err(error) => {
            let fix = "mount /proc";
            vec![HostCheck::new(
                "capabilities",
                CheckStatus::Missing,
                format!("/proc/self/status: {error}"),
                fix,
            )]
        }
    }
}

fn check(required: &RequiredCapability, effective: u64) -> HostCheck {
    let has = |number: u32| effective >> number & 1 == 1;
    if has(required.number) || required.or.is_some_and(has) {
        return HostCheck::ok(required.name, required.purpose);
    }
    let fix = format!(
        "run as root, or `setcap {}+ep` the binary, or AmbientCapabilities={} in its systemd unit",
        required.name.to_lowercase(),
        required.name
    );
    HostCheck::new(required.name, required.without, format!("not there: no {}", required.purpose), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capability_is_told_by_its_bit() {
        for required in &REQUIRED {
            assert_eq!(check(required, 1 << required.number).status, CheckStatus::Ok, "{}", required.name);
            let without = check(required, 0);
            assert_eq!(without.status, required.without);
            assert!(without.fix.is_some_and(|fix| fix.contains(required.name)));
        }
        assert_eq!(check(&REQUIRED[0], 1 << CAP_SYS_ADMIN).status, CheckStatus::Ok);
    }
}
