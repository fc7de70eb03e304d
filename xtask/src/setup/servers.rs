//! Servers that tests push to, built from Go modules at the versions and checksums of
//! `xtask/servers`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::run;

/// A server, by the name of its folder and program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    /// Environment variable with the program; a value set beforehand is used as it is.
    pub(crate) variable: &'static str,
    /// The Go package of the program.
    package: &'static str,
}

/// Built for every run of the tests.
pub(crate) const OTEL_COLLECTOR: Server =
    Server { name: "otel-collector", variable: "JVMPROF_TEST_OTEL_COLLECTOR", package: "." };

/// Large ones, which take some four minutes each on two CPUs: built where that is asked for.
pub(crate) const LARGE: [Server; 2] = [
    Server { name: "parca", variable: "JVMPROF_TEST_PARCA", package: "github.com/parca-dev/parca/cmd/parca" },
    Server {
        name: "pyroscope",
        variable: "JVMPROF_TEST_PYROSCOPE",
        package: "github.com/grafana/pyroscope/cmd/pyroscope",
    },
];

impl Server {
    /// Returns the program's path, whether or not it is built.
    pub(crate) fn path(&self) -> PathBuf {
        env::var_os(self.variable).map_or_else(|| self.folder().join(self.name), PathBuf::from)
    }

    fn folder(&self) -> PathBuf {
        paths::tools().join(self.name)
    }

    /// Builds the program unless it is there already. Modules come from the Go module proxy.
    ///
    /// # Errors
    /// Go fails, a module can't be fetched, or it doesn't have the expected checksum.
    pub(crate) fn ensure(&self) -> anyhow::Result<PathBuf> {
        let (sources, folder) = (paths::workspace().join("xtask/servers").join(self.name), self.folder());
        if env::var_os(self.variable).is_some() || self.is_built(&sources, &folder)? {
            return Ok(self.path());
        }
        files::remove_folder(&folder)?;
        files::create_folder(&folder)?;
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w", "-o"])
            .args([&folder.join(self.name), Path::new(self.package)]);
        run(go.current_dir(&sources)).with_context(|| {
            let name = self.name;
            format!(
                "building {name}, which tests push to and which needs Go of the version in \
                 xtask/servers/{name}/go.mod and the Go module proxy"
            )
        })?;
        // Only there when all has succeeded.
        for source in files_of(&sources)? {
            let copied = fs::copy(sources.join(&source), folder.join(&source));
            copied.with_context(|| format!("copying {} to {}", source.display(), folder.display()))?;
        }
        Ok(self.path())
    }

    /// Returns whether the program is there, and of these sources.
    fn is_built(&self, sources: &Path, folder: &Path) -> anyhow::Result<bool> {
        let is_same = |source: &PathBuf| {
            let [wanted, built] = [sources, folder].map(|folder| fs::read(folder.join(source)).ok());
            wanted.is_some() && wanted == built
        };
        Ok(folder.join(self.name).is_file() && files_of(sources)?.iter().all(is_same))
    }
}

/// Returns the names of a folder's files.
fn files_of(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let names = entries.map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())));
    names.collect::<Result<_, _>>().with_context(|| format!("reading {}", folder.display()))
}
