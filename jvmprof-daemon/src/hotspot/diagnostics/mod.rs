//! What a JVM says of its own run: flags, performance counters, the program that it was started
//! for.

pub mod perf_counters;
pub(crate) mod vm_flags;
