//! Processes whose thread contexts aren't read, although they publish some: each counts once.

use std::collections::{HashMap, HashSet};

use crate::process::ProcessKey;

/// Processes that are followed, at most: as many as the kernel's map holds.
const MAX_PROCESSES: usize = 8192;

/// Their numbers, and those of them that still run.
#[derive(Debug, Default)]
pub(super) struct UnreadProcesses {
    /// See [`super::ThreadContextCounts`].
    pub(super) over_limit: u64,
    pub(super) refused: u64,
    known_over_limit: HashSet<ProcessKey>,
    known_refused: HashSet<ProcessKey>,
}

impl UnreadProcesses {
    /// Returns true if a process is among those that are followed, or may become one of them; else
    /// it is counted.
    pub(super) fn has_capacity<T>(&mut self, followed: &HashMap<ProcessKey, T>, key: ProcessKey) -> bool {
        let has_capacity = followed.len() < MAX_PROCESSES || followed.contains_key(&key);
        if !has_capacity && self.known_over_limit.insert(key) {
            self.over_limit += 1;
        }
        has_capacity
    }

    /// Counts a process that the kernel's map has refused.
    pub(super) fn refuse(&mut self, key: ProcessKey) {
        if self.known_refused.insert(key) {
            self.refused += 1;
        }
    }

    /// Forgets processes that have ended.
    pub(super) fn retain(&mut self, live: &HashSet<ProcessKey>) {
        self.known_over_limit.retain(|key| live.contains(key));
        self.known_refused.retain(|key| live.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_beyond_the_limit_counts_once_however_many_samples_it_has() {
        let mut unread = UnreadProcesses::default();
        let number = |number: usize| ProcessKey::numbered(number as u64);
        let mut followed = HashMap::new();
        for at in 0..MAX_PROCESSES {
            assert!(unread.has_capacity(&followed, number(at)));
            followed.insert(number(at), ());
        }
        let (late, later) = (number(MAX_PROCESSES), number(MAX_PROCESSES + 1));
        for key in [late, late, number(0), later, late] {
            assert_eq!(unread.has_capacity(&followed, key), key == number(0));
        }
        unread.retain(&HashSet::from([late]));
        assert!(!unread.has_capacity(&followed, late));
        assert_eq!(unread.over_limit, 2);
        followed.remove(&number(0));
        assert!(unread.has_capacity(&followed, late), "one has ended");
        assert_eq!((unread.over_limit, unread.refused), (2, 0));
    }

    #[test]
    fn a_process_that_the_kernel_refuses_counts_once_however_often_it_is_tried() {
        let mut unread = UnreadProcesses::default();
        for number in [1, 2, 1, 1] {
            unread.refuse(ProcessKey::numbered(number));
        }
        assert_eq!((unread.over_limit, unread.refused), (0, 2));
        unread.retain(&HashSet::new());
        assert!(unread.known_refused.is_empty());
    }
}
