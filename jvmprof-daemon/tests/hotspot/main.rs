//! Reading HotSpot from outside, on real JVMs and on a process that only pretends to be one. Needs
//! root and the JDKs of `JVMPROF_TEST_JDKS`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

mod calls;
mod churn;
mod class_files;
mod hostile;
mod own_map;
mod real;
mod snapshot;
mod stub_names;
#[path = "../support/mod.rs"]
mod support;
