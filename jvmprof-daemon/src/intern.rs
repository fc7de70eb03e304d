//! Equal values that many hold, held once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// New values, at least, before those that nobody else holds any more are removed.
const SWEEP_AFTER: usize = 1024;

/// Values that are shared by all who have an equal one. It is looked for those that nobody else
/// holds any more when there are a quarter more than were held at the last look.
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
    /// The one that is held of those equal to `value`.
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
