//! Client of Docker's HTTP API (`GET /containers/ID/json`) over its socket.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

use super::error::RuntimeError;
use super::kubelet_labels::{CONTAINER, NAMESPACE, POD, POD_UID, allowed, value};
use super::{ContainerMetadata, ContainersOptions};

/// Most bytes of an answer, which has environment and mounts, too.
const MAX_ANSWER_BYTES: usize = 2 << 20;

/// Client that connects for each query, since there are few.
#[derive(Debug)]
pub(super) struct DockerClient {
    socket: PathBuf,
}

/// The needed fields of the answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerContainer {
    #[serde(default)]
    name: String,
    config: DockerConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerConfig {
    #[serde(default)]
    image: String,
    labels: Option<HashMap<String, String>>,
}

impl DockerClient {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub(super) async fn query(
        &self,
        id: &str,
        options: &ContainersOptions,
    ) -> Result<Option<ContainerMetadata>, RuntimeError> {
        // The id becomes part of a path.
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Ok(None);
        }
        let Some(body) = self.get(&format!("/containers/{id}/json")).await? else { return Ok(None) };
        let metadata = parse_answer(&body, options)
            .map_err(|error| self.bad_answer(format!("no container's description: {error}")))?;
        Ok(Some(metadata))
    }

    /// Returns the body of an answer; `None` for status 404.
    async fn get(&self, path: &str) -> Result<Option<Bytes>, RuntimeError> {
        let http = |source| RuntimeError::Http { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| RuntimeError::Connection { socket: self.socket.clone(), source })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // It ends when `sender` is dropped, which also returns its errors.
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(HOST, "docker")
            .body(Empty::<Bytes>::new())
            .map_err(|error| self.bad_answer(format!("not requested: {error}")))?;
        let response = sender.send_request(request).await.map_err(http)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status => return Err(self.bad_answer(format!("HTTP status {status}"))),
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| self.bad_answer(format!("not to be read: {error}")))?;
        Ok(Some(body.to_bytes()))
    }

    fn bad_answer(&self, what: String) -> RuntimeError {
        RuntimeError::Answer { socket: self.socket.clone(), what }
    }
}

/// Parses the body of an answer.
///
/// # Errors
/// It describes no container.
pub fn parse_answer(body: &[u8], options: &ContainersOptions) -> serde_json::Result<ContainerMetadata> {
    let DockerContainer { name, config } = serde_json::from_slice(body)?;
    let mut labels = config.labels.unwrap_or_default();
    let mut label = |name: &str| labels.remove(name).and_then(value);
    let (namespace, pod, pod_uid) = (label(NAMESPACE), label(POD), label(POD_UID));
    let name = name.trim_start_matches('/').to_owned();
    Ok(ContainerMetadata {
        container: label(CONTAINER).or_else(|| value(name)),
        image: value(config.image),
        pod_labels: allowed(labels, &options.pod_labels),
        pod_annotations: std::collections::BTreeMap::new(),
        namespace,
        pod,
        pod_uid,
    })
}
