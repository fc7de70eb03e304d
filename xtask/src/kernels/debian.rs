//! Debian's kernels: the newest package of a line, and its `vmlinuz`.
//!
//! apt fetches and verifies them, with lists and a cache of its own below the target folder. The
//! apt configuration of this machine stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::{command_line, run, stdout_text};
use crate::setup::packages;

/// Mirror for machines without a Debian source of their own.
const PUBLIC_MIRROR: &str = "http://deb.debian.org/debian";

/// Keys that sign every suite, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Metapackage that depends on the newest kernel of its suite, in the flavour for virtual machines:
/// a small one, with serial console, BTF and perf built in.
const NEWEST: &str = "linux-image-cloud-amd64";

/// A line of kernels that jvmprof has to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Line {
    /// Debian 12
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13, and Debian 12's backports
    #[value(name = "6.12")]
    V6_12,
    /// The newest
    #[value(name = "7")]
    V7,
}

impl Line {
    pub(crate) const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7];

    /// Returns the version prefix.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7 => "7",
        }
    }

    /// Returns the suites that carry or carried it; the first that still does is used.
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V6_1 => &["bookworm"],
            Self::V6_12 => &["bookworm-backports", "trixie"],
            Self::V7 => &["trixie-backports", "sid"],
        }
    }
}

/// A kernel on disk.
#[derive(Debug)]
pub(crate) struct DebianKernel {
    /// Release in the format of `uname -r`, such as `6.1.0-50-cloud-amd64`.
    pub(crate) release: String,
    pub(crate) vmlinuz: PathBuf,
}

/// Returns the newest kernel of the line, fetched unless it is here already.
///
/// # Errors
/// No suite has one, or apt can't fetch it or refuses its signature or checksum.
pub(crate) fn newest(line: Line) -> anyhow::Result<DebianKernel> {
    let prefix = format!("linux-image-{}.", line.version());
    for name in line.suites() {
        let suite = Suite::open(name)?;
        let Some(image) = suite.dependency(NEWEST, &prefix)? else { continue };
        // Since 7.0 the image is a package of its own.
        let package = suite.dependency(&image, "linux-binary-")?.unwrap_or_else(|| image.clone());
        let vmlinuz = suite.vmlinuz(&package)?;
        let release = image.trim_start_matches("linux-image-").to_owned();
        return Ok(DebianKernel { release, vmlinuz });
    }
    bail!("none of Debian's {} has a kernel {}.x now", line.suites().join(", "), line.version())
}

/// Returns the folder for all files of this task.
pub(super) fn folder() -> PathBuf {
    paths::target().join("kernels")
}

/// A suite of Debian, with apt's state for it.
struct Suite {
    folder: PathBuf,
}

impl Suite {
    /// Updates the suite's lists. Lists of an earlier run serve where the mirror isn't reached.
    fn open(name: &str) -> anyhow::Result<Self> {
        let suite = Self { folder: folder().join("apt").join(name) };
        for needed in ["lists/partial", "cache/archives/partial"] {
            files::create_folder(&suite.folder.join(needed))?;
        }
        let sources = format!("deb [arch=amd64 signed-by={KEYRING}] {} {name} main\n", debian_mirror());
        suite.write("sources.list", &sources)?;
        suite.write("apt.conf", &configuration(&suite.folder))?;
        if let Err(error) = run(suite.apt("apt-get").args(["--quiet=2", "update"])) {
            eprintln!("going on with the lists of {name} that are here: {error:#}");
        }
        Ok(suite)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let file = self.folder.join(name);
        files::write(&file, text)
    }

    /// Returns a command for one of apt's programs, restricted to this suite.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Read after this machine's configuration.
        command.arg("-c").arg(self.folder.join("apt.conf")).stdin(Stdio::null());
        command
    }

    /// Returns the dependency of a package whose name has this prefix; `None` without package or
    /// dependency.
    fn dependency(&self, package: &str, prefix: &str) -> anyhow::Result<Option<String>> {
        let policy = stdout_text(self.apt("apt-cache").args(["policy", package]))?;
        if policy.is_empty() {
            return Ok(None);
        }
        let text = stdout_text(self.apt("apt-cache").args(["depends", package]))?;
        Ok(depends_on(&text, prefix).map(str::to_owned))
    }

    /// Fetches this package's newest version and returns the kernel image in it.
    fn vmlinuz(&self, package: &str) -> anyhow::Result<PathBuf> {
        let uris = stdout_text(self.apt("apt-get").args(["download", "--print-uris", package]))?;
        let file = file_name(&uris).with_context(|| format!("apt has no address for {package}: {uris}"))?;
        let unpacked = folder().join("unpacked").join(file.trim_end_matches(".deb"));
        if let Some(found) = find_vmlinuz(&unpacked) {
            return Ok(found);
        }
        let packages = folder().join("packages");
        files::create_folder(&packages)?;
        // Checks the signed lists' checksum, also of a file that is here already.
        run(self.apt("apt-get").args(["--quiet=2", "download", package]).current_dir(&packages))?;
        unpack(&packages.join(file), &unpacked)?;
        find_vmlinuz(&unpacked).with_context(|| format!("{file} holds no vmlinuz"))
    }
}

/// Returns apt's configuration for the suite in this folder; all else, such as proxies, is as on
/// this machine.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
// A pin is about this machine's packages.
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
Acquire::Languages "none";
// apt's own user need not be able to enter the checkout.
APT::Sandbox::User "root";
"#
    )
}

/// Returns the Debian mirror that this machine uses.
pub(crate) fn debian_mirror() -> String {
    let known = || {
        let format = "$(ORIGIN) $(CODENAME) $(REPO_URI)";
        let targets = ["indextargets", "--format", format, "Created-By: Packages", "Component: main"];
        mirror_of(&stdout_text(Command::new("apt-get").args(targets)).unwrap_or_default())
    };
    let found = known().or_else(|| {
        // apt doesn't know the origin of a source that was never fetched.
        packages::apt_update().ok().and_then(|()| known())
    });
    found.unwrap_or_else(|| PUBLIC_MIRROR.to_owned())
}

/// Parses lines of origin, suite and address; returns the archive itself, not that of security
/// updates.
fn mirror_of(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let (origin, rest) = line.split_once(' ')?;
        let (codename, uri) = rest.split_once(' ')?;
        (origin == "Debian" && !codename.ends_with("-security")).then(|| uri.trim_end_matches('/').to_owned())
    })
}

/// Parses the output of `apt-cache depends`.
fn depends_on<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with(prefix))
}

/// Parses the output of `apt-get download --print-uris`: `'http://...' NAME SIZE HASH`.
fn file_name(uris: &str) -> Option<&str> {
    uris.lines()
        .find_map(|line| line.strip_prefix('\'')?.split(' ').nth(1))
        .filter(|name| name.ends_with(".deb"))
}

/// Unpacks only the kernel image: its modules are some thousand files.
fn unpack(package: &Path, to: &Path) -> anyhow::Result<()> {
    files::create_folder(to)?;
    let mut archive = Command::new("dpkg-deb");
    archive.arg("--fsys-tarfile").arg(package).stdin(Stdio::null()).stdout(Stdio::piped());
    let line = command_line(&archive);
    let mut archive = archive.spawn().with_context(|| format!("starting `{line}`"))?;
    let pipe = archive.stdout.take().context("dpkg-deb's output isn't there")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--file=-", "--directory"])
        .arg(to)
        .args(["--wildcards", "*/vmlinuz*"])
        .stdin(pipe);
    run(&mut tar)?;
    // tar need not read to the end; that it found the file is what counts.
    archive.wait().with_context(|| format!("waiting for `{line}`"))?;
    Ok(())
}

fn find_vmlinuz(folder: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find_vmlinuz(&path) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            return Some(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_what_the_meta_package_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-base-cloud-amd64\n  Depends: linux-image-7.3.4+deb13-cloud-amd64\n";
        assert_eq!(depends_on(text, "linux-image-7."), Some("linux-image-7.3.4+deb13-cloud-amd64"));
        assert_eq!(depends_on(text, "linux-image-6.1."), None);
    }

    #[test]
    fn lines_do_not_take_each_others_kernels() {
        let text = "  Depends: linux-image-6.12.95+deb12-cloud-amd64\n";
        assert_eq!(depends_on(text, "linux-image-6.1."), None);
    }

    #[test]
    fn the_machines_own_mirror_is_taken() {
        let targets = "Docker bookworm https://docker.example/linux/\nDebian bookworm-security http://m.example/debian-security/\nDebian bookworm http://m.example/debian/\n";
        assert_eq!(mirror_of(targets).as_deref(), Some("http://m.example/debian"));
        assert_eq!(mirror_of(" bookworm http://m.example/debian/\n"), None);
    }

    #[test]
    fn the_files_name_is_read_from_apts_output() {
        let uris =
            "'http://m.example/pool/l/x_6.1.176-1_amd64.deb' x_6.1.176-1_amd64.deb 26484304 SHA256:efe1";
        assert_eq!(file_name(uris), Some("x_6.1.176-1_amd64.deb"));
    }
}
