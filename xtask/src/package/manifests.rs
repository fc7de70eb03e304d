//! `cargo xtask manifests`: renders the Helm chart with helm, and checks it and the manifests for
//! kustomize against the schemas of Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::paths;
use crate::run::{output, run};

/// Versions of Kubernetes that are checked: the chart's oldest, those around appArmorProfile, and a
/// new one.
const KUBERNETES: [&str; 4] = ["1.25", "1.29", "1.30", "1.34"];
/// Version of the Go module helm.sh/helm/v3.
const HELM: &str = "v3.19.2";
/// Version of the Go module sigs.k8s.io/kustomize/kustomize/v5.
const KUSTOMIZE: &str = "v5.7.1";
/// PyPI package that contains the schemas.
const VALIDATE: &str = "kubernetes-validate";

/// Values that enable all that is off by default.
const VALUES: &str = r#"
config:
  remote-store-address: https://parca.example:443
  frequency: 19
  pod-label: [app, "app.kubernetes.io/*"]
bearerToken: {secretName: token}
certificateAuthority: {configMapName: ca}
containerRuntime: {directory: /run/crio}
stateDirectory: ""
podLabels: {team: checkout}
podAnnotations: {note: "yes"}
imagePullSecrets: [{name: registry}]
priorityClassName: system-node-critical
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
"#;

/// Renders and checks all manifests.
///
/// # Errors
/// helm, kustomize or the schemas refuse a manifest.
pub(crate) fn main() -> anyhow::Result<()> {
    let folder = paths::target().join("manifests");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let deploy = paths::workspace().join("deploy");
    let chart = deploy.join("helm/jvmprof");
    let values = folder.join("values.yaml");
    fs::write(&values, VALUES).with_context(|| format!("writing {}", values.display()))?;
    let helm = go_tool("helm", "helm.sh/helm/v3/cmd/helm", HELM)?;
    let validate = validator()?;
    run(Command::new(&helm).args(["lint", "--strict"]).arg(&chart))?;
    for version in KUBERNETES {
        for (name, values) in [("default", None), ("values", Some(&values))] {
            let mut command = Command::new(&helm);
            command.args(["template", "jvmprof"]).arg(&chart).args(["--namespace", "jvmprof"]);
            command.args(["--kube-version", &format!("{version}.0")]);
            if let Some(values) = values {
                command.arg("--values").arg(values);
            }
            check(&validate, version, &folder.join(format!("{name}-{version}.yaml")), &mut command)?;
        }
    }
    let kustomize = go_tool("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", KUSTOMIZE)?;
    let mut command = Command::new(kustomize);
    command.arg("build").arg(deploy.join("kubernetes"));
    // The manifests there name appArmorProfile.
    check(&validate, "1.34", &folder.join("kustomize.yaml"), &mut command)
}

/// Writes the output of `render` to a file, and validates it.
fn check(validate: &Path, version: &str, file: &Path, render: &mut Command) -> anyhow::Result<()> {
    fs::write(file, output(render)?).with_context(|| format!("writing {}", file.display()))?;
    run(Command::new(validate).args(["--strict", "--kubernetes-version", version]).arg(file))
}

/// Builds a program of a Go module, once.
fn go_tool(name: &str, package: &str, version: &str) -> anyhow::Result<PathBuf> {
    let folder = paths::tools().join(format!("{name}-{version}"));
    let program = folder.join(name);
    if !program.exists() {
        run(Command::new("go").arg("install").arg(format!("{package}@{version}")).env("GOBIN", &folder))?;
    }
    Ok(program)
}

/// Returns the validator, installed in a Python environment of its own.
fn validator() -> anyhow::Result<PathBuf> {
    let folder = paths::tools().join(VALIDATE);
    let program = folder.join("bin").join(VALIDATE);
    if !program.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", VALIDATE]))?;
    }
    Ok(program)
}
