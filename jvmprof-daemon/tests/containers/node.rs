//! A node of a cluster: containerd, and a test that plays its kubelet.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use jvmprof_daemon::proto::cri::runtime_service_client::RuntimeServiceClient;
use jvmprof_daemon::proto::cri::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
    VersionRequest,
};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::image::{self, run};
use crate::polls::Polls;
use crate::support::signal;

/// The cgroups that containers are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cgroups {
    /// As they are mounted on this host.
    Hosts,
    /// Version 2 alone, as on a host without version 1: containerd sees nothing else.
    Unified,
}

/// Its pods end with it.
pub(crate) struct Node {
    dir: PathBuf,
    containerd: Child,
    runtime: Runtime,
    client: RuntimeServiceClient<Channel>,
    pods: Vec<String>,
}

/// A pod as it was asked for.
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) config: PodSandboxConfig,
}

const MOUNT_UNIFIED: &str = r#"
root=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)
[ -n "$root" ] || { mkdir -p "$DIR/cgroup2"; root=$DIR/cgroup2; mount -t cgroup2 none "$root"; }
mount --bind "$root" /sys/fs/cgroup
exec "$@"
"#;

/// Runs runc without the containers' shares of CPU and memory: where version 1 is mounted too, the
/// controllers are its own.
const RUNC: &str = r#"#!/bin/sh -e
bundle=.
previous=
for argument in "$@"; do
    [ "$previous" = --bundle ] && bundle=$argument
    previous=$argument
done
[ -f "$bundle/config.json" ] && sed -i -E 's/"(cpu|memory)":\{[^{}]*\}/"\1":{}/g' "$bundle/config.json"
exec runc "$@"
"#;

impl Node {
    /// Starts containerd in a folder of its own.
    pub(crate) fn start(dir: &Path, cgroups: Cgroups) -> Self {
        let config = dir.join("config.toml");
        let runc = match cgroups {
            Cgroups::Hosts => "runc".to_owned(),
            Cgroups::Unified => script(&dir.join("runc"), RUNC),
        };
        fs::write(&config, configuration(dir, &runc)).expect("the folder is writable");
        let log = File::create(dir.join("containerd.log")).expect("the folder is writable");
        let mut command = match cgroups {
            Cgroups::Hosts => Command::new("containerd"),
            Cgroups::Unified => {
                let mut command = Command::new("unshare");
                command.args([
                    "--mount",
                    "--propagation",
                    "slave",
                    "sh",
                    "-ec",
                    MOUNT_UNIFIED,
                    "sh",
                    "containerd",
                ]);
                command.env("DIR", dir);
                command
            }
        };
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let containerd = command.process_group(0).spawn().expect("the tests need containerd");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let socket = socket(dir);
        let channel = {
            let _inside = runtime.enter();
            let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("an address");
            endpoint.connect_lazy()
        };
        let mut node = Self {
            dir: dir.to_owned(),
            containerd,
            runtime,
            client: RuntimeServiceClient::new(channel),
            pods: Vec::new(),
        };
        node.wait_for_start();
        node
    }

    fn wait_for_start(&mut self) {
        let polls = Polls::start();
        loop {
            let version = self.runtime.block_on(self.client.version(VersionRequest::default()));
            match version {
                Ok(version) => {
                    let version = version.into_inner();
                    eprintln!("{} {}", version.runtime_name, version.runtime_version);
                    return;
                }
                Err(_) => assert!(self.containerd.try_wait().expect("ours").is_none(), "{}", self.log()),
            }
            polls.wait(|| self.log());
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default()
    }

    /// Stops it in its tracks, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) {
        signal(self.containerd.id(), if frozen { "STOP" } else { "CONT" });
    }

    pub(crate) fn import(&self, archive: &Path) {
        run(self.ctr().args(["images", "import"]).arg(archive));
    }

    /// Returns whether a container's process has been started, and hasn't ended.
    pub(crate) fn is_running(&self, container: &str) -> bool {
        let tasks = run(self.ctr().args(["tasks", "list"]));
        tasks.lines().any(|line| line.starts_with(container) && line.contains("RUNNING"))
    }

    fn ctr(&self) -> Command {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.socket()).args(["--namespace", "k8s.io"]);
        ctr
    }

    /// A pod in the host's network, since there is no other here.
    pub(crate) fn pod(&mut self, namespace: &str, name: &str, uid: &str, namespaces: NamespaceOption) -> Pod {
        let metadata = PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            attempt: 0,
        };
        let security =
            LinuxSandboxSecurityContext { namespace_options: Some(namespaces), ..Default::default() };
        let config = PodSandboxConfig {
            metadata: Some(metadata),
            // A pod in the host's network has the host's name.
            hostname: String::new(),
            log_directory: self.dir.join("logs").join(name).display().to_string(),
            labels: [("app", "cart"), ("tier", "web")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            annotations: [("acme.example/team".to_owned(), "checkout".to_owned())].into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/kubepods/burstable/pod{uid}"),
                security_context: Some(security),
            }),
        };
        fs::create_dir_all(&config.log_directory).expect("the folder is writable");
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let id = self.runtime.block_on(self.client.run_pod_sandbox(request));
        let id = id.unwrap_or_else(|error| panic!("{error}\n{}", self.log())).into_inner().pod_sandbox_id;
        self.pods.push(id.clone());
        Pod { id, config }
    }

    /// Starts a container and gives its id.
    pub(crate) fn container(
        &mut self,
        pod: &Pod,
        name: &str,
        image: &str,
        config: ContainerConfig,
    ) -> String {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec { image: image.to_owned(), ..Default::default() }),
            log_path: format!("{name}.log"),
            ..config
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let created = self.runtime.block_on(self.client.create_container(request));
        let id = created.unwrap_or_else(|error| panic!("{error}\n{}", self.log())).into_inner().container_id;
        let request = StartContainerRequest { container_id: id.clone() };
        let started = self.runtime.block_on(self.client.start_container(request));
        started.unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        id
    }

    /// What a container has written so far.
    pub(crate) fn output(&self, pod: &Pod, name: &str) -> String {
        let file = Path::new(&pod.config.log_directory).join(format!("{name}.log"));
        fs::read_to_string(file).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A test that failed meanwhile would wait for an answer for ever.
        self.freeze(false);
        for pod_sandbox_id in self.pods.drain(..) {
            let stop = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
            let _ = self.runtime.block_on(self.client.stop_pod_sandbox(stop));
            let _ = self
                .runtime
                .block_on(self.client.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }));
        }
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
        remove_cgroups();
    }
}

/// Pods' cgroups are the kubelet's to remove. What another node still uses stays.
fn remove_cgroups() {
    let hierarchies =
        fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for hierarchy in hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]) {
        let parent = hierarchy.join("kubepods/burstable");
        for pod in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(pod.path());
        }
        let _ = fs::remove_dir(&parent);
        let _ = fs::remove_dir(hierarchy.join("kubepods"));
    }
}

pub(crate) fn node_namespaces(pid: NamespaceMode) -> NamespaceOption {
    NamespaceOption { network: NamespaceMode::Node.into(), pid: pid.into(), ipc: NamespaceMode::Pod.into() }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("containerd.sock")
}

/// Writes a script and gives its path.
fn script(path: &Path, text: &str) -> String {
    fs::write(path, text).expect("the folder is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

fn configuration(dir: &Path, runc: &str) -> String {
    let dir = dir.display();
    format!(
        r#"
version = 2
root = "{dir}/root"
state = "{dir}/state"
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{runc}"
"#
    )
}

/// Imports the images that pods need.
pub(crate) fn import_images(node: &Node, dir: &Path) {
    node.import(&image::pause(dir));
    node.import(&image::jvm());
}
