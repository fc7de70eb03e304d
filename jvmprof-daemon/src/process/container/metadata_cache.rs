//! Cache of containers' metadata, shared by the pipeline and the query thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{ContainerCounts, ContainerMetadata, MAX_CONTAINERS, MetadataLookup};

/// Id of a container.
pub(super) type ContainerId = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct MetadataCache {
    state: Mutex<CacheState>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct CacheState {
    containers: HashMap<ContainerId, CacheEntry>,
    availability: RuntimeAvailability,
    counts: ContainerCounts,
}

#[derive(Debug)]
enum CacheEntry {
    Found(Arc<ContainerMetadata>),
    /// Queried since this time.
    Pending(Instant),
}

/// Availability of container runtimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RuntimeAvailability {
    /// Sockets haven't been searched yet.
    #[default]
    NotDiscovered,
    /// No socket exists.
    NoSocket,
    /// A runtime answers, or hasn't been queried yet.
    Available,
    /// No runtime has answered since this time.
    Unresponsive(Instant),
}

impl MetadataCache {
    /// Returns the metadata of a container. `send` queues a query; it returns false if the queue is
    /// full.
    pub(super) fn lookup(
        &self,
        id: &str,
        now: Instant,
        wait: Duration,
        send: impl FnOnce(ContainerId) -> bool,
    ) -> MetadataLookup {
        let mut state = self.lock();
        let since = match state.containers.get(id) {
            Some(CacheEntry::Found(metadata)) => return MetadataLookup::Found(Arc::clone(metadata)),
            Some(CacheEntry::Pending(since)) => *since,
            None => {
                let id: Arc<str> = id.into();
                if state.containers.len() >= MAX_CONTAINERS || !send(Arc::clone(&id)) {
                    state.counts.over_limit += 1;
                    return MetadataLookup::NotFound;
                }
                state.containers.insert(id, CacheEntry::Pending(now));
                now
            }
        };
        let in_time = |since: Instant| now.saturating_duration_since(since) < wait;
        let is_pending = match state.availability {
            RuntimeAvailability::NoSocket => false,
            // If no runtime answers, not every new container waits for it once more.
            RuntimeAvailability::Unresponsive(silent) => in_time(since) && in_time(silent),
            RuntimeAvailability::NotDiscovered | RuntimeAvailability::Available => in_time(since),
        };
        if is_pending { MetadataLookup::Pending } else { MetadataLookup::NotFound }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn retain(&self, is_needed: impl Fn(&str) -> bool) {
        self.lock().containers.retain(|id, _| is_needed(id));
    }

    pub(super) fn counts(&self) -> ContainerCounts {
        self.lock().counts
    }

    /// Returns true if the container is still needed and not found.
    pub(super) fn is_pending(&self, id: &str) -> bool {
        matches!(self.lock().containers.get(id), Some(CacheEntry::Pending(_)))
    }

    /// Stores the metadata of a container.
    pub(super) fn insert(&self, id: &Arc<str>, metadata: ContainerMetadata) {
        let mut state = self.lock();
        if let Some(entry) = state.containers.get_mut(id) {
            *entry = CacheEntry::Found(Arc::new(metadata));
            state.counts.found += 1;
        }
        drop(state);
        self.changed();
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut ContainerCounts)) {
        change(&mut self.lock().counts);
    }

    pub(super) fn set_availability(&self, availability: RuntimeAvailability) {
        let mut state = self.lock();
        if state.availability != availability {
            state.availability = availability;
            drop(state);
            self.changed();
        }
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Locks the state. A thread that panicked left no change half done: each is one assignment.
    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
