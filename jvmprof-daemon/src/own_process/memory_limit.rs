//! The memory limit of this process: the least one of its cgroup and of those around it.

use std::fs;
use std::path::Path;

/// Returns the limit in bytes; `None` if there is none, or it can't be read.
pub fn memory_limit() -> Option<u64> {
    limit(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
}

/// Returns the least limit. `cgroups`: lines of `hierarchy:controllers:path` (man 7 cgroups). In a
/// cgroup namespace the path is `/`, and the limit lies at the root of the mounted hierarchy.
fn limit(cgroups: &str, mounted: &Path) -> Option<u64> {
    let limits = cgroups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if hierarchy == "0" {
            return least(mounted, path, "memory.max");
        }
        let has_memory = controllers.split(',').any(|controller| controller == "memory");
        has_memory.then(|| least(&mounted.join("memory"), path, "memory.limit_in_bytes")).flatten()
    });
    limits.min()
}

/// Returns the least number in files of this name, from the path's directory up to the root.
fn least(root: &Path, path: &str, name: &str) -> Option<u64> {
    let path = Path::new(path.trim_start_matches('/'));
    let read = |folder: &Path| fs::read_to_string(root.join(folder).join(name)).ok()?.trim().parse().ok();
    // "max" is no number; cgroup v1 has one that is larger than any memory instead.
    path.ancestors().filter_map(read).filter(|bytes: &u64| *bytes < 1 << 60).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_cgroups_around_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        let limit = |cgroups| limit(cgroups, dir.path());
        write("system.slice/jvmprof.service/memory.max", "1073741824\n");
        assert_eq!(limit("0::/system.slice/jvmprof.service\n"), Some(1 << 30));
        write("system.slice/memory.max", "max\n");
        assert_eq!(limit("0::/system.slice/jvmprof.service\n"), Some(1 << 30));
        write("system.slice/memory.max", "536870912\n");
        assert_eq!(limit("0::/system.slice/jvmprof.service\n"), Some(512 << 20));
        assert_eq!(limit("0::/\n"), None);
        write("memory.max", "4096\n");
        assert_eq!(limit("0::/\n"), Some(4096), "in a cgroup namespace");
        write("memory/docker/x/memory.limit_in_bytes", "268435456\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("5:cpu:/docker/x\n4:memory:/docker/x\n"), Some(256 << 20));
        assert_eq!(limit("4:memory:/docker\n"), None);
    }
}
