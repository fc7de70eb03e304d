//! The JVMs of this host, as `doctor`, `inspect` and `ps` report them.

pub(super) mod host_search;
pub(super) mod inaccessible_processes;
pub(super) mod inspector;
pub(super) mod process_arguments;
pub(super) mod ps;
