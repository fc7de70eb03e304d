//! The daemon's own telemetry: metrics, health and logs.
//!
//! Counters are plain numbers of the modules that count. The event loop copies them into a
//! [`MetricsSnapshot`] when a scrape requests one, so that nothing on a sample's way locks or
//! formats anything. [`metrics`] has the table of all metrics, [`HealthMonitor`] connects the event
//! loop with the thread of the [`http_server`], and [`log`] writes to standard error.

mod health;
pub mod http_server;
pub mod log;
pub mod metrics;
mod snapshot;

pub use health::{HANG_TIMEOUT, HealthMonitor};
pub use snapshot::{CpuBudgetStatus, HostStatus, MetricsSnapshot};
