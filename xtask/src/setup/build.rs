//! Builds of `jvmprof` that other tasks run.

use std::path::PathBuf;

use crate::paths;
use crate::run::{self, run};

/// Builds the release binary.
pub(crate) fn release() -> anyhow::Result<PathBuf> {
    build("release")
}

/// Builds the `fast` profile: almost as fast, in a fraction of the time.
pub(crate) fn fast() -> anyhow::Result<PathBuf> {
    build("fast")
}

fn build(profile: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = run::cargo();
    cargo.args([
        "build",
        "--profile",
        profile,
        "--locked",
        "--package",
        "jvmprof-daemon",
        "--bin",
        "jvmprof",
    ]);
    run(cargo.current_dir(paths::workspace()))?;
    Ok(paths::target().join(profile).join("jvmprof"))
}
