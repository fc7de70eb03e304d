//! What the daemon tells of itself: metrics, health, and how it logs.
//!
//! Counters live where things happen and are plain numbers there. The event loop copies them into a
//! [`Snapshot`] when a scrape asks for one, so that nothing on a sample's way locks or formats
//! anything.

mod health;
pub mod http_server;
pub mod log;
pub mod metrics;
mod snapshot;

pub use health::{Board, HANG};
pub use snapshot::{Budget, Snapshot, TargetCounts};
