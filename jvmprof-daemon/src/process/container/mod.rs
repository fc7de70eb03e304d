//! Metadata of containers from the host's container runtimes: pods, namespaces, names, images.
//!
//! The node's own runtime is queried, over its socket: no API server is loaded, and no rights in
//! the cluster are needed. A lookup doesn't block: it returns [`MetadataLookup::Pending`] while a
//! query is under way, and is repeated when [`Containers::generation`] has changed.

pub mod cri_client;
pub mod docker_client;
mod error;
mod kubelet_labels;
mod metadata_cache;
mod query_thread;
mod runtime_client;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use metadata_cache::{ContainerId, MetadataCache};

/// Most queued queries; containers beyond that are queried later.
const MAX_QUEUED: usize = 1024;
/// Most containers in the cache: more than run on any known host.
const MAX_CONTAINERS: usize = 16_384;
/// Most bytes of a name, an image, a label's or an annotation's value; the rest is cut off. Labels
/// of series are cut before that, at 1,024 characters.
pub const MAX_VALUE_BYTES: usize = 4 * 1025;

/// Metadata of a container; `None` for what its runtime doesn't have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMetadata {
    /// Kubernetes namespace of the pod.
    pub namespace: Option<String>,
    pub pod: Option<String>,
    pub pod_uid: Option<String>,
    /// Name of the container in its pod, or Docker's name for it; `None` for a pod's sandbox.
    pub container: Option<String>,
    /// Image as in the pod's specification if the runtime has that, such as
    /// `registry.example/shop/cart:1.2`.
    pub image: Option<String>,
    /// Labels of the pod that [`ContainersOptions::pod_labels`] allows; Docker's are the
    /// container's own.
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of the pod that [`ContainersOptions::pod_annotations`] allows.
    pub pod_annotations: BTreeMap<String, String>,
}

/// Sockets, allowed labels and timeouts of queries.
#[derive(Clone, Debug)]
pub struct ContainersOptions {
    /// Sockets to query; empty: those of the well-known paths that exist.
    pub sockets: Vec<PathBuf>,
    /// Names of pod labels to keep; `*` at the end stands for any rest.
    pub pod_labels: BTreeSet<String>,
    /// Names of pod annotations to keep; `*` at the end stands for any rest.
    pub pod_annotations: BTreeSet<String>,
    /// Longest time that a container stays [`MetadataLookup::Pending`].
    pub wait: Duration,
    /// Timeout of a query.
    pub timeout: Duration,
}

impl Default for ContainersOptions {
    fn default() -> Self {
        Self {
            sockets: Vec::new(),
            pod_labels: BTreeSet::new(),
            pod_annotations: BTreeSet::new(),
            wait: Duration::from_secs(30),
            timeout: Duration::from_secs(3),
        }
    }
}

/// Error of starting the query thread.
#[derive(Debug, thiserror::Error)]
#[error("starting the thread that queries container runtimes: {0}")]
pub struct ContainersError(#[from] io::Error);

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataLookup {
    Found(Arc<ContainerMetadata>),
    /// The answer may still come in time.
    Pending,
    /// No metadata: no runtime has the container, there is no runtime, or it took too long. A later
    /// lookup may find it.
    NotFound,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerCounts {
    /// Queries that were sent to a runtime.
    pub queries: u64,
    /// Containers that were found.
    pub found: u64,
    /// Queries for a container that no runtime has; they are repeated.
    pub not_found: u64,
    /// Queries that failed: no connection, an error, a timeout.
    pub failed: u64,
    /// Containers that weren't queried since the cache or the queue is full; they are queried
    /// later.
    pub over_limit: u64,
}

/// Cache of container metadata. Its query thread ends when this is dropped.
#[derive(Debug)]
pub struct Containers {
    cache: Arc<MetadataCache>,
    queue: mpsc::Sender<ContainerId>,
    wait: Duration,
}

impl Containers {
    /// Starts the query thread, which sleeps while there is nothing to query.
    ///
    /// # Errors
    /// Returns an error if the thread can't be started.
    pub fn start(options: ContainersOptions) -> Result<Self, ContainersError> {
        let cache = Arc::new(MetadataCache::default());
        let (queue, receiver) = mpsc::channel(MAX_QUEUED);
        let wait = options.wait;
        query_thread::spawn(options, Arc::clone(&cache), receiver)?;
        Ok(Self { cache, queue, wait })
    }

    /// Looks up a container; the first lookup queues a query. `id`: the runtime's full id, as in
    /// cgroup paths.
    pub fn lookup(&self, id: &str, now: Instant) -> MetadataLookup {
        self.cache.lookup(id, now, self.wait, |id| self.queue.try_send(id).is_ok())
    }

    /// Returns a number that changes when results of lookups may have changed.
    pub fn generation(&self) -> u64 {
        self.cache.generation()
    }

    /// Removes containers that aren't needed any more.
    pub fn retain(&self, is_needed: impl Fn(&str) -> bool) {
        self.cache.retain(is_needed);
    }

    pub fn counts(&self) -> ContainerCounts {
        self.cache.counts()
    }
}
