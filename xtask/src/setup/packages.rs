//! Packages that the tasks need: a table each, each line with its reason.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::run::{run, stdout_text};

/// Evidence that something is installed, by whatever means.
#[derive(Debug)]
enum Sign {
    /// A program on `PATH`.
    Program(&'static str),
    /// The Debian package itself: nothing else provides its files.
    Package,
}

/// A package that has to be installed.
#[derive(Debug)]
pub(crate) struct SystemPackage {
    /// Name of the package on Debian and Ubuntu.
    package: &'static str,
    sign: Sign,
    why: &'static str,
}

/// Packages for `cargo xtask test`. JDKs are installed by `jdk`.
pub(crate) const FOR_TESTS: &[SystemPackage] = &[
    need("gcc", "gcc", "compiles the native programs that tests profile"),
    need("g++", "g++", "compiles C++ that throws"),
    need("musl-tools", "musl-gcc", "links a C library that has no frame information"),
    SystemPackage { package: "libc6-dev", sign: Sign::Package, why: "headers for them" },
    SystemPackage {
        package: "libc6-dbg",
        sign: Sign::Package,
        why: "a separate debug file, found by build id",
    },
    need(
        "golang",
        "go",
        "`go tool pprof` reads our profiles: a reader that isn't ours; builds the OpenTelemetry collector",
    ),
    need("linux-perf", "perf", "the profiler that sample counts are compared with"),
    need("chromium", "chromium", "opens the collector's page as a person's browser does"),
    need("nodejs", "node", "runs the tests of the page's script, and is profiled"),
    need("npm", "npm", "fetches what is profiled in it"),
    need("debuginfod", "debuginfod", "sends debug files to the tests of its client"),
    need("nginx-light", "nginx", "stands as a TLS proxy in front of a backend"),
    need("curl", "curl", "asks the collector as a browser would"),
    need("xz-utils", "xz", "unpacks the sources of core"),
    need(
        "python3-pip",
        "pip3",
        "fetches a JDK 25 where there is no package of it, and what is profiled of PyPI",
    ),
    need("runc", "runc", "runs a process in a container"),
    need("containerd", "containerd", "runs pods, and lists them as a Kubernetes node's does"),
    SystemPackage {
        package: "docker.io",
        sign: Sign::Program("dockerd"),
        why: "runs containers that belong to no pod",
    },
    need("mono-mcs", "mcs", "compiles the C# that is profiled in .NET"),
    need("procps", "ps", "looks at what a test left running"),
    need("systemd", "systemd-analyze", "says whether systemd understands the units"),
];

/// Packages for `cargo xtask kernels`.
pub(crate) const FOR_KERNELS: &[SystemPackage] = &[
    need("qemu-system-x86", "qemu-system-x86_64", "boots the kernels"),
    need("binutils", "strip", "leaves debug info out of what they boot with"),
    SystemPackage {
        package: "debian-archive-keyring",
        sign: Sign::Package,
        why: "checks the kernels' origin",
    },
];

/// Packages for `cargo xtask package`.
pub(crate) const FOR_PACKAGES: &[SystemPackage] = &[
    SystemPackage { package: "libc6-dev", sign: Sign::Package, why: "the C library to link statically" },
    need("binutils", "strip", "leaves debug info out of what is shipped"),
    SystemPackage { package: "ca-certificates", sign: Sign::Package, why: "whom the image trusts" },
    need("dpkg-dev", "dpkg-shlibdeps", "lists what a package depends on"),
    need("rpm", "rpm", "reads the RPM package that is compared with the Debian one"),
];

/// Packages for `cargo xtask package --check`, beside those for the kernel that it boots.
pub(crate) const FOR_BOOTED_PACKAGES: &[SystemPackage] = &[
    need("debootstrap", "debootstrap", "makes the Debian that the package is tried on"),
    need("cpio", "cpio", "packs what that boots from"),
];

const fn need(package: &'static str, program: &'static str, why: &'static str) -> SystemPackage {
    SystemPackage { package, sign: Sign::Program(program), why }
}

impl SystemPackage {
    fn is_met(&self) -> bool {
        match self.sign {
            Sign::Program(name) => on_path(name),
            Sign::Package => is_installed(self.package),
        }
    }
}

/// Installs the missing ones with apt.
///
/// # Errors
/// Something is missing and apt isn't there or fails; the error lists packages and reasons.
pub(crate) fn install(needs: &[SystemPackage]) -> anyhow::Result<()> {
    let missing: Vec<&SystemPackage> = needs.iter().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(|need| format!("  {} ({})", need.package, need.why)).collect();
    eprintln!("missing on this machine:\n{}", list.join("\n"));
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    apt_install(&packages).with_context(|| format!("this task needs:\n{}", list.join("\n")))
}

/// Runs `apt-get install`, after an update of apt's lists.
///
/// # Errors
/// There is no apt, or it fails.
pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    if !on_path("apt-get") {
        bail!("no apt-get here: install {} by hand", packages.join(" "));
    }
    apt_update()?;
    run(apt(&["install", "--yes", "--no-install-recommends"]).args(packages))
}

/// Runs `apt-get update`.
///
/// # Errors
/// There is no apt, or it fails.
pub(crate) fn apt_update() -> anyhow::Result<()> {
    run(&mut apt(&["update"]))
}

/// Returns whether apt has such a package in its lists.
pub(crate) fn apt_has(package: &str) -> bool {
    stdout_text(Command::new("apt-cache").args(["policy", package]))
        .is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet=2").args(args);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

fn is_installed(package: &str) -> bool {
    stdout_text(Command::new("dpkg-query").args(["--show", "--showformat=${Status}", package]))
        .is_ok_and(|status| status == "install ok installed")
}

/// Returns whether a program of this name is on `PATH`.
pub(crate) fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| is_program(&folder.join(name)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-anywhere"));
    }
}
