//! The daemon's own process: its allocator, capabilities, the priorities of its threads, its memory
//! limit, and the resources that it uses.

pub mod allocator;
pub mod capabilities;
pub mod memory_limit;
mod resource_usage;
pub mod thread_priority;

pub use resource_usage::{HostCpu, SelfUsage, cpu_time};
