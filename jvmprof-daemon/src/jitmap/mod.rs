//! Names of generated code, as the runtimes that generate it write them down for profilers.

mod lines;
pub mod names;
pub mod perf_map;
mod ranges;
