//! Arguments of `jvmprof top`.

use std::time::Duration;

use clap::Args;

use super::sampling::{CpuSamplingArgs, NativeSymbolArgs};
use super::values::{ProcessArg, duration};

const EXAMPLES: &str = "\
Examples:
  jvmprof top                          the whole host: its JVMs, and the methods that cost most
  jvmprof top -p MyService             a JVM by its main class
  jvmprof top --once -d 5s --java      one table of 5 s, to read or to pipe

Keys: q quit, space pause, w window or since begin, j Java's frames only, s t n sort by self, total,
name, / filter by text, Tab next JVM, arrows scroll, ? help. Needs what `record` needs.";

/// Arguments of `jvmprof top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Only this process: its pid, or the name of a program or of a JVM's main class (repeatable)
    #[arg(short, long = "pid", value_name = "PID|NAME", allow_negative_numbers = true)]
    pub processes: Vec<ProcessArg>,

    /// Length of the sliding window, and with --once the time until the table
    #[arg(short, long, value_name = "TIME", default_value = "10s",
          value_parser = duration(Duration::from_secs(1)..=Duration::from_mins(10)))]
    pub duration: Duration,

    /// Begin with Java's frames only: time of the kernel, native code and the JVM's stubs is their
    /// nearest Java caller's
    #[arg(long)]
    pub java: bool,

    /// Print one table as text, and end; needs no terminal
    #[arg(long)]
    pub once: bool,

    /// Rows of that table
    #[arg(long, value_name = "N", default_value_t = 20, requires = "once",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rows: u32,

    #[command(flatten)]
    pub sampling: CpuSamplingArgs,

    #[command(flatten)]
    pub native: NativeSymbolArgs,
}
