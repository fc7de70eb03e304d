//! Cache with two generations: entries that were used since the last rotation, and those used
//! before it.
//!
//! An entry costs no more than its slot in a table, where a cache that keeps the order of all uses
//! takes some 250 bytes and a few hundred nanoseconds for each. In exchange, that order is lost
//! within half of the cache.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::types::FastHasher;

/// A cache with a limit of bytes and two generations.
pub(crate) struct GenerationalCache<K, V> {
    /// The limit of each of the two generations.
    max_bytes: u64,
    rotate_after: Duration,
    weight: fn(&V) -> usize,
    inner: Mutex<Inner<K, V>>,
}

struct Inner<K, V> {
    young: Generation<K, V>,
    old: Generation<K, V>,
    rotated: Instant,
}

struct Generation<K, V> {
    entries: HashMap<K, V, FastHasher>,
    bytes: u64,
}

impl<K, V> Default for Generation<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), bytes: 0 }
    }
}

impl<K, V> std::fmt::Debug for GenerationalCache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerationalCache").field("max_bytes", &self.max_bytes).finish_non_exhaustive()
    }
}

impl<K: Eq + Hash, V: Clone> GenerationalCache<K, V> {
    /// Makes a cache. `bytes` is the limit of both generations together. An entry that wasn't used
    /// for `idle` is evicted; for half of that time it stays unless the limit is reached. `weight`
    /// returns the bytes of a value.
    pub(crate) fn new(bytes: u64, idle: Duration, weight: fn(&V) -> usize) -> Self {
        let inner =
            Inner { young: Generation::default(), old: Generation::default(), rotated: Instant::now() };
        Self { max_bytes: bytes / 2, rotate_after: idle / 2, weight, inner: Mutex::new(inner) }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut inner = self.lock();
        if let Some(value) = inner.young.entries.get(key) {
            return Some(value.clone());
        }
        let (key, value) = inner.old.entries.remove_entry(key)?;
        let bytes = self.bytes(&value);
        inner.old.bytes -= bytes;
        self.put(&mut inner, key, value.clone(), bytes);
        Some(value)
    }

    /// Inserts a value, unless there is one already.
    pub(crate) fn insert(&self, key: K, value: V) {
        let bytes = self.bytes(&value);
        let mut inner = self.lock();
        let is_known = inner.young.entries.contains_key(&key) || inner.old.entries.contains_key(&key);
        if !is_known && bytes <= self.max_bytes {
            self.put(&mut inner, key, value, bytes);
        }
    }

    /// Removes each entry whose key isn't to be kept.
    pub(crate) fn retain(&self, keep: impl Fn(&K) -> bool) {
        let mut inner = self.lock();
        let Inner { young, old, .. } = &mut *inner;
        for generation in [young, old] {
            let Generation { entries, bytes } = generation;
            entries.retain(|key, value| {
                let kept = keep(key);
                *bytes -= if kept { 0 } else { self.bytes(value) };
                kept
            });
        }
    }

    /// Evicts entries that weren't used for long: the old generation goes, and the young one takes
    /// its place. To be called now and then.
    pub(crate) fn rotate_if_due(&self) {
        let mut inner = self.lock();
        if inner.rotated.elapsed() >= self.rotate_after {
            inner.rotate();
        }
    }

    /// Returns the bytes in use, and their limit.
    pub(crate) fn size(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.young.bytes + inner.old.bytes, 2 * self.max_bytes)
    }

    fn put(&self, inner: &mut Inner<K, V>, key: K, value: V, bytes: u64) {
        if inner.young.bytes + bytes > self.max_bytes {
            inner.rotate();
        }
        inner.young.bytes += bytes;
        inner.young.entries.insert(key, value);
    }

    /// Returns the bytes of an entry, with its slot in a table that is three quarters full.
    fn bytes(&self, value: &V) -> u64 {
        ((self.weight)(value) + size_of::<(K, V)>() * 4 / 3) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K, V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Inner<K, V> {
    fn rotate(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.rotated = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: usize = size_of::<(u32, u32)>() * 4 / 3;

    fn of(entries: usize) -> GenerationalCache<u32, u32> {
        GenerationalCache::new((entries * (ENTRY + 100)) as u64, Duration::from_secs(600), |_| 100)
    }

    #[test]
    fn what_is_asked_for_stays_and_the_limit_holds() {
        let cache = of(20);
        for number in 0..1000 {
            cache.insert(number, number + 1);
            assert_eq!(cache.get(&number), Some(number + 1));
            assert_eq!(cache.get(&0), Some(1), "asked for all the time, at {number}");
            let (bytes, limit) = cache.size();
            assert!(bytes <= limit, "{bytes}");
        }
        assert_eq!((cache.get(&500), cache.get(&999)), (None, Some(1000)));
        let last = (980..1000).filter(|number| cache.get(number).is_some()).count();
        assert!(last >= 9, "half of the room is for the newest: {last}");
    }

    #[test]
    fn what_is_larger_than_there_is_room_for_is_not_kept_and_nothing_goes_for_it() {
        let cache = GenerationalCache::<u32, usize>::new(2000, Duration::from_secs(600), |bytes| *bytes);
        cache.insert(1, 500);
        cache.insert(2, 5000);
        cache.insert(1, 600);
        assert_eq!((cache.get(&1), cache.get(&2)), (Some(500), None), "the first one is kept");
    }

    #[test]
    fn what_is_not_to_be_kept_goes_from_both_generations() {
        let cache = of(20);
        for number in 0..15 {
            cache.insert(number, number);
        }
        cache.retain(|number| number % 5 == 0);
        let left: Vec<u32> = (0..15).filter_map(|number| cache.get(&number)).collect();
        assert_eq!(left, [0, 5, 10]);
        assert_eq!(cache.size().0, 3 * (ENTRY + 100) as u64);
    }

    #[test]
    fn what_nobody_asks_for_goes_with_time() {
        let cache = GenerationalCache::<u32, u32>::new(1 << 20, Duration::ZERO, |_| 1);
        cache.insert(1, 1);
        cache.insert(2, 2);
        cache.rotate_if_due();
        assert_eq!(cache.get(&1), Some(1), "once is not enough");
        cache.rotate_if_due();
        assert_eq!((cache.get(&1), cache.get(&2)), (Some(1), None));
        let bytes = cache.size().0;
        cache.rotate_if_due();
        cache.rotate_if_due();
        assert!(bytes > 0 && cache.size().0 == 0, "{bytes}");
    }
}
