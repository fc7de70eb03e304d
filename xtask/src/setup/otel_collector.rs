//! An OpenTelemetry collector for the tests, built from Go modules at the versions and checksums
//! of `xtask/otel-collector`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::run;

/// Environment variable with the program; a value set beforehand is used as it is.
pub(crate) const TEST_OTEL_COLLECTOR: &str = "JVMPROF_TEST_OTEL_COLLECTOR";

/// Sources of the program; a change of them builds it anew.
const SOURCES: [&str; 3] = ["main.go", "go.mod", "go.sum"];
const PROGRAM: &str = "otel-collector";

/// Returns the program's path, whether or not it is built.
pub(crate) fn path() -> PathBuf {
    env::var_os(TEST_OTEL_COLLECTOR).map_or_else(|| folder().join(PROGRAM), PathBuf::from)
}

fn folder() -> PathBuf {
    paths::tools().join("otel-collector")
}

/// Builds the program unless it is there already. Modules come from the Go module proxy.
///
/// # Errors
/// Go fails, a module can't be fetched, or it doesn't have the expected checksum.
pub(crate) fn ensure() -> anyhow::Result<PathBuf> {
    let (sources, folder) = (paths::workspace().join("xtask/otel-collector"), folder());
    if env::var_os(TEST_OTEL_COLLECTOR).is_some() || is_built(&sources, &folder) {
        return Ok(path());
    }
    files::remove_folder(&folder)?;
    files::create_folder(&folder)?;
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w", "-o"])
        .arg(folder.join(PROGRAM));
    run(go.arg(".").current_dir(&sources)).context(
        "building the OpenTelemetry collector that tests push to, which needs Go of the version in \
         xtask/otel-collector/go.mod and the Go module proxy",
    )?;
    // Only there when all has succeeded.
    for source in SOURCES {
        let copied = fs::copy(sources.join(source), folder.join(source));
        copied.with_context(|| format!("copying {source} to {}", folder.display()))?;
    }
    Ok(path())
}

fn is_built(sources: &Path, folder: &Path) -> bool {
    folder.join(PROGRAM).is_file()
        && SOURCES.iter().all(|source| {
            let [wanted, built] = [sources, folder].map(|folder| fs::read(folder.join(source)).ok());
            wanted.is_some() && wanted == built
        })
}
