//! Processes: who they are, when they began, and what code they have mapped.

pub mod cgroup;
pub mod container;
pub mod heap;
pub mod mappings;
pub mod memory_limit;
pub mod priority;
pub mod procfs;
pub mod runtime;
pub mod table;

pub use mappings::{Backing, MappedCode, Mappings};
pub use table::{Process, ProcessKey, ProcessTable};
