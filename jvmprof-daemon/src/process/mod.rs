//! Profiled processes: identity, executable mappings, control group, container and runtime.

pub mod cgroup;
pub mod container;
pub mod executable_mappings;
pub mod process_table;
pub mod procfs;
pub mod runtime_label;

pub use executable_mappings::{Backing, MappedCode, Mappings};
pub use process_table::{Process, ProcessKey, ProcessTable};
