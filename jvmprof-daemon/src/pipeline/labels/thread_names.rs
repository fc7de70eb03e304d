//! Names of threads by number.

use std::collections::HashMap;
use std::sync::Arc;

/// Names of threads by number, so that a key is a few integers.
#[derive(Debug)]
pub(super) struct ThreadNames {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// Number of names beyond the limit.
    pub(super) others: u64,
}

/// Maximum number of names; processes may make up any number of them.
const MAX_NAMES: usize = 16_384;

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
