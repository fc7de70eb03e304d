//! The container, Kubernetes pod and systemd unit of a process, parsed from its cgroup path.
//!
//! Runtimes name cgroups after what they run, in forms of their own: by the systemd driver
//! (`kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope`), by the cgroupfs driver
//! (`kubepods/burstable/pod<uid>/<id>`), and, where the two are mixed, literally as
//! `slice:prefix:id`. On cgroup v1 each controller has a hierarchy; they mostly agree. In a cgroup
//! namespace of the daemon's own, paths outside of it begin with `/..` and end as ever.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of `/proc/PID/cgroup` that are read: a process may be in many hierarchies, each with a
/// path of up to 4 KiB.
const MAX_BYTES: u64 = 64 << 10;

/// Cgroup of a process. Names are only taken from the part of the path that root and container
/// runtimes make: see `trusted_part`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Path in the hierarchy with the most information.
    pub path: String,
    pub container: Option<ContainerRef>,
    pub pod: Option<PodRef>,
    /// Unit of the system's manager: `nginx.service`, `session-3.scope`; `None` for containers,
    /// whose scopes only repeat the container.
    pub unit: Option<String>,
    /// Unit of a user's own service manager.
    pub user_unit: Option<String>,
    /// Innermost slice around the unit.
    pub slice: Option<String>,
}

/// The container that a process runs in: the outermost one, if they are nested.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerRef {
    /// 64 hexadecimal digits; a name for LXC.
    pub id: String,
    /// One of `docker`, `containerd`, `cri-o`, `podman` and `lxc`, if the path shows it.
    pub runtime: Option<&'static str>,
}

/// The pod of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// The pod's uid, with dashes, or the 32 digits of a static pod.
    pub uid: String,
    /// One of `guaranteed`, `burstable` and `besteffort`.
    pub qos: &'static str,
}

impl Cgroup {
    /// Reads `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// Returns an error if the process is gone or may not be read.
    pub fn read(pid: u32) -> io::Result<Self> {
        let mut text = Vec::new();
        File::open(format!("/proc/{pid}/cgroup"))?.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    /// Parses the text of `/proc/PID/cgroup`: lines of `hierarchy:controllers:path` (man 7
    /// cgroups).
    pub fn parse(text: &str) -> Self {
        let mut paths: Vec<(u8, &str)> = text.lines().filter_map(ranked_path).collect();
        paths.sort_by_key(|(rank, _)| *rank);
        let mut found: Option<Self> = None;
        for (_, path) in paths {
            let cgroup = Self::of_path(path);
            if cgroup.container.is_some() {
                return cgroup;
            }
            // The first one with any information.
            if found.as_ref().is_none_or(|found| found.has_no_names() && !cgroup.has_no_names()) {
                found = Some(cgroup);
            }
        }
        found.unwrap_or_default()
    }

    fn has_no_names(&self) -> bool {
        self.unit.is_none() && self.slice.is_none() && self.path.trim_end_matches('/').is_empty()
    }

    fn of_path(path: &str) -> Self {
        // The kernel's suffix for a cgroup that was removed while processes were in it.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let mut cgroup = Self { path: path.to_owned(), ..Self::default() };
        cgroup.read_units(path.split('/').map(unescaped));
        let trusted = trusted_part(path);
        cgroup.container = container(trusted.split('/').map(unescaped));
        cgroup.pod = pod(trusted);
        if cgroup.container.is_some() {
            cgroup.unit = None;
        }
        cgroup
    }

    fn read_units<'a>(&mut self, parts: impl Iterator<Item = &'a str>) {
        for part in parts {
            if part.ends_with(".slice") && self.unit.is_none() {
                self.slice = Some(part.to_owned());
            } else if is_unit(part) {
                match (&self.unit, &self.user_unit) {
                    (None, _) => self.unit = Some(part.to_owned()),
                    (Some(unit), None) if unit.starts_with("user@") => self.user_unit = Some(part.to_owned()),
                    _ => {}
                }
            }
        }
    }
}

/// Removes the `_` that systemd puts before names with a meaning to the kernel.
fn unescaped(part: &str) -> &str {
    part.strip_prefix('_').unwrap_or(part)
}

/// Services that make cgroups for containers below their own.
const RUNTIME_SERVICES: [&str; 13] = [
    "containerd",
    "cri-o",
    "crio",
    "docker",
    "k0scontroller",
    "k0sworker",
    "k3s",
    "k3s-agent",
    "kubelet",
    "podman",
    "rke2-agent",
    "rke2-server",
    "snap.docker.dockerd",
];

/// Returns the part of a path that only root and runtimes can have made. Users make cgroups with
/// any name below their own manager, and below a service of theirs that may have cgroups of its own
/// (`Delegate=`).
fn trusted_part(path: &str) -> &str {
    let mut begin = 0;
    for part in path.split('/') {
        let service = unescaped(part).strip_suffix(".service");
        if part == "user.slice" || service.is_some_and(|service| !RUNTIME_SERVICES.contains(&service)) {
            return &path[..begin];
        }
        begin += part.len() + 1;
    }
    path
}

/// Returns the path of a line and its hierarchy's rank: the unified one, then systemd's, then those
/// of controllers.
fn ranked_path(line: &str) -> Option<(u8, &str)> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let rank = match (hierarchy, controllers) {
        ("0", "") => 0,
        (_, "name=systemd") => 1,
        (_, controllers) if controllers.split(',').any(|it| it == "memory" || it == "pids") => 2,
        _ => 3,
    };
    path.starts_with('/').then_some((rank, path))
}

fn is_unit(part: &str) -> bool {
    let name = part.strip_suffix(".service").or_else(|| part.strip_suffix(".scope"));
    name.is_some_and(|name| !name.is_empty() && !name.contains(':'))
}

/// Prefixes of a container's id, and the runtimes that use them.
const PREFIXES: [(&str, &str); 6] = [
    ("docker-", "docker"),
    ("cri-containerd-", "containerd"),
    ("containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "cri-o"),
    ("libpod-", "podman"),
];

fn container<'a>(parts: impl Iterator<Item = &'a str>) -> Option<ContainerRef> {
    let mut parent = "";
    for part in parts {
        if let Some(name) = part.strip_prefix("lxc.payload.").or_else(|| (parent == "lxc").then_some(part))
            && !name.is_empty()
        {
            return Some(ContainerRef { id: name.to_owned(), runtime: Some("lxc") });
        }
        if let Some(container) = container_of(part, parent) {
            return Some(container);
        }
        parent = part;
    }
    None
}

fn container_of(part: &str, parent: &str) -> Option<ContainerRef> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    // `slice:prefix:id`, where a runtime without the systemd driver is given a path for one with
    // it.
    if let Some((before, id)) = name.rsplit_once(':') {
        let prefix = before.rsplit(':').next().unwrap_or(before);
        let runtime = PREFIXES.iter().find(|(known, _)| known.trim_end_matches('-') == prefix);
        return is_id(id)
            .then(|| ContainerRef { id: id.to_owned(), runtime: runtime.map(|(_, runtime)| *runtime) });
    }
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = name.strip_prefix(prefix).filter(|id| is_id(id)) {
            return Some(ContainerRef { id: id.to_owned(), runtime: Some(runtime) });
        }
    }
    is_id(name).then(|| ContainerRef {
        id: name.to_owned(),
        runtime: match parent {
            "docker" => Some("docker"),
            "k8s.io" => Some("containerd"),
            _ => None,
        },
    })
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the pod of a path below `kubepods`.
fn pod(path: &str) -> Option<PodRef> {
    let below = &path[path.find("kubepods")?..];
    let uid = below.split('/').find_map(pod_uid)?;
    let qos = ["burstable", "besteffort"].into_iter().find(|qos| below.contains(qos));
    Some(PodRef { uid, qos: qos.unwrap_or("guaranteed") })
}

/// Returns the uid in `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with underscores for the
/// uid's dashes, also before `:prefix:id`.
fn pod_uid(part: &str) -> Option<String> {
    let name = part.split(':').next().unwrap_or(part);
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let uid = match name.strip_prefix("pod") {
        Some(uid) => uid,
        None => name.rsplit_once("-pod")?.1,
    };
    let is_uid = (uid.len() == 36 || uid.len() == 32)
        && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-' || byte == b'_');
    is_uid.then(|| uid.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "2c4f6e1b0d9a8877665544332211ffeeddccbbaa00998877665544332211abcd";
    const UID: &str = "4f0c3a5e-98b1-4c55-9d55-1d6f6d1c0a11";

    fn of(text: &str) -> Cgroup {
        Cgroup::parse(&text.replace("UID_", &UID.replace('-', "_")).replace("UID", UID).replace("ID", ID))
    }

    #[test]
    fn containers_are_recognized_by_all_drivers_and_runtimes() {
        for (path, runtime, qos) in [
            // systemd driver
            ("/system.slice/docker-ID.scope", Some("docker"), None),
            ("/system.slice/docker-ID.scope/init", Some("docker"), None),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID_.slice/cri-containerd-ID.scope",
                Some("containerd"),
                Some("burstable"),
            ),
            (
                "/kubepods.slice/kubepods-podUID_.slice/crio-ID.scope/container",
                Some("cri-o"),
                Some("guaranteed"),
            ),
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope",
                Some("containerd"),
                Some("besteffort"),
            ),
            ("/machine.slice/libpod-ID.scope/container", Some("podman"), None),
            // cgroupfs driver
            ("/docker/ID", Some("docker"), None),
            ("/kubepods/besteffort/podUID/ID", None, Some("besteffort")),
            ("/kubepods/podUID/crio-ID", Some("cri-o"), Some("guaranteed")),
            ("/k8s.io/ID", Some("containerd"), None),
            ("/libpod_parent/libpod-ID", Some("podman"), None),
            // systemd's notation taken literally
            (
                "/system.slice/containerd.service/kubepods-burstable-podUID_.slice:cri-containerd:ID",
                Some("containerd"),
                Some("burstable"),
            ),
            // in a cgroup namespace of the daemon
            (
                "/../../kubepods-besteffort-podUID_.slice/cri-containerd-ID.scope",
                Some("containerd"),
                Some("besteffort"),
            ),
            ("/../ID", None, None),
            // nested: the outer one was made by a runtime
            (
                "/docker/ID/kubelet/kubepods/podUID/ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
                Some("docker"),
                Some("guaranteed"),
            ),
        ] {
            let cgroup = of(&format!("0::{path}\n"));
            let expected = ContainerRef { id: ID.to_owned(), runtime };
            assert_eq!(cgroup.container, Some(expected), "{path}");
            assert_eq!(cgroup.pod.as_ref().map(|pod| pod.qos), qos, "{path}");
            assert!(cgroup.pod.is_none_or(|pod| pod.uid == UID), "{path}");
            assert_eq!(cgroup.unit, None, "{path}");
        }
    }

    #[test]
    fn what_is_no_container_is_none() {
        for path in [
            "/",
            "/init.scope",
            "/system.slice/nginx.service",
            "/kubepods.slice/crio-conmon-ID.scope",
            "/machine.slice/libpod-conmon-ID.scope",
            "/system.slice/docker-abc.scope",
            "/docker/ID0",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/docker-ID.scope",
            "/user.slice/user-1000.slice/session-2.scope/kubepods/podUID/ID",
            "/system.slice/app.service/docker-ID.scope",
            "/system.slice/app.service/kubepods/podUID/ID",
            "/system.slice/my-docker.service/ID",
            "/machine.slice/systemd-nspawn@guest.service/payload/docker/ID",
        ] {
            let cgroup = of(&format!("0::{path}\n"));
            assert_eq!((cgroup.container, cgroup.pod), (None, None), "{path}");
        }
        assert_eq!(
            Cgroup::parse("0::/lxc.payload.web/system.slice\n").container.map(|it| it.id),
            Some("web".to_owned())
        );
        assert_eq!(Cgroup::parse("3:memory:/lxc/web\n").container.map(|it| it.id), Some("web".to_owned()));
    }

    #[test]
    fn units_are_those_of_the_system_manager() {
        for (path, unit, user_unit, slice) in [
            ("/system.slice/nginx.service", Some("nginx.service"), None, Some("system.slice")),
            (
                "/system.slice/system-getty.slice/getty@tty1.service",
                Some("getty@tty1.service"),
                None,
                Some("system-getty.slice"),
            ),
            ("/system.slice/app.service/workers/1", Some("app.service"), None, Some("system.slice")),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/ide.service",
                Some("user@1000.service"),
                Some("ide.service"),
                Some("user-1000.slice"),
            ),
            ("/user.slice/user-0.slice/session-3.scope", Some("session-3.scope"), None, Some("user-0.slice")),
            ("/system.slice/_cpu.service (deleted)", Some("cpu.service"), None, Some("system.slice")),
            ("/init.scope", Some("init.scope"), None, None),
            ("/", None, None, None),
        ] {
            let cgroup = Cgroup::parse(&format!("0::{path}\n"));
            assert_eq!(cgroup.unit.as_deref(), unit, "{path}");
            assert_eq!(cgroup.user_unit.as_deref(), user_unit, "{path}");
            assert_eq!(cgroup.slice.as_deref(), slice, "{path}");
        }
    }

    #[test]
    fn the_hierarchy_with_the_most_information_counts() {
        let v1 = "12:pids:/docker/ID\n11:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n";
        assert_eq!(of(v1).container.map(|it| it.id), Some(ID.to_owned()));
        // Hybrid: the unified hierarchy is there and has no information.
        let hybrid = "9:name=systemd:/\n4:memory:/kubepods/burstable/podUID/ID\n0::/\n";
        let cgroup = of(hybrid);
        assert_eq!(cgroup.container.map(|it| it.id), Some(ID.to_owned()));
        assert_eq!(cgroup.path, of("4:memory:/kubepods/burstable/podUID/ID").path);
        let hybrid = "4:memory:/system.slice\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(of(hybrid).unit.as_deref(), Some("a.service"));
        let unified = "1:name=systemd:/system.slice/b.service\n0::/system.slice/a.service\n";
        assert_eq!(of(unified).unit.as_deref(), Some("a.service"));
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in
            ["", "\n\n", "0", "0::", "0:::", "no colon", "1:a:relative", "\u{fffd}:\u{fffd}:/\u{fffd}"]
        {
            let cgroup = Cgroup::parse(text);
            assert_eq!((cgroup.container, cgroup.pod, cgroup.unit), (None, None, None), "{text:?}");
        }
        Cgroup::read(std::process::id()).expect("a process may read itself");
        assert!(Cgroup::read(0x3fff_ffff).is_err());
    }
}
