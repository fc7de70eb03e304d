//! A limit of memory that several owners share, such as the caches of all processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that several owners share.
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

    /// Returns true if more bytes are in use than the limit.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.used() > self.limit
    }
}

/// The part of a budget that one owner takes. It is released when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl MemoryReservation {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Returns the bytes that this reservation may have by now: those that it has, and all that are
    /// free.
    pub(crate) fn available(&self) -> usize {
        self.bytes + self.budget.limit.saturating_sub(self.budget.used())
    }

    /// Returns the bytes that are in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes to those in use.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.set(self.bytes + bytes);
    }

    /// Sets the bytes that are in use.
    pub(crate) fn set(&mut self, bytes: usize) {
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
        assert_eq!((first.available(), second.available()), (100, 30));
        first.set(10);
        assert_eq!(second.available(), 90);
        drop(first);
        assert_eq!(second.available(), 100);
    }
}
