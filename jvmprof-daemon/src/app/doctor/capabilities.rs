//! Capabilities of this process: what each one is for.

use procfs::process::Process;

use super::{Check, Status};

/// A capability by its number in include/uapi/linux/capability.h.
struct Needed {
    number: u32,
    name: &'static str,
    purpose: &'static str,
    without: Status,
    /// Another capability that does as well.
    or: Option<u32>,
}

const CAP_SYS_ADMIN: u32 = 21;

const NEEDED: [Needed; 5] = [
    Needed {
        number: 39,
        name: "CAP_BPF",
        purpose: "loading the kernel programs",
        without: Status::Missing,
        or: Some(CAP_SYS_ADMIN),
    },
    Needed {
        number: 38,
        name: "CAP_PERFMON",
        purpose: "perf events of all processes",
        without: Status::Missing,
        or: Some(CAP_SYS_ADMIN),
    },
    Needed {
        number: 19,
        name: "CAP_SYS_PTRACE",
        purpose: "reading what other users' processes have mapped",
        without: Status::Degraded,
        or: None,
    },
    Needed {
        number: 2,
        name: "CAP_DAC_READ_SEARCH",
        purpose: "reading other users' programs and perf maps",
        without: Status::Degraded,
        or: Some(1),
    },
    Needed {
        number: 40,
        name: "CAP_CHECKPOINT_RESTORE",
        purpose: "symbols of programs whose file was deleted",
        without: Status::Degraded,
        or: Some(CAP_SYS_ADMIN),
    },
];

pub(super) fn checks() -> Vec<Check> {
    match Process::myself().and_then(|process| process.status()) {
        Ok(status) => NEEDED.iter().map(|needed| check(needed, status.capeff)).collect(),
        Err(error) => {
            let fix = "mount /proc";
            vec![Check::new("capabilities", Status::Missing, format!("/proc/self/status: {error}"), fix)]
        }
    }
}

fn check(needed: &Needed, effective: u64) -> Check {
    let has = |number: u32| effective >> number & 1 == 1;
    if has(needed.number) || needed.or.is_some_and(has) {
        return Check::ok(needed.name, needed.purpose);
    }
    let fix = format!(
        "run as root, or `setcap {}+ep` the binary, or AmbientCapabilities={} in its systemd unit",
        needed.name.to_lowercase(),
        needed.name
    );
    Check::new(needed.name, needed.without, format!("not there: no {}", needed.purpose), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capability_is_told_by_its_bit() {
        for needed in &NEEDED {
            assert_eq!(check(needed, 1 << needed.number).status, Status::Ok, "{}", needed.name);
            let without = check(needed, 0);
            assert_eq!(without.status, needed.without);
            assert!(without.fix.is_some_and(|fix| fix.contains(needed.name)));
        }
        assert_eq!(check(&NEEDED[0], 1 << CAP_SYS_ADMIN).status, Status::Ok);
    }
}
