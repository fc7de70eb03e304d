//! The sampler in this process: samples and the names of the kernel. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod kernel_names;
mod sampling;
