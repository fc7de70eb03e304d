//! Names of generated code, as the runtimes that generate it write them down for profilers, and the
//! time since when they hold.

pub mod code_unwind_rows;
mod cpu_budget;
pub mod cpython_trampolines;
pub mod jitdump;
pub mod memory_budget;
pub mod name_formats;
pub mod perf_map;
pub mod timeline;
