//! async-profiler of Maven Central.

use std::path::PathBuf;
use std::process::Command;

use crate::paths;
use crate::run::run;
use crate::setup::maven;

const ARTIFACT: &str = "tools.profiler:async-profiler:4.2";
const LIBRARY: &str = "linux-x64/libasyncProfiler.so";

/// Returns the library that a JVM loads as an agent; gets it, if it isn't there.
///
/// # Errors
/// Maven isn't installed, or its repository isn't reached.
pub(crate) fn library() -> anyhow::Result<PathBuf> {
    let cache = paths::target().join("async-profiler");
    let library = cache.join(LIBRARY);
    if !library.is_file() {
        maven::copy(ARTIFACT, &cache)?;
        let archive = cache.join("async-profiler.jar");
        run(Command::new("unzip").args(["-q", "-o"]).arg(archive).arg(LIBRARY).arg("-d").arg(&cache))?;
    }
    Ok(library)
}
