//! Labels of containers: the container of each process, and its metadata from the host's runtimes,
//! which may come late.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::Labels;
use super::process_labels::label_name;
use crate::process::cgroup::Cgroup;
use crate::process::container::{
    ContainerCounts, ContainerMetadata, Containers, ContainersError, ContainersOptions, MetadataLookup,
};

/// A process's container and its metadata.
#[derive(Debug)]
pub(super) struct ProcessContainer {
    id: Option<Arc<str>>,
    lookup: MetadataLookup,
    generation: u64,
}

/// The source of containers' metadata, if any.
#[derive(Debug, Default)]
pub(super) struct ContainerLookup {
    containers: Option<Containers>,
    /// Samples that were delivered without their pod's name though a runtime was there to query.
    unlabelled: u64,
}

impl ContainerLookup {
    /// Starts the queries, if options are given.
    ///
    /// # Errors
    /// See [`ContainersError`].
    pub(super) fn start(options: Option<ContainersOptions>) -> Result<Self, ContainersError> {
        Ok(Self { containers: options.map(Containers::start).transpose()?, unlabelled: 0 })
    }

    /// Returns the container of a process that was sampled for the first time, in this cgroup. A
    /// process without a known cgroup has none.
    pub(super) fn find(&self, cgroup: Option<&Cgroup>) -> ProcessContainer {
        let container = cgroup.and_then(|cgroup| cgroup.container.as_ref());
        let id = container.map(|container| container.id.as_str().into());
        let mut contained = ProcessContainer { id, lookup: MetadataLookup::NotFound, generation: 0 };
        if let (Some(containers), Some(id)) = (&self.containers, &contained.id) {
            contained.generation = containers.generation();
            contained.lookup = containers.lookup(id, Instant::now());
        }
        contained
    }

    /// Updates the metadata. Returns true if it has changed.
    pub(super) fn refresh(&self, contained: &mut ProcessContainer) -> bool {
        let (Some(containers), Some(id)) = (&self.containers, &contained.id) else { return false };
        if matches!(contained.lookup, MetadataLookup::Found(_)) {
            return false;
        }
        let generation = containers.generation();
        if generation == contained.generation && contained.lookup == MetadataLookup::NotFound {
            return false;
        }
        contained.generation = generation;
        contained.lookup = containers.lookup(id, Instant::now());
        matches!(contained.lookup, MetadataLookup::Found(_))
    }

    /// Counts samples that are delivered without metadata.
    pub(super) fn count_unlabelled(&mut self, contained: &ProcessContainer, samples: u64) {
        let asked = self.containers.is_some() && contained.id.is_some();
        if asked && !matches!(contained.lookup, MetadataLookup::Found(_)) {
            self.unlabelled += samples;
        }
    }

    /// Drops the metadata of all other containers.
    pub(super) fn retain<'a>(&self, needed: impl Iterator<Item = &'a ProcessContainer>) {
        if let Some(containers) = &self.containers {
            let needed: HashSet<&str> = needed.filter_map(|contained| contained.id.as_deref()).collect();
            containers.retain(|id| needed.contains(id));
        }
    }

    pub(super) fn counts(&self) -> ContainerCounts {
        self.containers.as_ref().map(Containers::counts).unwrap_or_default()
    }

    pub(super) fn unlabelled(&self) -> u64 {
        self.unlabelled
    }
}

impl ProcessContainer {
    /// Returns true if waiting for its labels makes sense.
    pub(super) fn is_awaited(&self) -> bool {
        self.lookup == MetadataLookup::Pending
    }

    /// Adds its labels.
    pub(super) fn label(&self, labels: &mut Labels) {
        if let Some(id) = &self.id {
            labels.put("container_id", id);
        }
        if let MetadataLookup::Found(metadata) = &self.lookup {
            label(metadata, labels);
        }
    }

    /// Adds labels that only rules see. The names are those of Prometheus.
    pub(super) fn label_meta(&self, labels: &mut Labels) {
        if let MetadataLookup::Found(metadata) = &self.lookup {
            meta(metadata, labels);
        }
    }
}

fn meta(metadata: &ContainerMetadata, labels: &mut Labels) {
    let ContainerMetadata { namespace, pod, pod_uid, container, image, pod_labels, pod_annotations } =
        metadata;
    for (name, value) in [
        ("container_name", container),
        ("container_image", image),
        ("kubernetes_namespace", namespace),
        ("kubernetes_pod_name", pod),
        ("kubernetes_pod_uid", pod_uid),
        ("kubernetes_pod_container_name", &container.clone().filter(|_| pod.is_some())),
        ("kubernetes_pod_container_image", &image.clone().filter(|_| pod.is_some())),
    ] {
        if let Some(value) = value {
            labels.put(&format!("__meta_{name}"), value);
        }
    }
    for (prefix, pairs) in [("label", pod_labels), ("annotation", pod_annotations)] {
        for (name, value) in pairs {
            labels.put(&format!("__meta_kubernetes_pod_{prefix}_{}", label_name(name)), value);
        }
    }
}

fn label(metadata: &ContainerMetadata, labels: &mut Labels) {
    let ContainerMetadata { namespace, pod, container, pod_labels, pod_annotations, .. } = metadata;
    for (name, value) in [("namespace", namespace), ("pod", pod), ("container", container)] {
        if let Some(value) = value {
            labels.put(name, value);
        }
    }
    for (prefix, pairs) in [("pod_label_", pod_labels), ("pod_annotation_", pod_annotations)] {
        for (name, value) in pairs {
            labels.put(&format!("{prefix}{}", label_name(name)), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_become_labels() {
        let metadata = ContainerMetadata {
            namespace: Some("shop".to_owned()),
            pod: Some("cart-0".to_owned()),
            pod_uid: Some("1-2".to_owned()),
            container: None,
            pod_labels: [("app.kubernetes.io/name".to_owned(), "cart".to_owned())].into(),
            ..ContainerMetadata::default()
        };
        let lookup = MetadataLookup::Found(Arc::new(metadata));
        let contained = ProcessContainer { id: Some("abc".into()), lookup, generation: 0 };
        let mut labels = Labels::default();
        contained.label(&mut labels);
        let pairs: Vec<_> = labels.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(
            pairs,
            [
                ("container_id", "abc"),
                ("namespace", "shop"),
                ("pod", "cart-0"),
                ("pod_label_app_kubernetes_io_name", "cart")
            ]
        );
        let mut labels = Labels::default();
        contained.label_meta(&mut labels);
        let pairs: Vec<_> = labels.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(
            pairs,
            [
                ("__meta_kubernetes_namespace", "shop"),
                ("__meta_kubernetes_pod_label_app_kubernetes_io_name", "cart"),
                ("__meta_kubernetes_pod_name", "cart-0"),
                ("__meta_kubernetes_pod_uid", "1-2"),
            ]
        );
    }
}
