//! Virtual threads: where their continuations and the frames in the Java heap are kept, and which
//! of them wait.

pub(super) mod census;
pub(super) mod census_error;
pub(crate) mod census_fields;
pub(crate) mod continuation_entry;
pub(crate) mod field_lists;
mod frozen_stack;
mod heap_reader;
pub(crate) mod stack_chunks;
pub(crate) mod thaw_stubs;
mod thread_sets;
