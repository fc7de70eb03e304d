//! Packages of npm and PyPI that the tests profile, each at one version with one checksum.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::run;
use crate::setup::python;

/// Environment variable with their folder; a value set beforehand is used as it is.
pub(crate) const TEST_PACKAGES: &str = "JVMPROF_TEST_PACKAGES";

/// Lists of the packages; a change of them reinstalls all.
const LISTS: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];
/// Which CPython those of PyPI are for; another one reinstalls all, too.
const PYTHON_VERSION: &str = "python-version";

/// Returns the folder, whether or not everything is installed.
pub(crate) fn folder() -> PathBuf {
    env::var_os(TEST_PACKAGES).map_or_else(|| paths::tools().join("test-packages"), PathBuf::from)
}

/// Returns the folder with all packages installed: those of npm in `node_modules`, those of PyPI in
/// `python`, for this CPython.
///
/// # Errors
/// npm or pip fails, a package doesn't have the expected checksum, or it doesn't exist for this
/// CPython.
pub(crate) fn ensure(test_python: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder();
    if env::var_os(TEST_PACKAGES).is_some() {
        return Ok(folder);
    }
    let lists = paths::workspace().join("xtask/test-packages");
    let version = python::version_of(test_python)?;
    if is_installed(&lists, &folder, &version) {
        return Ok(folder);
    }
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    for list in &LISTS[..2] {
        copy(list, &lists, &folder)?;
    }
    let mut npm = Command::new("npm");
    run(npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    // pip itself runs in another CPython, maybe.
    pip.args(["--python-version", &version, "--platform", "manylinux2014_x86_64"]);
    pip.arg("--target").arg(folder.join("python"));
    // Allowed for root: nothing outside of this folder changes.
    run(pip.arg("--requirement").arg(lists.join(LISTS[2])).env("PIP_ROOT_USER_ACTION", "ignore"))?;
    // A wheel doesn't keep the executable bit of every file.
    run(Command::new("chmod").arg("a+x").arg(folder.join("python/dotnetcore2/bin/dotnet")))?;
    let note = folder.join(PYTHON_VERSION);
    fs::write(&note, version).with_context(|| format!("writing {}", note.display()))?;
    // Only there when all has succeeded.
    copy(LISTS[2], &lists, &folder)?;
    Ok(folder)
}

fn is_installed(lists: &Path, folder: &Path, version: &str) -> bool {
    let is_for = fs::read_to_string(folder.join(PYTHON_VERSION)).is_ok_and(|of| of == version);
    is_for
        && LISTS.iter().all(|list| {
            let [wanted, installed] = [lists, folder].map(|folder| fs::read(folder.join(list)).ok());
            wanted.is_some() && wanted == installed
        })
}

fn copy(list: &str, from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = fs::copy(from.join(list), to.join(list));
    copied.with_context(|| format!("copying {list} to {}", to.display()))?;
    Ok(())
}
