//! Flags of `jvmprof doctor`.

use clap::Args;

/// Arguments of `jvmprof doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Also load each kernel program and report the verifier's result
    #[arg(long)]
    pub programs: bool,
}
