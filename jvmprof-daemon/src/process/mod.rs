//! Profiled processes: identity, executable mappings, control group, container, runtime, service
//! and published context.

pub mod cgroup;
pub mod container;
pub mod executable_mappings;
pub mod java_launcher;
pub mod language_runtime;
pub mod process_context;
pub mod process_table;
pub mod procfs;
pub mod resource_attributes;
pub mod service_identity;

pub use executable_mappings::{Backing, MappedCode, Mappings};
pub use process_table::{Process, ProcessKey, ProcessTable};
