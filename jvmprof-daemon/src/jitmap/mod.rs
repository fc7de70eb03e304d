//! Names of generated code, as the runtimes that generate it write them down for profilers, and the
//! time since when they hold.

pub mod attach;
pub mod budget;
pub mod jitdump;
mod lines;
pub mod names;
mod pace;
pub mod perf_map;
pub mod process_dump;
pub mod process_map;
pub mod timeline;
pub mod trampolines;
pub mod unwinding;
pub mod watcher;
