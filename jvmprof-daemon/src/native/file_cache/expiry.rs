//! Weight and lifetime of entries in the file cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::notification::RemovalCause;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::{AtomicCacheCounters, LoadResult};

/// Bytes that an entry takes beside its data: key, hash table slot, nodes of the cache's lists.
const ENTRY_BYTES: usize = 512;

/// The weight of an entry, and its lifetime.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub(super) bytes: usize,
    /// Time without use after which the entry is evicted.
    pub(super) idle: Duration,
}

/// Returns the builder of a cache with a limit of bytes. Errors expire after `errors_for`, other
/// entries as `kept` says.
pub(super) fn builder<K, V>(
    bytes: u64,
    errors_for: Duration,
    counters: &Arc<AtomicCacheCounters>,
    kept: impl Fn(&V) -> Retention + Clone + Send + Sync + 'static,
) -> Cache<K, LoadResult<V>>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let counters = Arc::clone(counters);
    let weigh = kept.clone();
    Cache::builder()
        .max_capacity(bytes)
        .eviction_policy(EvictionPolicy::lru())
        .weigher(move |_: &K, loaded: &LoadResult<V>| {
            let data = loaded.as_ref().map_or(0, |value| weigh(value).bytes);
            u32::try_from(data + ENTRY_BYTES).unwrap_or(u32::MAX)
        })
        .expire_after(IdleExpiry { errors_for, kept })
        .eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                counters.evictions.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()
}

/// Expires entries that weren't used for a while: names that were resolved are cached apart.
struct IdleExpiry<F> {
    errors_for: Duration,
    kept: F,
}

impl<K, V, F: Fn(&V) -> Retention> Expiry<K, LoadResult<V>> for IdleExpiry<F> {
    fn expire_after_create(&self, _key: &K, loaded: &LoadResult<V>, _created: Instant) -> Option<Duration> {
        Some(loaded.as_ref().map_or(self.errors_for, |value| (self.kept)(value).idle))
    }

    fn expire_after_read(
        &self,
        _key: &K,
        loaded: &LoadResult<V>,
        _read: Instant,
        left: Option<Duration>,
        _changed: Instant,
    ) -> Option<Duration> {
        loaded.as_ref().map_or(left, |value| Some((self.kept)(value).idle))
    }
}
