//! What the tests profile that comes from npm and PyPI: each package at one version with one
//! checksum.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use crate::paths;
use crate::run::run;

/// Names their folder to the tests; set beforehand, it is taken as it is.
pub(crate) const TEST_PACKAGES: &str = "JVMPROF_TEST_PACKAGES";

/// What is to be there: a change installs it anew.
const LISTS: [&str; 3] = ["package.json", "package-lock.json", "requirements.txt"];

/// The folder, whether or not everything is there.
pub(crate) fn folder() -> PathBuf {
    env::var_os(TEST_PACKAGES).map_or_else(|| paths::tools().join("test-packages"), PathBuf::from)
}

/// The folder, with all packages installed: those of npm in `node_modules`, those of PyPI in
/// `python`.
///
/// # Errors
/// npm or pip fails; a package isn't the one that is meant.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    let folder = folder();
    let lists = paths::workspace().join("xtask/test-packages");
    if env::var_os(TEST_PACKAGES).is_some() || is_installed(&lists, &folder) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for list in &LISTS[..2] {
        copy(list, &lists, &folder)?;
    }
    let mut npm = Command::new("npm");
    run(npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    pip.arg("--target").arg(folder.join("python"));
    // Nothing outside of this folder changes, which is what pip wants to be told here.
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
