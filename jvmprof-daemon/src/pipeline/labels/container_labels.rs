//! Labels of containers: which process runs in which, and what the host's runtimes tell of it,
//! sooner or later.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::Labels;
use crate::process::cgroup::Cgroup;
use crate::process::container::{
    ContainerCounts, ContainerMetadata, Containers, ContainersError, ContainersOptions, MetadataLookup,
};

/// A process's container and what is known of it.
#[derive(Debug)]
pub(super) struct ProcessContainer {
    id: Option<Arc<str>>,
    lookup: MetadataLookup,
    generation: u64,
}

/// Who asks for containers, if anyone does.
#[derive(Debug, Default)]
pub(super) struct ContainerLookup {
    containers: Option<Containers>,
    /// Samples that went out without their pod's name though a runtime was there to ask.
    unlabelled: u64,
}

impl ContainerLookup {
    /// # Errors
    /// See [`ContainersError`].
    pub(super) fn start(options: Option<ContainersOptions>) -> Result<Self, ContainersError> {
        Ok(Self { containers: options.map(Containers::start).transpose()?, unlabelled: 0 })
    }

    /// A process that was sampled for the first time, in this cgroup. One whose cgroup isn't known
    /// goes without.
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

    /// True if more is known than before.
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

    /// These samples go out as they are.
    pub(super) fn count_unlabelled(&mut self, contained: &ProcessContainer, samples: u64) {
        let asked = self.containers.is_some() && contained.id.is_some();
        if asked && !matches!(contained.lookup, MetadataLookup::Found(_)) {
            self.unlabelled += samples;
        }
    }

    /// Only these are still needed.
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
    /// True if waiting for its labels makes sense.
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

    /// Adds what only rules see. The names are those of Prometheus.
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

/// As Prometheus does it: what may not stand in a label's name becomes an underscore.
fn label_name(name: &str) -> String {
    name.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '_' }).collect()
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
