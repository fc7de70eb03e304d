//! Arguments of `jvmprof record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::sampling::SamplingArgs;
use super::values::{DAY, duration};

/// An event that can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum EventArg {
    /// CPU time
    Cpu,
    /// Allocation in the heaps of JVMs
    Alloc,
}

/// Arguments of `jvmprof record`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without -p and COMMAND the whole host is profiled. Needs root, or CAP_BPF, CAP_PERFMON, \
                        CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: see `jvmprof doctor`."
)]
pub struct RecordArgs {
    /// Profile only this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "command")]
    pub pids: Vec<u32>,

    /// What to record: `cpu`, `alloc` (allocation in the heaps of JVMs), or both: `cpu,alloc`
    #[arg(short, long = "event", value_name = "EVENT", value_delimiter = ',', default_value = "cpu")]
    pub events: Vec<EventArg>,

    /// How long, such as 10s, 5m or 1500ms [default: until Ctrl-C, or until the command or
    /// processes end]
    #[arg(short, long, value_name = "TIME", value_parser = duration(Duration::from_millis(1)..=365 * DAY))]
    pub duration: Option<Duration>,

    /// Where to write: .pb.gz (pprof), .folded, .svg or .html by its ending (repeatable); without
    /// it only the summary is printed
    #[arg(short, long = "output", value_name = "FILE")]
    pub outputs: Vec<PathBuf>,

    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Start this command and profile it and its children, from its first instruction to its end;
    /// it gets SIGTERM if the recording ends first
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
