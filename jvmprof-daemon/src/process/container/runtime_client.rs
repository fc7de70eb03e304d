//! The runtimes of this host: where their sockets are, and what each speaks.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cri_client::Cri;
use super::docker_client::Docker;
use super::error::RuntimeError;
use super::{ContainerMetadata, ContainersOptions};

/// Where runtimes listen by default: containerd, CRI-O, k3s and RKE2, k0s, MicroK8s, cri-dockerd,
/// Docker.
pub(super) const WELL_KNOWN: [&str; 7] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
    "/run/docker.sock",
];

/// How long a runtime is left alone after it failed: first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A runtime that can be asked.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) socket: PathBuf,
    speaks: Speaks,
    pause: Duration,
    /// Not to be asked before.
    pub(super) not_before: Option<Instant>,
}

#[derive(Debug)]
enum Speaks {
    Cri(Cri),
    Docker(Docker),
}

impl Runtime {
    /// Doesn't connect yet. Must be called inside of a tokio runtime.
    pub(super) fn new(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let is_docker = socket.file_name().is_some_and(|name| name == "docker.sock");
        let speaks =
            if is_docker { Speaks::Docker(Docker::new(socket)) } else { Speaks::Cri(Cri::new(socket)?) };
        Ok(Self { socket: socket.to_owned(), speaks, pause: FIRST_PAUSE, not_before: None })
    }

    /// What it knows of this container, as it was told; `None`: nothing.
    pub(super) async fn ask(
        &mut self,
        id: &str,
        options: &ContainersOptions,
    ) -> Result<Option<ContainerMetadata>, RuntimeError> {
        let answer = async {
            match &mut self.speaks {
                Speaks::Cri(cri) => cri.ask(id, options).await.map_err(|status| RuntimeError::Cri {
                    socket: self.socket.clone(),
                    status: Box::new(status),
                }),
                Speaks::Docker(docker) => docker.ask(id, options).await,
            }
        };
        let answer = tokio::time::timeout(options.timeout, answer).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(RuntimeError::TimedOut { socket: self.socket.clone(), timeout: options.timeout })
        });
        match &answer {
            Ok(_) => {
                self.pause = FIRST_PAUSE;
                self.not_before = None;
            }
            Err(_) => {
                self.not_before = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
        answer
    }
}

/// The sockets to ask: those that were named, or the well-known ones that exist.
pub(super) fn sockets(named: &[PathBuf]) -> Vec<PathBuf> {
    if !named.is_empty() {
        return named.to_vec();
    }
    let is_socket =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    WELL_KNOWN.iter().map(PathBuf::from).filter(is_socket).collect()
}
