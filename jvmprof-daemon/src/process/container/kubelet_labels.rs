//! Labels of containers: those that a kubelet sets, and those that the configuration allows.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::MAX_VALUE_BYTES;

/// Labels by which a kubelet and cri-dockerd mark the pod of a container
/// (Kubernetes `pkg/kubelet/types/labels.go`).
pub(super) const NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(super) const POD: &str = "io.kubernetes.pod.name";
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(super) const CONTAINER: &str = "io.kubernetes.container.name";

/// Returns the labels whose names are in the list.
pub(super) fn allowed(all: HashMap<String, String>, names: &BTreeSet<String>) -> BTreeMap<String, String> {
    let matches = |name: &str| {
        names.contains(name)
            || names.iter().any(|it| it.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix)))
    };
    if names.is_empty() {
        return BTreeMap::new();
    }
    all.into_iter()
        .filter(|(name, _)| matches(name))
        .filter_map(|(name, text)| Some((name, value(text)?)))
        .collect()
}

/// Returns a value cut to the limit; `None` for an empty one.
pub(super) fn value(mut text: String) -> Option<String> {
    text.truncate(text.floor_char_boundary(MAX_VALUE_BYTES));
    (!text.is_empty()).then_some(text)
}
