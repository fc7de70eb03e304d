//! Clients of the container runtimes of this host: discovery of their sockets, timeouts and pauses.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cri_client::CriClient;
use super::docker_client::DockerClient;
use super::error::RuntimeError;
use super::{ContainerMetadata, ContainersOptions};

/// Default sockets of runtimes: containerd, CRI-O, k3s and RKE2, k0s, MicroK8s, cri-dockerd,
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

/// First and longest pause after a runtime failed.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Client of one runtime.
#[derive(Debug)]
pub(super) struct RuntimeClient {
    pub(super) socket: PathBuf,
    api: RuntimeApi,
    pause: Duration,
    /// Time before which it isn't queried.
    pub(super) not_before: Option<Instant>,
}

#[derive(Debug)]
enum RuntimeApi {
    Cri(CriClient),
    Docker(DockerClient),
}

impl RuntimeClient {
    /// Makes a client without connecting. It must be called inside of a tokio runtime.
    pub(super) fn new(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let is_docker = socket.file_name().is_some_and(|name| name == "docker.sock");
        let api = if is_docker {
            RuntimeApi::Docker(DockerClient::new(socket))
        } else {
            RuntimeApi::Cri(CriClient::new(socket)?)
        };
        Ok(Self { socket: socket.to_owned(), api, pause: FIRST_PAUSE, not_before: None })
    }

    /// Queries a container; `None` if the runtime doesn't have it.
    pub(super) async fn query(
        &mut self,
        id: &str,
        options: &ContainersOptions,
    ) -> Result<Option<ContainerMetadata>, RuntimeError> {
        let answer = async {
            match &mut self.api {
                RuntimeApi::Cri(cri) => cri.query(id, options).await.map_err(|status| RuntimeError::Cri {
                    socket: self.socket.clone(),
                    status: Box::new(status),
                }),
                RuntimeApi::Docker(docker) => docker.query(id, options).await,
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

/// Returns the sockets to query: the configured ones, or the well-known ones that exist.
pub(super) fn sockets(named: &[PathBuf]) -> Vec<PathBuf> {
    if !named.is_empty() {
        return named.to_vec();
    }
    let is_socket =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    WELL_KNOWN.iter().map(PathBuf::from).filter(is_socket).collect()
}
