//! Names of threads as labels have them, and their numbers.

use std::collections::HashMap;
use std::sync::Arc;

/// Returns a name without control characters.
pub(super) fn with_numbers(name: &str) -> String {
    name.replace(char::is_control, " ")
}

/// Folds digits, so that threads that differ by a number have one name: `http-nio-8080-exec-12` is
/// `http-nio-N-exec-N`.
pub(super) fn folded(name: &str) -> String {
    let mut folded = String::with_capacity(name.len());
    let mut in_number = false;
    for char in name.chars() {
        let is_digit = char.is_ascii_digit();
        if !is_digit {
            folded.push(if char.is_control() { ' ' } else { char });
        } else if !in_number {
            folded.push('N');
        }
        in_number = is_digit;
    }
    folded
}

/// Names of threads by number, so that a key is a few integers.
#[derive(Debug)]
pub(super) struct ThreadNames {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// Number of names beyond the limit.
    pub(super) others: u64,
}

/// Maximum number of names; processes may make up any number of them.
pub(super) const MAX_NAMES: usize = 16_384;

impl Default for ThreadNames {
    /// Makes an empty list. Number 0 is no name.
    fn default() -> Self {
        Self { numbers: HashMap::new(), names: vec!["".into()], others: 0 }
    }
}

impl ThreadNames {
    /// Returns a name's number. Names beyond the limit share one.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name: Arc<str> = if self.names.len() < MAX_NAMES {
            name.into()
        } else {
            self.others += 1;
            "[other]".into()
        };
        *self.numbers.entry(Arc::clone(&name)).or_insert_with(|| {
            self.names.push(name);
            u32::try_from(self.names.len() - 1).unwrap_or(0)
        })
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_of_threads_are_folded() {
        assert_eq!(with_numbers("pool-1\n-thread-2"), "pool-1 -thread-2");
        for (name, expected) in [
            ("pool-1\n-thread-2", "pool-N -thread-N"),
            ("http-nio-8080-exec-12", "http-nio-N-exec-N"),
            ("GC Thread#0", "GC Thread#N"),
            ("C2 CompilerThre", "CN CompilerThre"),
            ("N1N22", "NNNN"),
            ("main", "main"),
            ("a\nb", "a b"),
            ("", ""),
        ] {
            assert_eq!(folded(name), expected, "{name:?}");
        }
    }
}
