//! The daemon's own process: its allocator, capabilities and pid namespace, the priorities of its
//! threads, its memory limit, the resources that it uses, its standard error, and how it writes
//! other processes' text there.

pub mod allocator;
pub mod capabilities;
pub mod memory_limit;
pub mod pid_namespace;
mod resource_usage;
mod standard_error;
mod terminal_text;
pub mod thread_priority;
mod urgent_cpu;

pub use resource_usage::{HostCpu, SelfUsage, cpu_time};
pub(crate) use standard_error::stderr_line;
pub use standard_error::write_stderr_line;
pub use terminal_text::one_line;
pub use urgent_cpu::{DEFAULT_URGENT_PERCENT, UrgentCpu, UrgentCpuCounts, UrgentThread};
