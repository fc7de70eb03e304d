//! Texts of entries, one behind the other.

use super::vec_growth::{growth, reserve};

/// Append-only. Each text is ended by a line feed, which none may hold.
#[derive(Debug, Default)]
pub(super) struct Names(String);

impl Names {
    /// No text.
    pub(super) const NONE: u32 = u32::MAX;

    /// Adds a text and gives its place. The caller has seen to it that there is room below `NONE`.
    pub(super) fn push(&mut self, name: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.reserve_exact(reserve(self.0.capacity(), self.0.len(), name.len() + 1));
        self.0.push_str(name);
        self.0.push('\n');
        at
    }

    pub(super) fn get(&self, at: u32) -> Option<&str> {
        let (name, _) = self.0.get(at as usize..)?.split_once('\n')?;
        Some(name)
    }

    /// By how many bytes a text of `bytes` lets memory grow.
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
