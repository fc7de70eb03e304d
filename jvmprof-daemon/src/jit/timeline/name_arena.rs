//! Names of entries, one after the other in one allocation.

use super::vec_growth::{elements_to_reserve, growth};

/// Append-only names. Each ends in a line feed, which none may contain.
#[derive(Debug, Default)]
pub(super) struct NameArena(String);

impl NameArena {
    /// Offset that stands for no name.
    pub(super) const NONE: u32 = u32::MAX;

    /// Appends a name and returns its offset, which the caller keeps below `NONE`.
    pub(super) fn push(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.reserve_exact(elements_to_reserve(self.0.capacity(), self.0.len(), name.len() + 1));
        self.0.push_str(name);
        self.0.push('\n');
        at
    }

    pub(super) fn get(&self, at: u32) -> Option<&str> {
        let (name, _) = self.0.get(at as usize..)?.split_once('\n')?;
        Some(name)
    }

    /// Returns the bytes by which memory grows for a name of `bytes`.
    pub(super) fn growth(&self, bytes: usize) -> usize {
        growth(self.0.capacity(), self.0.len(), bytes)
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.0.capacity()
    }

    pub(super) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
