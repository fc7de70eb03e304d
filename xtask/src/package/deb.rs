//! The Debian package of the static program, made by cargo-deb.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{TARGET, path_with};
use crate::paths;
use crate::run::run;
use crate::setup::tools::CARGO_DEB;

/// Packs the program. `revision` is the last part of the package's version.
pub(super) fn build(folder: &Path, profile: &str, revision: u32) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    // As cargo calls it: its first argument is its own name.
    cargo.arg("deb").args(["--no-build", "--no-strip", "--locked", "--package", "jvmprof-daemon"]);
    cargo.args([
        "--target",
        TARGET,
        "--profile",
        profile,
        "--deb-revision",
        &revision.to_string(),
        "--output",
    ]);
    cargo.env("PATH", path_with(&CARGO_DEB)?);
    let file = folder.join(file_name(revision));
    run(cargo.arg(&file).current_dir(paths::workspace()))?;
    Ok(file)
}

/// Returns the name of the package of a revision.
pub(super) fn file_name(revision: u32) -> String {
    format!("jvmprof-{revision}.deb")
}
