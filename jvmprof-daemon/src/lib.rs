//! The library of the `jvmprof` daemon: from kernel samples to pprof.
//!
//! One folder a subject. A folder imports only from `jvmprof-common`, from the shared value types
//! in [`types`], from `generational_cache` and `intern`, and from folders above it in this list.

pub mod clock;
mod generational_cache;
mod intern;
pub mod types;

pub mod own_process;

pub mod proto;

pub mod sampler;

pub mod process;

pub mod native;

pub mod hotspot;

pub mod kernel_tables;

pub mod jit;

pub mod profile;

pub mod symbolize;

pub mod export;

pub mod config;
pub mod telemetry;

pub mod pipeline;

pub mod app;
