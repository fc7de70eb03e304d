//! A CPython with perf trampolines (`-X perf`, 3.12 and later), for the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::bail;

use crate::run::stdout_text;
use crate::setup::packages::{apt_has, apt_install};

/// Environment variable with the tests' CPython; a value set beforehand is used as it is.
pub(crate) const TEST_PYTHON: &str = "JVMPROF_TEST_PYTHON";

/// Versions with trampolines, the newest first: since 3.13 there are jitdumps, too. The last one is
/// too new for what is profiled of PyPI.
const VERSIONS: [&str; 4] = ["3.14", "3.13", "3.12", "3.15"];
/// Program that exits with 0 where trampolines are in use.
const PROBE: &str = "import sys; sys.exit(not sys.is_stack_trampoline_active())";

/// Returns the first of those versions that this machine has: on `PATH`, or among pyenv's versions.
pub(crate) fn found() -> Option<PathBuf> {
    if let Some(named) = env::var_os(TEST_PYTHON) {
        return Some(named.into());
    }
    let pyenv = env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let kept: Vec<PathBuf> = pyenv
        .and_then(|root| fs::read_dir(root.join("versions")).ok())
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = kept.into_iter().chain(env::split_paths(&path)).collect();
    VERSIONS
        .iter()
        .flat_map(|version| folders.iter().map(move |folder| folder.join(format!("python{version}"))))
        .find(|program| has_perf_trampolines(program))
}

/// Returns [`found`], installed by apt where it is missing.
///
/// # Errors
/// There is none, and no package of one.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    if let Some(python) = found() {
        return Ok(python);
    }
    eprintln!("no CPython 3.12 or newer on this machine");
    if let Some(package) =
        VERSIONS.map(|version| format!("python{version}")).iter().find(|name| apt_has(name))
    {
        apt_install(&[package])?;
    }
    match found() {
        Some(python) => Ok(python),
        None => {
            bail!("the tests need a CPython 3.12 or newer with perf trampolines: name one by {TEST_PYTHON}")
        }
    }
}

/// Returns the version of a CPython, as `3.13`.
///
/// # Errors
/// It doesn't run.
pub(crate) fn version_of(program: &Path) -> anyhow::Result<String> {
    stdout_text(Command::new(program).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]))
}

fn has_perf_trampolines(program: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .args(["-X", "perf", "-c", PROBE])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    program.is_file() && command.status().is_ok_and(|status| status.success())
}
