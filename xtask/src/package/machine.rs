//! Test of the packages on a Debian with systemd, booted from memory: `guest.sh` installs, upgrades
//! and removes them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// Runs the script, with its errors on the console, and switches the machine off, also if the
/// script breaks: then the report has no end.
const UNIT: &str = "[Unit]
After=multi-user.target
SuccessAction=poweroff
FailureAction=poweroff-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/packages/guest.sh
StandardOutput=journal+console
StandardError=journal+console
";

/// The words by which the script names a check that it begins.
const BEGINS: &str = "begins ";

/// The script's last line.
const END: &str = "the end";

/// Several times what the whole check needs of qemu's processor time.
const LIMIT: qemu::MachineLimit = qemu::MachineLimit::Processor(Duration::from_secs(1800));

/// Packages that the machine has beside a minimal Debian. rpm: the RPM's scripts talk to the same
/// systemd.
const INCLUDED: &str = "systemd,systemd-sysv,dbus,procps,rpm";

/// Parts of an installed system that aren't needed in memory.
const NOT_NEEDED: [&str; 5] =
    ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"];

/// Boots the machine with two versions of the Debian package, and the RPM.
///
/// # Errors
/// A check of `guest.sh` failed; the error has the end of the machine's output.
pub(super) fn check(folder: &Path, deb: &Path, next: &Path, rpm: &Path) -> anyhow::Result<()> {
    packages::install(packages::FOR_KERNELS)?;
    packages::install(packages::FOR_BOOTED_PACKAGES)?;
    let folder = folder.join("machine");
    files::create_folder(&folder)?;
    let root = debian(&folder)?;
    install_run_files(&root, [(deb, "1.deb"), (next, "2.deb"), (rpm, "jvmprof.rpm")])?;
    let initramfs = folder.join("initramfs.cpio");
    run(Command::new("sh")
        .args(["-ec", "cd \"$1\" && find . -xdev | cpio --quiet -o -H newc > \"$2\"", "sh"])
        .args([&root, &initramfs]))?;
    // That of Debian 12's backports and of Debian 13: for the machine's systemd, any will do.
    let kernel = kernels::newest(Line::V6_12)?;
    let (report, trouble) = qemu::run(&kernel, &initramfs, &folder, LIMIT)?;
    for line in report.lines().filter(|line| !line.starts_with(BEGINS)) {
        println!("{line}");
    }
    let trouble = match trouble {
        None if !is_whole(&report) => Some(qemu::console_end(&folder)?),
        trouble => trouble,
    };
    let checks = verdict(&report, trouble.as_deref())
        .with_context(|| format!("kernel {}; console and report: {}", kernel.release, folder.display()))?;
    println!("{checks} checks of the packages hold");
    Ok(())
}

fn is_whole(report: &str) -> bool {
    report.lines().last() == Some(END)
}

/// Returns how many checks hold. The error says how far the machine came: whether it was the boot
/// that failed, a check, or the time that ran out among them.
fn verdict(report: &str, trouble: Option<&str>) -> anyhow::Result<usize> {
    let of_checks = |outcome: &str| report.lines().filter(|line| line.starts_with(outcome)).count();
    let (held, failed) = (of_checks("ok "), of_checks("FAILED "));
    let is_whole = is_whole(report);
    if is_whole && failed == 0 && trouble.is_none() {
        return Ok(held);
    }
    let begun = report.lines().rev().find_map(|line| line.strip_prefix(BEGINS));
    let came = match begun {
        None => "the machine reported no check: it didn't come to the packages".to_owned(),
        Some(name) if !is_whole => {
            format!("the machine's report ends in `{name}`: {held} checks hold, {failed} failed")
        }
        Some(_) => format!("{failed} of {} checks of the packages failed", held + failed),
    };
    match trouble {
        Some(trouble) => bail!("{came}: {trouble}"),
        None => bail!("{came}"),
    }
}

/// Installs a small Debian 12 into a folder, once for what is included.
fn debian(folder: &Path) -> anyhow::Result<PathBuf> {
    let (root, made) = (folder.join("debian"), folder.join("debian.made"));
    if fs::read_to_string(&made).is_ok_and(|included| included == INCLUDED) {
        return Ok(root);
    }
    files::remove_folder(&root)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={INCLUDED}"), "bookworm"]);
    run(debootstrap.arg(&root).arg(kernels::debian_mirror()))?;
    for path in NOT_NEEDED {
        let path = root.join(path);
        fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    files::write(&made, INCLUDED)?;
    Ok(root)
}

/// Installs this run's files in the root: packages, script, and the unit that runs it.
fn install_run_files(root: &Path, packages: [(&Path, &str); 3]) -> anyhow::Result<()> {
    let inside = root.join("packages");
    files::create_folder(&inside)?;
    for (from, name) in packages {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_says_how_far_the_machine_came() {
        let told = |report: &str, trouble| verdict(report, trouble).map_err(|error| error.to_string());
        let (begun, whole) = ("begins a\nok a\nbegins b\n", "begins a\nok a\nthe end\n");
        let none = "the machine reported no check: it didn't come to the packages";
        assert_eq!(told(whole, None), Ok(1));
        for (report, trouble, expected) in [
            ("", None, none.to_owned()),
            ("", Some("it's slow"), format!("{none}: it's slow")),
            (begun, None, "the machine's report ends in `b`: 1 checks hold, 0 failed".to_owned()),
            (
                &format!("{begun}FAILED b: false\nthe end\n"),
                None,
                "1 of 2 checks of the packages failed".to_owned(),
            ),
            (whole, Some("panic"), "0 of 1 checks of the packages failed: panic".to_owned()),
        ] {
            assert_eq!(told(report, trouble), Err(expected));
        }
    }

    #[test]
    fn the_script_writes_the_lines_that_are_looked_for() {
        for line in [format!("echo \"{END}\" >&3"), format!("echo \"{BEGINS}$name\" >&3")] {
            assert!(SCRIPT.contains(&line), "{line}");
        }
    }
}
