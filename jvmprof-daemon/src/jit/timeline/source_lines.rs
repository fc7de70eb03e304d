//! Source lines of generated code.

use std::sync::Arc;

/// Source lines of an entry's code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeLines {
    /// Offset from the code's start in bytes, line (1-based, 0 unknown), index into `files`,
    /// ordered by offset.
    pub rows: Vec<(u32, u32, u32)>,
    pub files: Vec<Arc<str>>,
}

impl CodeLines {
    /// Returns file and line of the code at `offset`: those of the last row at or before it.
    pub fn at(&self, offset: u32) -> Option<(&Arc<str>, u32)> {
        let after = self.rows.partition_point(|row| row.0 <= offset);
        let (_, line, file) = self.rows.get(after.checked_sub(1)?)?;
        Some((self.files.get(*file as usize)?, *line))
    }

    pub(super) fn size_bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.len() + 32).sum();
        size_of::<Self>() + 16 + self.rows.capacity() * size_of::<(u32, u32, u32)>() + files
    }
}
