//! The kernel programs: loading, attaching, their maps, and what the verifier makes of them.

pub(super) mod allocation_maps;
mod global_values;
pub(super) mod kernel_symbols;
mod loader;
pub(super) mod maps;
mod object;
pub(super) mod off_cpu;
pub(super) mod pause_maps;
pub(super) mod process_filter;
pub(super) mod programs;
pub(super) mod thread_context_map;
pub(super) mod uprobes;
pub mod verifier_report;
