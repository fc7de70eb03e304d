//! Virtual threads: where their continuations and the frames in the Java heap are kept.

pub(crate) mod continuation_entry;
pub(crate) mod gc_forwarding_tables;
pub(crate) mod stack_chunks;
