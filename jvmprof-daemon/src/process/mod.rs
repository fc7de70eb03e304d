//! Processes: who they are, when they began, and what code they have mapped.

pub mod mappings;
pub mod procfs;
pub mod table;

pub use mappings::{Backing, MappedCode, Mappings};
pub use table::{Process, ProcessKey, ProcessTable};
