//! Arguments of `jvmprof ps`.

use clap::Args;

/// Arguments of `jvmprof ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  jvmprof ps                                        the JVMs of this host
  jvmprof record -p MyService -d 10s -o x.html      record one of them by its main class")]
pub struct PsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
