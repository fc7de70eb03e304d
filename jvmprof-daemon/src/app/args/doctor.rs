//! Flags of `jvmprof doctor`.

use clap::Args;

/// Arguments of `jvmprof doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  jvmprof doctor                  what works, what is missing, what to do; and the running JVMs
  jvmprof doctor --json | jq .    for programs

Exit code: 0 profiling works, 1 something that it needs is missing.")]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Also load each kernel program and report the verifier's result
    #[arg(long)]
    pub programs: bool,
}
