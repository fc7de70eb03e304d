//! Jars of Maven Central, each at one version.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::files;
use crate::run::run;

const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";

/// Copies an artifact, such as `tools.profiler:async-profiler:4.2`, into a folder, under its name
/// without the version.
///
/// # Errors
/// Maven isn't installed, or its repository isn't reached.
pub(crate) fn copy(artifact: &str, folder: &Path) -> anyhow::Result<()> {
    files::create_folder(folder)?;
    let mut mvn = Command::new("mvn");
    mvn.args(["--quiet", "--batch-mode", COPY]).arg(format!("-Dartifact={artifact}"));
    mvn.arg(format!("-DoutputDirectory={}", folder.display())).arg("-Dmdep.stripVersion=true");
    run(&mut mvn).with_context(|| format!("getting {artifact} (Debian: maven)"))
}
