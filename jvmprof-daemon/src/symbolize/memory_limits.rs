//! Memory limits of the symbolizer.

/// Limits of the symbolizer's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolMemoryLimits {
    /// Symbols and unwind rows of files.
    pub files: u64,
    /// Names of functions in them.
    pub names: u64,
    /// Methods and frames of JVMs.
    pub java: u64,
    /// DWARF of files, if lines are enabled.
    pub lines: u64,
    /// Frames of all processes, by address.
    pub frames: usize,
    /// Perf maps and jitdumps.
    pub jit: usize,
}

impl SymbolMemoryLimits {
    /// Returns limits with this number of bytes for files, and the others in proportion.
    pub fn of_files(files: u64) -> Self {
        Self { files, names: files / 4, java: files / 2, lines: 512 << 20, frames: 16 << 20, jit: 256 << 20 }
    }
}
