//! What the host's container runtimes know of containers: pods, namespaces, names, images.
//!
//! The node's own runtime is asked, over its socket: no API server is loaded and no rights in the
//! cluster are needed. Nothing waits here: who wants to know asks, is told that the answer is on
//! its way, and asks again when [`Containers::generation`] has changed.

mod cri_client;
mod docker_client;
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

use metadata_cache::{Shared, Wanted};

/// Containers that wait to be asked for; more are asked for later.
const MAX_QUEUED: usize = 1024;
/// Containers that are remembered; more than that run on no host that was heard of.
const MAX_KNOWN: usize = 16_384;
/// Bytes of a name, an image, a label's or an annotation's value; more is cut off. Whoever makes a
/// label of it cuts before that, at 1,024 characters.
pub const MAX_VALUE_BYTES: usize = 4 * 1025;

/// What is known of a container. What its runtime doesn't tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMetadata {
    /// Kubernetes namespace of the pod.
    pub namespace: Option<String>,
    pub pod: Option<String>,
    pub pod_uid: Option<String>,
    /// Name of the container in its pod, or Docker's name for it. `None` for what holds a pod's
    /// namespaces.
    pub container: Option<String>,
    /// As the pod's author wrote it where the runtime tells, such as
    /// `registry.example/shop/cart:1.2`.
    pub image: Option<String>,
    /// The pod's labels, as far as [`ContainersOptions::pod_labels`] lets them through; Docker's
    /// are the container's own.
    pub pod_labels: BTreeMap<String, String>,
    /// The pod's annotations, as far as [`ContainersOptions::pod_annotations`] lets them through.
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whom to ask, what for, and for how long.
#[derive(Clone, Debug)]
pub struct ContainersOptions {
    /// Sockets to ask; empty: those of the well-known places that exist.
    pub sockets: Vec<PathBuf>,
    /// Names of pod labels to keep; `*` at the end stands for any rest.
    pub pod_labels: BTreeSet<String>,
    /// The same for annotations.
    pub pod_annotations: BTreeSet<String>,
    /// How long a container may stay [`Lookup::Awaited`].
    pub wait: Duration,
    /// How long a runtime may take for an answer.
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

/// Why containers can't be asked for at all.
#[derive(Debug, thiserror::Error)]
#[error("starting the thread that asks container runtimes: {0}")]
pub struct ContainersError(#[from] io::Error);

/// What asking for a container came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Known(Arc<ContainerMetadata>),
    /// The answer may still come in time.
    Awaited,
    /// No runtime knows it, none is there to be asked, or it took too long. It may still become
    /// known.
    Unknown,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerCounts {
    /// Questions that were sent to a runtime.
    pub asked: u64,
    /// Containers that became known.
    pub answered: u64,
    /// Questions that no runtime knew an answer to; they are asked again.
    pub not_found: u64,
    /// Questions that failed: no connection, an error, no answer in time.
    pub failed: u64,
    /// Containers that weren't asked for because too many are known or wait; they are asked for
    /// later.
    pub turned_away: u64,
}

/// See the module's documentation. Its thread ends with it.
#[derive(Debug)]
pub struct Containers {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Wanted>,
    wait: Duration,
}

impl Containers {
    /// Starts the thread that asks; it sleeps while there is nothing to ask.
    ///
    /// # Errors
    /// See [`ContainersError`].
    pub fn start(options: ContainersOptions) -> Result<Self, ContainersError> {
        let shared = Arc::new(Shared::default());
        let (queue, wanted) = mpsc::channel(MAX_QUEUED);
        let wait = options.wait;
        query_thread::spawn(options, Arc::clone(&shared), wanted)?;
        Ok(Self { shared, queue, wait })
    }

    /// What is known of this container; the first call for it has it asked for.
    ///
    /// `id`: the runtime's full id, as cgroup paths have it.
    pub fn lookup(&self, id: &str, now: Instant) -> Lookup {
        self.shared.lookup(id, now, self.wait, |wanted| self.queue.try_send(wanted).is_ok())
    }

    /// Changes whenever a lookup's result may have.
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// Forgets the containers that aren't needed any more.
    pub fn retain(&self, is_needed: impl Fn(&str) -> bool) {
        self.shared.retain(is_needed);
    }

    pub fn counts(&self) -> ContainerCounts {
        self.shared.counts()
    }
}
