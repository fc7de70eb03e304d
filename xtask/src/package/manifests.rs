//! `cargo xtask manifests`: the Helm chart is rendered by helm, and what it gives is checked
//! against the schemas of Kubernetes, as are the manifests for kustomize.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::paths;
use crate::run::{output, run};

/// The versions of Kubernetes that are checked: the chart's oldest, those around appArmorProfile,
/// and a new one.
const KUBERNETES: [&str; 4] = ["1.25", "1.29", "1.30", "1.34"];
/// Of the Go module helm.sh/helm/v3.
const HELM: &str = "v3.19.2";
/// Of the Go module sigs.k8s.io/kustomize/kustomize/v5.
const KUSTOMIZE: &str = "v5.7.1";
/// Brings the schemas.
const VALIDATE: &str = "kubernetes-validate";

/// Values that turn on what isn't by default.
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

/// # Errors
/// What helm, kustomize or the schemas refuse.
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

/// Keeps what the command renders, and has it checked.
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

/// The program that knows the schemas, in an environment of its own.
fn validator() -> anyhow::Result<PathBuf> {
    let folder = paths::tools().join(VALIDATE);
    let program = folder.join("bin").join(VALIDATE);
    if !program.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", VALIDATE]))?;
    }
    Ok(program)
}
