//! The DaemonSet's own container, made of `deploy/` as a kubelet makes it of the manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use jvmprof_daemon::proto::cri::{ContainerConfig, KeyValue, Mount, NamespaceMode};
use serde_json::Value;

use crate::image::{copy_libraries, once, pack, run};
use crate::kubelet::{self, strings, text};
use crate::node::node_namespaces;

pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The image, its root laid out as the Dockerfile does it. `JVMPROF_TEST_PROGRAM` names the program
/// to ship, such as a static one; the one under test needs its libraries beside it.
pub(crate) fn image() -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    once(&IMAGE, "daemonset", make_image)
}

fn make_image(dir: &Path) -> PathBuf {
    let root = dir.join("jvmprof-root");
    let shipped = std::env::var_os("JVMPROF_TEST_PROGRAM").map(PathBuf::from);
    let program = shipped.clone().unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_jvmprof")));
    let certificates = "/etc/ssl/certs/ca-certificates.crt";
    run(Command::new(deploy().join("container/root.sh")).arg(&program).arg(certificates).arg(&root));
    run(Command::new("strip").arg("--strip-debug").arg(root.join("usr/bin/jvmprof")));
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
        assert_eq!(container["securityContext"]["privileged"], false, "it is said");
        Self { pod, container, moved, dir: dir.to_owned() }
    }

    /// As a kubelet asks a runtime for it. `toml`: the ConfigMap's file.
    pub(crate) fn container(&self, node: &str, toml: &str) -> ContainerConfig {
        let namespaces = node_namespaces(NamespaceMode::Node);
        ContainerConfig {
            args: strings(&self.container["args"]),
            envs: vec![KeyValue { key: "JVMPROF_NODE".to_owned(), value: self.node(node) }],
            mounts: self.mounts(toml),
            linux: Some(kubelet::linux(&self.pod, &self.container, namespaces)),
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
