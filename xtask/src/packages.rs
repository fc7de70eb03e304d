//! What the tests need from the machine: one table, each line with its reason.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::run::{output, run};

/// How to see that something is on the machine, whoever installed it.
#[derive(Debug)]
enum Sign {
    /// A program on `PATH`.
    Program(&'static str),
    /// The Debian package itself: nothing else brings what it holds.
    Package,
}

#[derive(Debug)]
struct Need {
    /// The package on Debian and Ubuntu.
    package: &'static str,
    sign: Sign,
    why: &'static str,
}

/// JDKs are the business of `jdk`.
const NEEDS: &[Need] = &[
    need("gcc", "gcc", "compiles the native programs that tests profile"),
    Need { package: "libc6-dev", sign: Sign::Package, why: "headers for them" },
    Need { package: "libc6-dbg", sign: Sign::Package, why: "a separate debug file, found by build id" },
    need("golang", "go", "`go tool pprof` reads our profiles: a reader that isn't ours"),
    need("linux-perf", "perf", "the profiler that sample counts are compared with"),
    need("chromium", "chromium", "opens the collector's page as a person's browser does"),
    need("nodejs", "node", "runs the tests of the page's script"),
    need("xz-utils", "xz", "unpacks the sources of core"),
    need("python3-pip", "pip3", "fetches a JDK 25 where there is no package of it"),
    need("procps", "ps", "looks at what a test left running"),
];

const fn need(package: &'static str, program: &'static str, why: &'static str) -> Need {
    Need { package, sign: Sign::Program(program), why }
}

impl Need {
    fn is_met(&self) -> bool {
        match self.sign {
            Sign::Program(name) => on_path(name),
            Sign::Package => is_installed(self.package),
        }
    }
}

/// Installs what is missing with apt.
///
/// # Errors
/// Something is missing and apt isn't there or fails; the error lists what and why.
pub(crate) fn install() -> anyhow::Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(|need| format!("  {} ({})", need.package, need.why)).collect();
    eprintln!("missing on this machine:\n{}", list.join("\n"));
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    apt_install(&packages).with_context(|| format!("the tests need:\n{}", list.join("\n")))
}

/// `apt-get install` of these, after an update of apt's lists.
///
/// # Errors
/// There is no apt, or it fails.
pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    if !on_path("apt-get") {
        bail!("no apt-get here: install {} by hand", packages.join(" "));
    }
    run(&mut apt(&["update"]))?;
    run(apt(&["install", "--yes", "--no-install-recommends"]).args(packages))
}

/// Whether apt has such a package in its lists.
pub(crate) fn apt_has(package: &str) -> bool {
    output(Command::new("apt-cache").args(["policy", package]))
        .is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet=2").args(args);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

fn is_installed(package: &str) -> bool {
    output(Command::new("dpkg-query").args(["--show", "--showformat=${Status}", package]))
        .is_ok_and(|status| status == "install ok installed")
}

/// Whether a program of this name is on `PATH`.
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
