//! Memory for what is known of generated code, of all processes together: anybody can make a
//! runtime write a lot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::perf_map::PerfMapLimits;

/// A number of bytes that processes share.
#[derive(Clone, Debug)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl Budget {
    /// `limit`: bytes.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Bytes that may be taken.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one file's entries take of it; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// How much it may be at most, in bytes.
    pub(super) fn limit(&self) -> usize {
        let free = self.budget.limit.saturating_sub(self.budget.used.load(Ordering::Relaxed));
        PerfMapLimits::default().memory_bytes.min(self.bytes + free)
    }

    /// It is so much now.
    pub(super) fn set(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_takes_is_missing_for_others_until_it_is_gone() {
        let budget = Budget::new(100);
        let (mut first, second) = (Share::new(budget.clone()), Share::new(budget));
        first.set(70);
        assert_eq!((first.limit(), second.limit()), (100, 30));
        first.set(10);
        assert_eq!(second.limit(), 90);
        drop(first);
        assert_eq!(second.limit(), 100);
    }
}
