//! The subcommands of `jvmprof`, one file each, and the pipeline they share.

pub mod pipeline;
