//! Asking a runtime that speaks Kubernetes' CRI: containerd, CRI-O, cri-dockerd.

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

/// An answer's size: a pod's annotations may take 256 KiB (Kubernetes `TotalAnnotationSizeLimitB`),
/// and a container has its own.
const MAX_ANSWER_BYTES: usize = 2 << 20;

/// A connection to the runtime, made when it is first needed and again when it broke.
#[derive(Debug)]
pub(super) struct Cri {
    client: RuntimeServiceClient<Channel>,
}

impl Cri {
    pub(super) fn new(socket: &Path) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let client = RuntimeServiceClient::new(endpoint.connect_lazy());
        Ok(Self { client: client.max_decoding_message_size(MAX_ANSWER_BYTES) })
    }

    /// One container is asked for rather than all listed: then nothing that another pod says of
    /// itself, however long, stands in the way.
    pub(super) async fn ask(
        &mut self,
        id: &str,
        options: &ContainersOptions,
    ) -> Result<Option<ContainerMetadata>, Status> {
        let container = self.container(id).await?;
        // What holds a pod's namespaces isn't listed with the containers, and has the pod's id.
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
        // A runtime may take the id as a prefix, or not look at the filter.
        Ok(listed.containers.into_iter().find(|container| container.id == id))
    }

    async fn pod(&mut self, id: &str) -> Result<Option<PodSandbox>, Status> {
        let filter = Some(PodSandboxFilter { id: id.to_owned() });
        let listed = self.client.list_pod_sandbox(ListPodSandboxRequest { filter }).await?.into_inner();
        Ok(listed.items.into_iter().find(|pod| pod.id == id))
    }
}

fn metadata(
    container: Option<Container>,
    pod: Option<PodSandbox>,
    options: &ContainersOptions,
) -> ContainerMetadata {
    let mut known = ContainerMetadata::default();
    if let Some(mut container) = container {
        known.container = container.metadata.and_then(|metadata| value(metadata.name));
        known.image = image(container.image.unwrap_or_default(), container.image_ref);
        // Should the pod have left the runtime's list already, the kubelet told the container of it
        // as well.
        let mut told = |name: &str| container.labels.remove(name).and_then(value);
        known.namespace = told(NAMESPACE);
        known.pod = told(POD);
        known.pod_uid = told(POD_UID);
        if let Some(name) = told(CONTAINER) {
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

/// What says most to a reader. CRI-O lists what a kubelet resolved, a bare id, and keeps the
/// image's name in the reference alone (`registry.example/shop/cart@sha256:...`).
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
    fn an_image_has_a_name_where_the_runtime_tells_one() {
        let id = format!("sha256:{ID}");
        let digest = format!("localhost/jvm@{id}");
        for (written, resolved, reference, expected) in [
            // containerd, told by a kubelet
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
