//! Runs the scripts of the RPM: rpm installs, upgrades and removes it in a root of its own. That
//! holds a shell and what the scripts call, and its `systemctl` writes down its arguments.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::files;
use crate::run::{require_root, run, stdout_text};

/// Programs of this machine that the scripts call.
const PROGRAMS: [&str; 3] = ["/bin/sh", "/bin/cat", "/bin/rmdir"];

const CALLS: &str = "calls";

/// The calls that the scripts must make: while it is installed, upgraded and removed, where the
/// kernel lets nobody profile at first.
const EXPECTED: [&str; 3] = [
    "systemctl daemon-reload
systemd-sysctl 60-jvmprof.conf
systemctl preset jvmprof.service jvmprof-collector.service",
    "systemctl daemon-reload
systemd-sysctl 60-jvmprof.conf
systemctl daemon-reload
systemctl try-restart jvmprof.service jvmprof-collector.service",
    "systemctl --no-reload disable --now jvmprof.service jvmprof-collector.service
systemctl daemon-reload",
];

/// # Errors
/// A script fails or calls something else, a changed setting is lost, or files stay behind.
pub(super) fn check(folder: &Path, rpm: &Path) -> anyhow::Result<()> {
    require_root("rpm runs the package's scripts in a root of their own")?;
    let root = folder.join("rpm-root");
    make_root(&root)?;
    let install = || command(&root, &["--install", "--nodeps"], rpm);
    // The same version again runs the scripts as the next one would.
    let upgrade = || command(&root, &["--upgrade", "--nodeps", "--replacepkgs"], rpm);
    let remove = || command(&root, &["--erase"], Path::new("jvmprof"));
    let settings = root.join("etc/jvmprof/jvmprof.toml");
    for (step, expected) in [install(), upgrade(), remove()].iter_mut().zip(EXPECTED) {
        files::write(&root.join(CALLS), "")?;
        run(step)?;
        let called = files::read_text(&root.join(CALLS))?;
        if called.trim() != expected {
            bail!("scripts of the RPM call\n{called}\nand should call\n{expected}");
        }
        if settings.exists() {
            files::write(&settings, "# changed\n")?;
        }
    }
    let left = stdout_text(Command::new("find").arg(&root).args(["-name", "*jvmprof*", "-printf", "%P\n"]))?;
    if left != "etc/jvmprof\netc/jvmprof/jvmprof.toml.rpmsave" {
        bail!("the removed RPM leaves\n{left}");
    }
    println!("the RPM's scripts install, upgrade and remove it; a changed setting is saved");
    Ok(())
}

fn command(root: &Path, args: &[&str], what: &Path) -> Command {
    let mut rpm = Command::new("rpm");
    rpm.arg("--root").arg(root).args(args).arg(what);
    rpm
}

fn make_root(root: &Path) -> anyhow::Result<()> {
    files::remove_folder(root)?;
    for folder in ["dev", "proc/sys/kernel", "usr/lib/systemd", "var/lib/rpm", "bin"] {
        files::create_folder(&root.join(folder))?;
    }
    for program in PROGRAMS {
        let libraries = stdout_text(Command::new("ldd").arg(program))?;
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        let mut copy = Command::new("cp");
        copy.args(["--dereference", "--parents", program]).args(libraries).arg(root);
        run(&mut copy)?;
    }
    for stub in ["bin/systemctl", "usr/lib/systemd/systemd-sysctl"] {
        let name = stub.rsplit('/').next().unwrap_or(stub);
        files::write(&root.join(stub), format!("#!/bin/sh\necho \"{name} $*\" >> /{CALLS}\n"))?;
        fs::set_permissions(root.join(stub), Permissions::from_mode(0o755))?;
    }
    files::write(&root.join("dev/null"), "")?;
    files::write(&root.join("proc/sys/kernel/perf_event_paranoid"), "4\n")
}
