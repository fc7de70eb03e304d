//! Names of generated code (JIT), as runtimes write them down for profilers: perf maps and
//! jitdumps.
//!
//! Such a file describes the code at an address *now*; a sample is from *then*. So [`timeline`]
//! keeps the entries of a process with the times when they came and went, and returns the code that
//! was at an address at the time of a sample. [`perf_map`] and [`jitdump`] find, read and parse the
//! two kinds of files, within a [memory budget](crate::memory_budget) that the files of all
//! processes share, since any process can make its runtime write a lot, and within a budget of CPU
//! time. [`name_formats`] removes each runtime's markup from the names. Code without frame pointers
//! is unwound by [`code_unwind_rows`] from jitdumps, and by the known instructions of
//! [`cpython_trampolines`].
//!
//! HotSpot's code needs none of this: see [`crate::hotspot`]. Design: `docs/jit.md`.

pub mod code_unwind_rows;
pub mod cpython_trampolines;
pub mod jitdump;
pub mod name_formats;
pub mod perf_map;
mod reading_budget;
pub mod timeline;

/// Most bytes that the entries of one file take.
const MAX_FILE_BYTES: usize = 160 << 20;
