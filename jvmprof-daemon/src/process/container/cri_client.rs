//! Client of Kubernetes' CRI: containerd, CRI-O, cri-dockerd.

use std::path::Path;

use tonic::Status;
use tonic::transport::{Channel, Endpoint, Error};

use super::kubelet_labels::{CONTAINER, NAMESPACE, POD, POD_UID, allowed, value};
use super::{ContainerMetadata, ContainersOptions};
use crate::proto::cri::runtime_service_client::RuntimeServiceClient;
use crate::proto::cri::{
    Container, ContainerFilter, ImageSpec, ListContainersRequest, ListPodSandboxRequest, PodSandbox,
    PodSandboxFilter,
};

/// Most bytes of an answer: a pod's annotations may take 256 KiB (Kubernetes
/// `TotalAnnotationSizeLimitB`), and a container has its own.
const MAX_ANSWER_BYTES: usize = 2 << 20;

/// A connection to the runtime, made at the first query and again after it broke.
#[derive(Debug)]
pub(super) struct CriClient {
    client: RuntimeServiceClient<Channel>,
}

impl CriClient {
    pub(super) fn new(socket: &Path) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let client = RuntimeServiceClient::new(endpoint.connect_lazy());
        Ok(Self { client: client.max_decoding_message_size(MAX_ANSWER_BYTES) })
    }

    /// Queries a container and its pod. Only these are listed, so that the metadata of another pod,
    /// however long, has no effect.
    pub(super) async fn query(
        &mut self,
        id: &str,
        options: &ContainersOptions,
    ) -> Result<Option<ContainerMetadata>, Status> {
        let container = self.container(id).await?;
        // A pod's sandbox isn't listed with the containers, and has the pod's id.
        let pod_id = container.as_ref().map_or(id, |container| &*container.pod_sandbox_id).to_owned();
        let pod = self.pod(&pod_id).await?;
        if container.is_none() && pod.is_none() {
            return Ok(None);
        }
        Ok(Some(metadata(container, pod, options)))
    }

    async fn container(&mut self, id: &str) -> Result<Option<Container>, Status> {
        let filter = Some(ContainerFilter { id: id.to_owned(), ..ContainerFilter::default() });
        let listed = self.client.list_containers(ListContainersRequest { filter }).await?.into_inner();
        // A runtime may take the id as a prefix, or ignore the filter.
        Ok(listed.containers.into_iter().find(|container| container.id == id))
    }

    async fn pod(&mut self, id: &str) -> Result<Option<PodSandbox>, Status> {
        let filter = Some(PodSandboxFilter { id: id.to_owned() });
        let listed = self.client.list_pod_sandbox(ListPodSandboxRequest { filter }).await?.into_inner();
        Ok(listed.items.into_iter().find(|pod| pod.id == id))
    }
}

/// Returns what the runtime's descriptions of a container and its pod say.
pub fn metadata(
    container: Option<Container>,
    pod: Option<PodSandbox>,
    options: &ContainersOptions,
) -> ContainerMetadata {
    let mut known = ContainerMetadata::default();
    if let Some(mut container) = container {
        known.container = container.metadata.and_then(|metadata| value(metadata.name));
        known.image = image(container.image.unwrap_or_default(), container.image_ref);
        // The kubelet labels the container as well, in case the pod isn't listed any more.
        let mut label = |name: &str| container.labels.remove(name).and_then(value);
        known.namespace = label(NAMESPACE);
        known.pod = label(POD);
        known.pod_uid = label(POD_UID);
        if let Some(name) = label(CONTAINER) {
            known.container = Some(name);
        }
    }
    if let Some(pod) = pod {
        if let Some(metadata) = pod.metadata {
            known.namespace = value(metadata.namespace);
            known.pod = value(metadata.name);
            known.pod_uid = value(metadata.uid);
        }
        known.pod_labels = allowed(pod.labels, &options.pod_labels);
        known.pod_annotations = allowed(pod.annotations, &options.pod_annotations);
    }
    known
}

/// Returns the most readable name of an image. CRI-O lists what a kubelet resolved, a bare id, and
/// keeps the image's name in the reference alone (`registry.example/shop/cart@sha256:...`).
fn image(image: ImageSpec, reference: String) -> Option<String> {
    let names = [image.user_specified_image, image.image, reference].map(value);
    let named = names.iter().flatten().find(|name| !is_image_id(name)).cloned();
    named.or_else(|| names.into_iter().flatten().next())
}

fn is_image_id(name: &str) -> bool {
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "e1646d8088d06fb9420e536fdda0fccd71a3aa5212ccb107b9289613e935603c";

    #[test]
    fn an_image_has_a_name_if_the_runtime_has_one() {
        let id = format!("sha256:{ID}");
        let digest = format!("localhost/jvm@{id}");
        for (written, resolved, reference, expected) in [
            // containerd, as a kubelet calls it
            ("shop:1", &*id, &*id, Some("shop:1")),
            ("", "docker.io/library/shop:1", &id, Some("docker.io/library/shop:1")),
            // CRI-O 1.37, likewise
            ("", ID, &digest, Some(&*digest)),
            ("", &digest, &digest, Some(&digest)),
            ("", "localhost/jvm:1", &digest, Some("localhost/jvm:1")),
            // An image that has lost its names.
            ("", ID, &id, Some(ID)),
            ("", "", &id, Some(&id)),
            ("", "", "", None),
        ] {
            let spec = ImageSpec { image: resolved.to_owned(), user_specified_image: written.to_owned() };
            assert_eq!(image(spec, reference.to_owned()).as_deref(), expected, "{resolved}");
        }
    }
}
