//! Packages of npm and PyPI that the tests profile, each at one version with one checksum.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::run;

/// Environment variable with their folder; a value set beforehand is used as it is.
pub(crate) const TEST_PACKAGES: &str = "JVMPROF_TEST_PACKAGES";

/// Lists of the packages; a change of them reinstalls all.
const LISTS: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];

/// Returns the folder, whether or not everything is installed.
pub(crate) fn folder() -> PathBuf {
    env::var_os(TEST_PACKAGES).map_or_else(|| paths::tools().join("test-packages"), PathBuf::from)
}

/// Returns the folder with all packages installed: those of npm in `node_modules`, those of PyPI in
/// `python`.
///
/// # Errors
/// npm or pip fails, or a package doesn't have the expected checksum.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    let folder = folder();
    let lists = paths::workspace().join("xtask/test-packages");
    if env::var_os(TEST_PACKAGES).is_some() || is_installed(&lists, &folder) {
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
    pip.arg("--target").arg(folder.join("python"));
    // Allowed for root: nothing outside of this folder changes.
    run(pip.arg("--requirement").arg(lists.join(LISTS[2])).env("PIP_ROOT_USER_ACTION", "ignore"))?;
    // A wheel doesn't keep the executable bit of every file.
    run(Command::new("chmod").arg("a+x").arg(folder.join("python/dotnetcore2/bin/dotnet")))?;
    // Only there when all has succeeded.
    copy(LISTS[2], &lists, &folder)?;
    Ok(folder)
}

fn is_installed(lists: &Path, folder: &Path) -> bool {
    LISTS.iter().all(|list| {
        let [wanted, installed] = [lists, folder].map(|folder| fs::read(folder.join(list)).ok());
        wanted.is_some() && wanted == installed
    })
}

fn copy(list: &str, from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = fs::copy(from.join(list), to.join(list));
    copied.with_context(|| format!("copying {list} to {}", to.display()))?;
    Ok(())
}
