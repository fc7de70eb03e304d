//! What the daemon tells of itself: metrics, health, and how it logs.
//!
//! Counters live where things happen and are plain numbers there. The event loop copies them into a
//! [`Snapshot`] when a scrape asks for one, so that nothing on a sample's way locks or formats
//! anything.

mod board;
pub mod http;
pub mod log;
pub mod metrics;
mod process;
mod snapshot;

pub use board::{Board, HANG};
pub use process::{HostCpu, SelfUsage, cpu_time};
pub use snapshot::{Budget, Snapshot, TargetCounts};
