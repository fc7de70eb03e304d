//! Source lines of generated code.

use std::sync::Arc;

/// Source lines of an entry's code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeLines {
    /// Offset from the code's start in bytes, line (1-based, 0 unknown), index into `files`. By
    /// offset.
    pub places: Vec<(u32, u32, u32)>,
    pub files: Vec<Arc<str>>,
}

impl CodeLines {
    /// File and line of the code at `offset`: those of the last place at or before it.
    pub fn at(&self, offset: u32) -> Option<(&Arc<str>, u32)> {
        let behind = self.places.partition_point(|place| place.0 <= offset);
        let (_, line, file) = self.places.get(behind.checked_sub(1)?)?;
        Some((self.files.get(*file as usize)?, *line))
    }

    pub(super) fn size_bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.len() + 32).sum();
        size_of::<Self>() + 16 + self.places.capacity() * size_of::<(u32, u32, u32)>() + files
    }
}
