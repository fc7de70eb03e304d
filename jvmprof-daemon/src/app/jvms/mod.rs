//! The JVMs of this host, as `doctor`, `inspect` and `ps` report them.

pub(super) mod hidden;
pub(super) mod host_search;
pub(super) mod inspector;
pub(super) mod named;
pub(super) mod ps;
