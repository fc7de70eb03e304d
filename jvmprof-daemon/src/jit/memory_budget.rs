//! Memory limit shared by the entries of all processes' perf maps and jitdumps: any process can
//! make its runtime write a lot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes that the entries of one file take.
const MAX_FILE_BYTES: usize = 160 << 20;

/// A number of bytes that the files of all processes share.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl MemoryBudget {
    /// Makes a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the bytes that are in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The part of a budget that one file's entries take. It is released when this is dropped.
#[derive(Debug)]
pub(super) struct MemoryReservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl MemoryReservation {
    pub(super) fn new(budget: MemoryBudget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Returns the bytes that this reservation may have at most by now.
    pub(super) fn limit(&self) -> usize {
        let free = self.budget.limit.saturating_sub(self.budget.used());
        MAX_FILE_BYTES.min(self.bytes + free)
    }

    /// Sets the bytes that are in use.
    pub(super) fn set(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_takes_is_missing_for_others_until_it_is_gone() {
        let budget = MemoryBudget::new(100);
        let (mut first, second) = (MemoryReservation::new(budget.clone()), MemoryReservation::new(budget));
        first.set(70);
        assert_eq!((first.limit(), second.limit()), (100, 30));
        first.set(10);
        assert_eq!(second.limit(), 90);
        drop(first);
        assert_eq!(second.limit(), 100);
    }
}
