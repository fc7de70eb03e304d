//! Programs that the tests use: what is installed first, and what is built while the first tests
//! run.

use std::path::PathBuf;
use std::sync::mpsc::Sender;

use super::cargo_tests::build_integration_tests;
use crate::setup::{installed_jdks, packages, python, servers, test_packages};

/// Programs of this machine that tests use.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) jdks: Vec<installed_jdks::InstalledJdk>,
    python: PathBuf,
    packages: PathBuf,
}

impl Programs {
    /// Finds those that are installed.
    pub(super) fn found() -> Self {
        let python = python::found().unwrap_or_default();
        Self { jdks: installed_jdks::found(), python, packages: test_packages::folder() }
    }

    /// Installs what is missing.
    pub(super) fn ensure() -> anyhow::Result<Self> {
        packages::install(packages::FOR_TESTS)?;
        let (jdks, python) = (installed_jdks::ensure()?, python::ensure()?);
        Ok(Self { jdks, python, packages: test_packages::ensure()? })
    }

    /// Returns the environment variables through which tests get them.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let programs = [
            (installed_jdks::TEST_JDKS, installed_jdks::list(&self.jdks)),
            (python::TEST_PYTHON, self.python.display().to_string()),
            (test_packages::TEST_PACKAGES, self.packages.display().to_string()),
        ];
        let large = servers::LARGE.into_iter().filter(|server| server.path().is_file());
        let servers = [servers::OTEL_COLLECTOR].into_iter().chain(large);
        let servers = servers.map(|server| (server.variable, server.path().display().to_string()));
        programs.into_iter().chain(servers).collect()
    }
}

/// Servers that are to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    /// What is there will do.
    Found,
    /// Those that take a minute.
    Small,
    All,
}

/// Builds the daemon's integration tests, with the program that they test, whose path it sends as
/// soon as they are there; then servers. That runs beside tests, which come first where both want a
/// processor.
pub(super) fn build_in_background(
    wanted: Servers,
    tests_built: &Sender<anyhow::Result<PathBuf>>,
) -> anyhow::Result<()> {
    // This thread's alone, and that of all that it starts.
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        eprintln!("what is built runs at the priority of tests: {error}");
    }
    // Nobody waits for it any more if the run has failed.
    let _ = tests_built.send(build_integration_tests());
    if wanted != Servers::Found {
        servers::OTEL_COLLECTOR.ensure()?;
    }
    for server in servers::LARGE.iter().filter(|_| wanted == Servers::All) {
        // Not all that they consist of is served everywhere. The run says what it left out.
        if let Err(error) = server.ensure() {
            eprintln!("error: {error:#}");
        }
    }
    Ok(())
}
