//! The RPM package, for Fedora, RHEL and their like: the same files as in the Debian package.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use super::{TARGET, path_with};
use crate::paths;
use crate::run::{run, stdout_text};
use crate::setup::tools::CARGO_GENERATE_RPM;

/// Name of the package's file.
pub(super) const FILE: &str = "jvmprof.rpm";

/// Packs the program.
pub(super) fn build(folder: &Path, profile: &str) -> anyhow::Result<PathBuf> {
    let file = folder.join(FILE);
    let mut cargo = Command::new("cargo");
    cargo.args(["generate-rpm", "--package", "jvmprof-daemon", "--target", TARGET, "--profile", profile]);
    cargo.arg("--output").arg(&file).env("PATH", path_with(&CARGO_GENERATE_RPM)?);
    run(cargo.current_dir(paths::workspace()))?;
    Ok(file)
}

/// Compares the package with the Debian one, by the names of files and by what is a setting.
pub(super) fn check(rpm: &Path, deb: &Path) -> anyhow::Result<()> {
    let listed = stdout_text(Command::new("rpm").args(["--query", "--list", "--package"]).arg(rpm))?;
    let of_rpm: BTreeSet<String> = listed.lines().filter_map(shipped).collect();
    let listed = stdout_text(Command::new("dpkg-deb").arg("--contents").arg(deb))?;
    let names = listed.lines().filter_map(|line| line.split_whitespace().nth(5));
    let of_deb: BTreeSet<String> = names.filter_map(shipped).collect();
    if of_rpm != of_deb {
        let only = |of: &BTreeSet<String>, other| of.difference(other).cloned().collect::<Vec<_>>();
        bail!(
            "the packages differ: only in the RPM {:?}, only in the Debian package {:?}",
            only(&of_rpm, &of_deb),
            only(&of_deb, &of_rpm)
        );
    }
    let settings = stdout_text(Command::new("rpm").args(["--query", "--configfiles", "--package"]).arg(rpm))?;
    let settings: BTreeSet<&str> = settings.lines().collect();
    let expected = ["/etc/default/jvmprof", "/etc/default/jvmprof-collector", "/etc/jvmprof/jvmprof.toml"];
    if settings != BTreeSet::from(expected) {
        bail!("settings of the RPM are {settings:?}, and should be {expected:?}");
    }
    println!("the RPM has the {} files of the Debian package", of_rpm.len());
    Ok(())
}

/// Returns the name under which a file is known in both packages; `None` for what each has in its
/// own way: documents, licences, folders.
fn shipped(name: &str) -> Option<String> {
    let name = name.trim_start_matches('.');
    if name.ends_with('/')
        || ["/usr/share/doc/", "/usr/share/licenses/"].iter().any(|it| name.starts_with(it))
    {
        return None;
    }
    let name = name.trim_end_matches(".gz").replace("/zsh/vendor-completions/", "/zsh/site-functions/");
    // Where /lib is a link to /usr/lib.
    Some(if name.starts_with("/lib/") { format!("/usr{name}") } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_has_one_name_in_both_packages() {
        for (deb, rpm) in [
            ("./usr/bin/jvmprof", "/usr/bin/jvmprof"),
            ("./usr/share/man/man1/jvmprof.1.gz", "/usr/share/man/man1/jvmprof.1"),
            ("./lib/systemd/system/jvmprof.service", "/usr/lib/systemd/system/jvmprof.service"),
            ("./usr/share/zsh/vendor-completions/_jvmprof", "/usr/share/zsh/site-functions/_jvmprof"),
        ] {
            assert_eq!(shipped(deb), shipped(rpm), "{deb}");
            assert_eq!(shipped(rpm).as_deref(), Some(rpm));
        }
        assert_eq!(shipped("./usr/share/doc/jvmprof/README.md.gz"), None);
        assert_eq!(shipped("./usr/bin/"), None);
    }
}
