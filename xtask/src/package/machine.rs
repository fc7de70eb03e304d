//! Test of the package on a Debian with systemd, booted from memory: `guest.sh` installs, upgrades
//! and removes it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::kernels::{self, Line, qemu};
use crate::run::run;
use crate::setup::packages;

/// Script that the machine runs once it is up.
const SCRIPT: &str = include_str!("guest.sh");

/// The first process. systemd needs a root that can be left, which a kernel's first one can't.
const INIT: &str = "#!/bin/sh
mount -t tmpfs -o size=90% root /mnt
cp -ax /bin /etc /home /lib* /opt /packages /root /run /sbin /srv /tmp /usr /var /mnt/
mkdir -p /mnt/proc /mnt/sys /mnt/dev /mnt/mnt
mount -t devtmpfs dev /mnt/dev
exec switch_root /mnt /sbin/init
";

const UNIT: &str = "[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/packages/guest.sh
";

/// Parts of an installed system that aren't needed in memory.
const NOT_NEEDED: [&str; 5] =
    ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"];

/// Boots the machine with two versions of the package.
///
/// # Errors
/// A check of `guest.sh` failed; the error has the end of the machine's output.
pub(super) fn check(folder: &Path, deb: &Path, next: &Path) -> anyhow::Result<()> {
    packages::install(packages::FOR_KERNELS)?;
    let folder = folder.join("machine");
    files::create_folder(&folder)?;
    let root = debian(&folder)?;
    furnish(&root, deb, next)?;
    let initramfs = folder.join("initramfs.cpio");
    run(Command::new("sh")
        .args(["-ec", "cd \"$1\" && find . -xdev | cpio --quiet -o -H newc > \"$2\"", "sh"])
        .args([&root, &initramfs]))?;
    // That of Debian 12's backports and of Debian 13: for the machine's systemd, any will do.
    let kernel = kernels::newest(Line::V6_12)?;
    let (report, trouble) = qemu::run(&kernel, &initramfs, &folder)?;
    print!("{report}");
    if let Some(trouble) = trouble {
        bail!("{}: {trouble}", kernel.release);
    }
    let failed = report.lines().filter(|line| line.starts_with("FAILED")).count();
    if failed > 0 || report.lines().last() != Some("the end") {
        bail!("{failed} checks of the package failed; see {}", folder.display());
    }
    println!("{} checks of the package hold", report.lines().count() - 1);
    Ok(())
}

/// Installs a small Debian 12 into a folder, once.
fn debian(folder: &Path) -> anyhow::Result<PathBuf> {
    let (root, made) = (folder.join("debian"), folder.join("debian.made"));
    if made.exists() {
        return Ok(root);
    }
    files::remove_folder(&root)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=systemd,systemd-sysv,dbus,procps", "bookworm"]);
    run(debootstrap.arg(&root).arg(kernels::debian_mirror()))?;
    for path in NOT_NEEDED {
        let path = root.join(path);
        fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    files::write(&made, "")?;
    Ok(root)
}

/// Copies this run's files into the root.
fn furnish(root: &Path, deb: &Path, next: &Path) -> anyhow::Result<()> {
    let inside = root.join("packages");
    files::create_folder(&inside)?;
    for (from, name) in [(deb, "1.deb"), (next, "2.deb")] {
        fs::copy(from, inside.join(name)).with_context(|| format!("copying {}", from.display()))?;
    }
    write(&inside.join("guest.sh"), SCRIPT, 0o755)?;
    write(&root.join("init"), INIT, 0o755)?;
    let units = root.join("etc/systemd/system");
    write(&units.join("package-check.service"), UNIT, 0o644)?;
    let wants = units.join("multi-user.target.wants");
    files::create_folder(&wants)?;
    for (target, link) in [
        ("/lib/systemd/system/multi-user.target", units.join("default.target")),
        ("../package-check.service", wants.join("package-check.service")),
    ] {
        if link.symlink_metadata().is_err() {
            symlink(target, &link).with_context(|| format!("linking {}", link.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    files::write(path, text)?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).with_context(|| format!("changing the mode of {}", path.display()))
}
