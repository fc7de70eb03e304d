//! Flags for the pauses of JVMs, of `record` and `daemon` alike.

use clap::Args;

/// Whether pauses are followed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pauses of JVMs")]
pub struct PauseArgs {
    /// See each time in which a JVM stops its threads at a safepoint, as for collections: when, how
    /// long, how long it took to stop them, and what for; samples in it have the label stw, and a
    /// daemon has these times as series jvm_pauses. Sums of all pauses need no option
    #[arg(long)]
    pub pauses: bool,
}
