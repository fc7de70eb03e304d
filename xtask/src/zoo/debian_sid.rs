//! Debian sid in a folder. Its JDKs need a newer libc than stable distributions have, and a JVM
//! with another root is what a container has.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::paths;
use crate::run::run;
use crate::setup::packages::{apt_install, on_path};

const MIRROR: &str = "http://deb.debian.org/debian";

fn folder() -> PathBuf {
    paths::zoo().join("sid")
}

/// Returns the home of sid's JDK of that version, whether or not it is installed.
pub(super) fn home(feature: u32) -> PathBuf {
    folder().join(format!("usr/lib/jvm/java-{feature}-openjdk-amd64"))
}

/// Returns the root of the file system that a JDK lies in, if that is one below this machine's: a
/// folder with Debian's own files.
pub(super) fn root_of(home: &Path) -> Option<PathBuf> {
    let below = home.ancestors().find(|folder| folder.ends_with("usr/lib/jvm"))?;
    let root = below.ancestors().nth(3)?;
    (root.parent().is_some() && root.join("etc/debian_version").is_file()).then(|| root.to_owned())
}

/// Returns the words that precede a command to run it in that root. Its mounts are its own and end
/// with it.
pub(super) fn enter(root: &Path) -> Vec<OsString> {
    let script = "mount -t proc proc \"$0/proc\" && mkdir -p \"$0$1\" && mount --bind \"$1\" \"$0$1\" && root=$0 \
                  && shift && exec chroot \"$root\" \"$@\"";
    let mut words: Vec<OsString> =
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script].map(OsString::from).into();
    words.extend([root.into(), paths::zoo_shared().into()]);
    words
}

/// Installs one of sid's JDKs, and sid if it isn't there.
///
/// # Errors
/// Debian's mirror isn't reached, or has no such package.
pub(super) fn install(feature: u32) -> anyhow::Result<()> {
    let root = folder();
    // The last thing that debootstrap does.
    if !root.join("usr/bin/apt-get").is_file() || root.join("debootstrap").is_dir() {
        if !on_path("debootstrap") {
            apt_install(&["debootstrap"])?;
        }
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", "--include=ca-certificates", "sid"]).arg(&root).arg(MIRROR);
        run(debootstrap.stdin(Stdio::null())).with_context(|| format!("installing sid from {MIRROR}"))?;
        apt(&root, &["update"])?;
    }
    let package = format!("openjdk-{feature}-jdk-headless");
    // The package's scripts run java, which needs /proc.
    apt(&root, &["install", "--yes", "--no-install-recommends", &package])
}

fn apt(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let words = enter(root);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["apt-get", "--quiet=2", "-o", "Acquire::Check-Valid-Until=false"]);
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(Stdio::null());
    run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jdks_of_this_machine_have_no_other_root() {
        assert_eq!(root_of(Path::new("/usr/lib/jvm/java-17-openjdk-amd64")), None);
        assert_eq!(root_of(Path::new("/opt/jdk-17")), None);
    }

    #[test]
    fn a_jdk_in_another_debian_has_that_root() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("etc")).expect("a folder");
        std::fs::write(folder.path().join("etc/debian_version"), "sid\n").expect("a file");
        let home = folder.path().join("usr/lib/jvm/java-8-openjdk-amd64");
        assert_eq!(root_of(&home).as_deref(), Some(folder.path()));
    }
}
