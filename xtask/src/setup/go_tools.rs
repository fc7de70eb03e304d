//! Tools that tasks call, built from Go modules, each at one version.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::paths;
use crate::run::run;

/// A program of a Go module.
#[derive(Debug)]
pub(crate) struct GoTool {
    name: &'static str,
    /// The Go package of the program.
    package: &'static str,
    /// Version of its module.
    version: &'static str,
    /// Environment variable with the program; a value set beforehand is used as it is.
    pub(crate) variable: &'static str,
}

/// Renderer of the Helm charts.
pub(crate) const HELM: GoTool = GoTool {
    name: "helm",
    package: "helm.sh/helm/v3/cmd/helm",
    version: "v3.19.2",
    variable: "JVMPROF_TEST_HELM",
};

/// Renderer of the other manifests.
pub(crate) const KUSTOMIZE: GoTool = GoTool {
    name: "kustomize",
    package: "sigs.k8s.io/kustomize/kustomize/v5",
    version: "v5.7.1",
    variable: "JVMPROF_TEST_KUSTOMIZE",
};

impl GoTool {
    /// Returns the program's path, whether or not it is built.
    pub(crate) fn path(&self) -> PathBuf {
        env::var_os(self.variable).map_or_else(|| self.folder().join(self.name), PathBuf::from)
    }

    fn folder(&self) -> PathBuf {
        paths::tools().join(format!("{}-{}", self.name, self.version))
    }

    /// Builds the program unless it is there already. Modules come from the Go module proxy.
    ///
    /// # Errors
    /// Go fails, or a module can't be fetched.
    pub(crate) fn ensure(&self) -> anyhow::Result<PathBuf> {
        let program = self.path();
        if env::var_os(self.variable).is_none() && !program.exists() {
            let mut go = Command::new("go");
            go.arg("install").arg(format!("{}@{}", self.package, self.version));
            run(go.env("GOBIN", self.folder())).with_context(|| format!("building {}", self.name))?;
        }
        Ok(program)
    }
}
