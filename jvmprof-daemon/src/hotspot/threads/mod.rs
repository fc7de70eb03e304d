//! Java threads, and where the frames of virtual threads are kept.

pub(crate) mod continuation_entry;
pub(crate) mod gc_forwarding_tables;
pub(crate) mod java_threads;
pub(crate) mod stack_chunks;
