//! `jvmprof daemon`: configuration, delivery, telemetry and uploads. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod configuration;
mod cpu_budget;
mod debug_file_uploads;
mod debuginfo_server;
mod delivery;
mod host_fraction;
mod idle_threads;
mod jvm_time;
mod pauses;
#[path = "../support/mod.rs"]
mod support;
mod telemetry;
