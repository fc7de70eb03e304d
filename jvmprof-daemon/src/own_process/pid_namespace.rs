//! The pid namespace of this process: the kernel programs see the host's pids alone.

use std::fs;
use std::io;
use std::path::Path;

/// The namespace of this process.
const OWN: &str = "/proc/self/ns/pid";
/// Inode of the initial pid namespace: `PROC_PID_INIT_INO`, include/linux/proc_ns.h.
const INITIAL: &str = "pid:[4026531836]";

/// Advice where pids aren't the host's.
pub const ADVICE: &str = "run with the host's pids: on the host itself, with `docker run --pid=host`, or \
                          with `hostPID: true` (Kubernetes); in a node that is a container itself, as \
                          kind's are, this can't be had";

/// Returns true if the pids that this process sees are the host's.
///
/// # Errors
/// `/proc` doesn't say.
pub fn is_initial() -> io::Result<bool> {
    Ok(is_initial_namespace(&fs::read_link(OWN)?))
}

fn is_initial_namespace(target: &Path) -> bool {
    target == Path::new(INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_own_namespace_is_not_the_hosts() {
        assert!(is_initial_namespace(Path::new("pid:[4026531836]")));
        for other in ["pid:[4026532201]", "pid:[40265318360]", ""] {
            assert!(!is_initial_namespace(Path::new(other)), "{other}");
        }
    }
}
