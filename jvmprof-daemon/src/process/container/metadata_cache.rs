//! What is known so far: between those who ask and the thread that knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{ContainerCounts, ContainerMetadata, Lookup, MAX_KNOWN};

/// A container's id, on its way to the thread that asks.
pub(super) type Wanted = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct Shared {
    known: Mutex<Known>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    containers: HashMap<Arc<str>, Entry>,
    runtimes: Runtimes,
    counts: ContainerCounts,
}

#[derive(Debug)]
enum Entry {
    Known(Arc<ContainerMetadata>),
    /// Asked for since then.
    Wanted(Instant),
}

/// Whether there is anyone to ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Runtimes {
    /// Nobody has looked yet.
    #[default]
    NotLooked,
    /// No socket is there.
    None,
    /// At least one answers, or hasn't been asked yet.
    Some,
    /// None has answered since then.
    Silent(Instant),
}

impl Shared {
    /// `send` has a container asked for; false if there is no room.
    pub(super) fn lookup(
        &self,
        id: &str,
        now: Instant,
        wait: Duration,
        send: impl FnOnce(Wanted) -> bool,
    ) -> Lookup {
        let mut known = self.lock();
        let since = match known.containers.get(id) {
            Some(Entry::Known(metadata)) => return Lookup::Known(Arc::clone(metadata)),
            Some(Entry::Wanted(since)) => *since,
            None => {
                let id: Arc<str> = id.into();
                if known.containers.len() >= MAX_KNOWN || !send(Arc::clone(&id)) {
                    known.counts.turned_away += 1;
                    return Lookup::Unknown;
                }
                known.containers.insert(id, Entry::Wanted(now));
                now
            }
        };
        let in_time = |since: Instant| now.saturating_duration_since(since) < wait;
        let awaited = match known.runtimes {
            Runtimes::None => false,
            // Who starts while nobody answers doesn't wait once more for each container.
            Runtimes::Silent(silent) => in_time(since) && in_time(silent),
            Runtimes::NotLooked | Runtimes::Some => in_time(since),
        };
        if awaited { Lookup::Awaited } else { Lookup::Unknown }
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

    /// True if somebody still wants to know.
    pub(super) fn is_wanted(&self, id: &str) -> bool {
        matches!(self.lock().containers.get(id), Some(Entry::Wanted(_)))
    }

    pub(super) fn learned(&self, id: &Arc<str>, metadata: ContainerMetadata) {
        let mut known = self.lock();
        if let Some(entry) = known.containers.get_mut(id) {
            *entry = Entry::Known(Arc::new(metadata));
            known.counts.answered += 1;
        }
        drop(known);
        self.changed();
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut ContainerCounts)) {
        change(&mut self.lock().counts);
    }

    pub(super) fn set_runtimes(&self, runtimes: Runtimes) {
        let mut known = self.lock();
        if known.runtimes != runtimes {
            known.runtimes = runtimes;
            drop(known);
            self.changed();
        }
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Whoever panicked left nothing half done: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
