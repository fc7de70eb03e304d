//! `jvmprof record` on native programs. Needs root.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod command_line;
mod datadog;
mod diff;
mod exit_codes;
mod help;
mod mapped_files;
#[path = "../support/mod.rs"]
mod support;
mod thread_context;
mod waits;
mod whole_stacks;
