//! The rings that the kernel fills: perf records of process events, their order, and waiting for
//! them.

pub(super) mod epoll;
pub(super) mod event_order;
pub(super) mod perf_records;
