//! Generated code: perf maps, jitdumps, and the runtimes that write them. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod ambiguity;
mod file_locations;
mod jitdump;
mod perf_map;
mod reading_pace;
mod recording;
mod reused_addresses;
mod runtimes;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod watcher;
