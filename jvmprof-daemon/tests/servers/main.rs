//! Delivery to real servers, one a module: what they have is what the account says, also when they
//! are killed and come back. `cargo xtask test` builds them (Parca and Pyroscope with `--servers`).
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod all_at_once;
mod delivered;
mod otel_collector;
mod otel_limits;
mod otel_refusals;
mod otel_tls;
mod parca;
mod parca_limits;
mod parca_otlp;
mod pyroscope;
mod rate_limit;
mod server;
#[path = "../support/mod.rs"]
mod support;
