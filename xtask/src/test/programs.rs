//! Programs of this machine that the tests use.

use std::path::PathBuf;

use crate::setup::go_tools::HELM;
use crate::setup::{datadog_agent, installed_jdks, packages, python, servers, test_packages};

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
        let packages = test_packages::ensure(&python)?;
        Ok(Self { jdks, python, packages })
    }

    /// Returns the environment variables through which tests get them.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let programs = [
            (installed_jdks::TEST_JDKS, installed_jdks::list(&self.jdks)),
            (python::TEST_PYTHON, self.python.display().to_string()),
            (test_packages::TEST_PACKAGES, self.packages.display().to_string()),
            (HELM.variable, HELM.path().display().to_string()),
        ];
        let large = servers::LARGE.into_iter().filter(|server| server.path().is_file());
        let servers = [servers::OTEL_COLLECTOR].into_iter().chain(large);
        let servers = servers.map(|server| (server.variable, server.path().display().to_string()));
        let agent =
            datadog_agent::found().map(|folder| (datadog_agent::VARIABLE, folder.display().to_string()));
        programs.into_iter().chain(servers).chain(agent).collect()
    }
}
