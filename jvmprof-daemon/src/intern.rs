//! Interning: one shared copy of equal values.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Least number of new values between two sweeps, which remove values without users.
const SWEEP_AFTER: usize = 1024;

/// Shared values. A sweep removes those without other users when there are a quarter more values
/// than after the last sweep.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: SWEEP_AFTER }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// Returns the shared value that equals `value`.
    pub(crate) fn share(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.known.shrink_to_fit();
            self.sweep_at = self.known.len() + SWEEP_AFTER.max(self.known.len() / 4);
        }
        self.known.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_as_long_as_somebody_holds_it() {
        let mut interner = Interner::default();
        let held = interner.share(Arc::new("held".to_owned()));
        assert!(Arc::ptr_eq(&held, &interner.share(Arc::new("held".to_owned()))));
        for number in 0..10 * SWEEP_AFTER {
            interner.share(Arc::new(number.to_string()));
        }
        assert!(interner.known.len() <= 1 + SWEEP_AFTER, "{} are kept", interner.known.len());
        assert!(Arc::ptr_eq(&held, &interner.share(Arc::new("held".to_owned()))));
    }
}
