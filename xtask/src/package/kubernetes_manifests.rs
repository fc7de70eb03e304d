//! `cargo xtask manifests`: renders the Helm charts with helm, and checks them and the manifests
//! for kustomize against the schemas of Kubernetes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::files;
use crate::paths;
use crate::run::{run, stdout_text};
use crate::setup::go_tools::{HELM, KUSTOMIZE};

/// Versions of Kubernetes that are checked: the chart's oldest, those around appArmorProfile, and a
/// new one.
const KUBERNETES: [&str; 4] = ["1.25", "1.29", "1.30", "1.34"];
/// PyPI package that contains the schemas, and its program.
const VALIDATE: &str = "kubernetes-validate";
/// Version of that package.
const VALIDATE_VERSION: &str = "1.37.0";

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

/// Returns whether all tools are there already.
pub(crate) fn has_tools() -> bool {
    [HELM.path(), KUSTOMIZE.path(), validator()].iter().all(|tool| tool.exists())
}

/// Renders and checks all manifests.
///
/// # Errors
/// helm, kustomize or the schemas refuse a manifest.
pub(crate) fn main() -> anyhow::Result<()> {
    let folder = paths::target().join("manifests");
    files::create_folder(&folder)?;
    let deploy = paths::workspace().join("deploy");
    let helm = HELM.ensure()?;
    let validator = ensure_validator()?;
    let mut rendered: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
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
                let manifest = folder.join(format!("{name}-{number}-{version}.yaml"));
                files::write(&manifest, stdout_text(&mut command)?)?;
                rendered.entry(version).or_default().push(manifest);
            }
        }
    }
    let mut command = Command::new(KUSTOMIZE.ensure()?);
    command.arg("build").arg(deploy.join("kubernetes"));
    // The manifests there name appArmorProfile.
    let manifest = folder.join("kustomize.yaml");
    files::write(&manifest, stdout_text(&mut command)?)?;
    rendered.entry("1.34").or_default().push(manifest);
    rendered.iter().try_for_each(|(version, manifests)| validate(&validator, version, manifests))
}

/// Validates manifests for a version of Kubernetes, all at once: to start takes longer than that.
fn validate(validator: &Path, version: &str, manifests: &[PathBuf]) -> anyhow::Result<()> {
    let mut validate = Command::new(validator.join("bin").join(VALIDATE));
    validate.args(["--strict", "--kubernetes-version", version]).args(manifests);
    run(validate.env("PYTHONPATH", validator))
}

/// Returns the folder of the validator, whether or not it is installed.
fn validator() -> PathBuf {
    paths::tools().join(format!("{VALIDATE}-{VALIDATE_VERSION}"))
}

/// Returns the folder of the validator, with what it needs installed there.
fn ensure_validator() -> anyhow::Result<PathBuf> {
    let folder = validator();
    if !folder.exists() {
        // Only there when all has succeeded.
        let unfinished = folder.with_extension("unfinished");
        files::remove_folder(&unfinished)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", &format!("{VALIDATE}=={VALIDATE_VERSION}")]);
        // Allowed for root: nothing outside of this folder changes.
        run(pip.arg("--target").arg(&unfinished).env("PIP_ROOT_USER_ACTION", "ignore"))?;
        fs::rename(&unfinished, &folder).with_context(|| format!("renaming {}", unfinished.display()))?;
    }
    Ok(folder)
}
