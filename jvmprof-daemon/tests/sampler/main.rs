//! The sampler in this process, by itself and in the pipeline: samples, waits in parts, the names
//! of the kernel. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod kernel_names;
mod sampling;
#[path = "../support/mod.rs"]
mod support;
mod waits_in_parts;
