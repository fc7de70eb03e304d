//! Recordings of JVMs, and what `inspect` and `doctor` say of them. A binary of its own: a
//! recording needs the processors that other tests of HotSpot keep busy. Needs root, the JDKs of
//! `JVMPROF_TEST_JDKS`, and Chromium.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod allocation;
mod allocation_targets;
#[allow(dead_code, reason = "the pages' tests need more of it")]
#[path = "../page/browser.rs"]
mod browser;
mod idle;
mod inspect;
mod java_view;
mod locks;
mod pauses;
mod stacks;
mod stub_analyses;
#[path = "../support/mod.rs"]
mod support;
mod thread_context;
mod thread_kinds;
mod top;
mod virtual_threads;
mod waits;
mod wall;
