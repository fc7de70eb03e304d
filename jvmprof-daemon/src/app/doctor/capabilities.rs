//! Checks of this process's capabilities.

use super::{CheckStatus, HostCheck};
use crate::own_process::capabilities::{
    BPF, CHECKPOINT_RESTORE, Capability, DAC_READ_SEARCH, PERFMON, SYS_PTRACE, advice, effective,
};

/// A capability, what it is for, and what it means where it is missing.
type RequiredCapability = (Capability, &'static str, CheckStatus);

const REQUIRED: [RequiredCapability; 5] = [
    (BPF, "loading the kernel programs", CheckStatus::Missing),
    (PERFMON, "perf events of all processes", CheckStatus::Missing),
    (SYS_PTRACE, "reading what other users' processes have mapped", CheckStatus::Degraded),
    (DAC_READ_SEARCH, "reading other users' programs and perf maps", CheckStatus::Degraded),
    (CHECKPOINT_RESTORE, "symbols of programs whose file was deleted", CheckStatus::Degraded),
];

pub(super) fn checks() -> Vec<HostCheck> {
    match effective() {
        Some(effective) => REQUIRED.map(|required| check(required, effective)).into(),
        None => {
            let found = "/proc/self/status doesn't list them".to_owned();
            vec![HostCheck::new("capabilities", CheckStatus::Missing, found, "mount /proc")]
        }
    }
}

fn check((capability, purpose, without): RequiredCapability, effective: u64) -> HostCheck {
    if capability.is_in(effective) {
        return HostCheck::ok(capability.name, purpose);
    }
    HostCheck::new(capability.name, without, format!("not there: no {purpose}"), advice(&[capability]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_process::capabilities::PROFILING;

    /// `cargo xtask` checks that what is deployed has the same.
    #[test]
    fn what_profiling_needs_is_checked() {
        let checked = REQUIRED.map(|(capability, ..)| capability.name);
        assert_eq!(checked, PROFILING.map(|capability| capability.name));
    }

    #[test]
    fn each_capability_is_told_by_its_bit() {
        for required in REQUIRED {
            let (Capability { number, name, or }, _, status) = required;
            for enough in [Some(number), or].into_iter().flatten() {
                assert_eq!(check(required, 1 << enough).status, CheckStatus::Ok, "{name}");
            }
            let without = check(required, 0);
            assert_eq!(without.status, status);
            assert!(without.fix.is_some_and(|fix| fix.contains(name)));
        }
    }
}
