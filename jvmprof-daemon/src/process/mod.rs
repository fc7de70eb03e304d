//! Profiled processes: identity, executable mappings, control group, container, runtime and
//! service.

pub mod cgroup;
pub mod container;
pub mod executable_mappings;
pub mod java_launcher;
pub mod process_table;
pub mod procfs;
pub mod runtime_label;
pub mod service_identity;

pub use executable_mappings::{Backing, MappedCode, Mappings};
pub use process_table::{Process, ProcessKey, ProcessTable};
