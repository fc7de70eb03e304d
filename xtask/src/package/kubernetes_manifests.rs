//! `cargo xtask manifests`: renders the Helm charts with helm, and checks them and the manifests
//! for kustomize against the schemas of Kubernetes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;
use crate::paths;
use crate::run::{run, stdout_text};

/// Versions of Kubernetes that are checked: the chart's oldest, those around appArmorProfile, and a
/// new one.
const KUBERNETES: [&str; 4] = ["1.25", "1.29", "1.30", "1.34"];
/// Version of the Go module helm.sh/helm/v3.
const HELM: &str = "v3.19.2";
/// Version of the Go module sigs.k8s.io/kustomize/kustomize/v5.
const KUSTOMIZE: &str = "v5.7.1";
/// PyPI package that contains the schemas.
const VALIDATE: &str = "kubernetes-validate";

/// Values of the daemon's chart that enable all that is off by default.
const VALUES: &str = r#"
config:
  remote-store-address: https://parca.example:443
  frequency: 19
  alloc-enabled: true
  pauses: true
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

/// The same of the collector's chart.
const COLLECTOR_VALUES: &str = r#"
token: {secretName: token, key: secret}
tls: {secretName: collector-tls}
service: {type: LoadBalancer, port: 443, annotations: {note: "yes"}}
persistence: {size: 50Gi, storageClassName: fast, accessModes: [ReadWriteOncePod]}
podLabels: {team: checkout}
podAnnotations: {note: "yes"}
imagePullSecrets: [{name: registry}]
priorityClassName: high
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
"#;

/// Its volumes that aren't the chart's own.
const OTHER_VOLUMES: [&str; 2] =
    ["persistence: {existingClaim: profiles}", "{persistence: {enabled: false}, token: {enabled: false}}"];

/// A chart, and values that it is rendered with beside its own.
struct Chart {
    name: &'static str,
    values: Vec<&'static str>,
}

/// Renders and checks all manifests.
///
/// # Errors
/// helm, kustomize or the schemas refuse a manifest.
pub(crate) fn main() -> anyhow::Result<()> {
    let folder = paths::target().join("manifests");
    files::create_folder(&folder)?;
    let deploy = paths::workspace().join("deploy");
    let helm = go_tool("helm", "helm.sh/helm/v3/cmd/helm", HELM)?;
    let validate = validator()?;
    let collector = [&[COLLECTOR_VALUES][..], &OTHER_VOLUMES].concat();
    let charts = [
        Chart { name: "jvmprof", values: vec![VALUES] },
        Chart { name: "jvmprof-collector", values: collector },
    ];
    for Chart { name, values } in charts {
        let chart = deploy.join("helm").join(name);
        run(Command::new(&helm).args(["lint", "--strict"]).arg(&chart))?;
        for (number, values) in std::iter::once("{}").chain(values).enumerate() {
            let file = folder.join(format!("{name}-{number}.values.yaml"));
            files::write(&file, values)?;
            for version in KUBERNETES {
                let mut command = Command::new(&helm);
                command.args(["template", name]).arg(&chart).args(["--namespace", "jvmprof"]);
                command.args(["--kube-version", &format!("{version}.0"), "--values"]).arg(&file);
                let rendered = folder.join(format!("{name}-{number}-{version}.yaml"));
                check(&validate, version, &rendered, &mut command)?;
            }
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
    files::write(file, stdout_text(render)?)?;
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
