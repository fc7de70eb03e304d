//! The DaemonSet's own container, made of `deploy/` as a kubelet makes it of the manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jvmprof_daemon::proto::cri::security_profile::ProfileType;
use jvmprof_daemon::proto::cri::{
    Capability, ContainerConfig, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, Mount, NamespaceMode, SecurityProfile,
};
use serde_json::Value;

use crate::image::{copy_libraries, pack, run};
use crate::node::node_namespaces;

/// What containerd and the kubelet hide of `/proc` and `/sys`, and make read-only, unless a pod
/// asks for it (Kubernetes `pkg/securitycontext/util.go`).
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The image, its root laid out as the Dockerfile does it. `JVMPROF_TEST_PROGRAM` names the program
/// to ship, such as a static one; the one under test needs its libraries beside it.
pub(crate) fn image(dir: &Path) -> PathBuf {
    let root = dir.join("jvmprof-root");
    let shipped = std::env::var_os("JVMPROF_TEST_PROGRAM").map(PathBuf::from);
    let program = shipped.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_jvmprof")));
    let certificates = "/etc/ssl/certs/ca-certificates.crt";
    run(Command::new(deploy().join("container/root.sh")).arg(&program).arg(certificates).arg(&root));
    if shipped.is_none() {
        copy_libraries(&root, &[program]);
    }
    pack(dir, "localhost/jvmprof:1", &root, "/usr/bin/jvmprof")
}

/// The container of `daemonset.yaml`.
pub(crate) struct Manifest {
    pod: Value,
    container: Value,
    /// Where host paths are instead, by their beginning.
    moved: Vec<(String, PathBuf)>,
    dir: PathBuf,
}

impl Manifest {
    pub(crate) fn read(dir: &Path, moved: Vec<(String, PathBuf)>) -> Self {
        let text = fs::read_to_string(deploy().join("kubernetes/daemonset.yaml")).expect("it is committed");
        let manifest: Value = serde_saphyr::from_str(&text).expect("it is YAML");
        let pod = manifest["spec"]["template"]["spec"].clone();
        let container = pod["containers"][0].clone();
        assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1));
        assert_eq!(pod["hostPID"], true, "what follows plays it");
        Self { pod, container, moved, dir: dir.to_owned() }
    }

    /// As a kubelet asks a runtime for it. `toml`: the ConfigMap's file.
    pub(crate) fn container(&self, node: &str, toml: &str) -> ContainerConfig {
        let security = &self.container["securityContext"];
        ContainerConfig {
            args: strings(&self.container["args"]),
            envs: vec![KeyValue { key: "JVMPROF_NODE".to_owned(), value: self.node(node) }],
            mounts: self.mounts(toml),
            linux: Some(LinuxContainerConfig {
                resources: Some(LinuxContainerResources {
                    memory_limit_in_bytes: mebibytes(&self.container["resources"]["limits"]["memory"]),
                    cpu_shares: shares(&self.container["resources"]["requests"]["cpu"]),
                    ..LinuxContainerResources::default()
                }),
                security_context: Some(LinuxContainerSecurityContext {
                    capabilities: Some(Capability {
                        add_capabilities: strings(&security["capabilities"]["add"]),
                        drop_capabilities: strings(&security["capabilities"]["drop"]),
                    }),
                    privileged: security["privileged"].as_bool().expect("it is said"),
                    namespace_options: Some(node_namespaces(NamespaceMode::Node)),
                    run_as_user: Some(Int64Value {
                        value: security["runAsUser"].as_i64().expect("it is said"),
                    }),
                    readonly_rootfs: security["readOnlyRootFilesystem"].as_bool().expect("it is said"),
                    no_new_privs: security["allowPrivilegeEscalation"] == false,
                    masked_paths: MASKED.map(str::to_owned).to_vec(),
                    readonly_paths: READ_ONLY.map(str::to_owned).to_vec(),
                    seccomp: Some(SecurityProfile {
                        profile_type: seccomp(&security["seccompProfile"]).into(),
                    }),
                }),
            }),
            ..ContainerConfig::default()
        }
    }

    /// The one variable of the manifest.
    fn node(&self, node: &str) -> String {
        let variables = self.container["env"].as_array().expect("a list");
        assert_eq!(variables.len(), 1, "{variables:?}");
        assert_eq!(variables[0]["name"], "JVMPROF_NODE");
        assert_eq!(variables[0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
        node.to_owned()
    }

    fn mounts(&self, toml: &str) -> Vec<Mount> {
        let mount = |mount: &Value| Mount {
            container_path: text(&mount["mountPath"]),
            host_path: self.volume(&text(&mount["name"]), toml).display().to_string(),
            readonly: mount["readOnly"] == true,
        };
        self.container["volumeMounts"].as_array().expect("a list").iter().map(mount).collect()
    }

    fn volume(&self, name: &str, toml: &str) -> PathBuf {
        let volumes = self.pod["volumes"].as_array().expect("a list");
        let volume = volumes.iter().find(|volume| volume["name"] == name).expect("each mount has its volume");
        if let Some(path) = volume["hostPath"]["path"].as_str() {
            let moved = self.moved.iter().find(|(from, _)| from == path);
            return moved.unwrap_or_else(|| panic!("{path} would be the host's own")).1.clone();
        }
        let folder = self.dir.join("volumes").join(name);
        fs::create_dir_all(&folder).expect("the folder is writable");
        if volume.get("configMap").is_some() {
            fs::write(folder.join("jvmprof.toml"), toml).expect("the folder is writable");
        }
        folder
    }
}

fn seccomp(profile: &Value) -> ProfileType {
    assert_eq!(profile["type"], "RuntimeDefault");
    ProfileType::RuntimeDefault
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// As a kubelet does it: 1024 a CPU.
fn shares(value: &Value) -> i64 {
    let number = text(value).strip_suffix('m').and_then(|number| number.parse::<i64>().ok());
    number.unwrap_or_else(|| panic!("{value} isn't in thousandths of a CPU")) * 1024 / 1000
}

fn mebibytes(value: &Value) -> i64 {
    let number = text(value).strip_suffix("Mi").and_then(|number| number.parse::<i64>().ok());
    number.unwrap_or_else(|| panic!("{value} isn't in Mi")) << 20
}
