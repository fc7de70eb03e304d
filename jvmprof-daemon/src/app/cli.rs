//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Continuous profiler for hosts that run JVMs.
#[derive(Debug, Parser)]
#[command(name = "jvmprof", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to log: error, warn, info, debug, trace, or filters such as `jvmprof_daemon::symbolize=debug`
    #[arg(long, global = true, env = "JVMPROF_LOG", value_name = "FILTER")]
    pub log_level: Option<String>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile processes, a command or the whole host into a file
    Record(RecordArgs),
    /// Tell what this host allows, what to do where something is missing, and which JVMs run
    Doctor(DoctorArgs),
    /// Tell what is known of one process
    Inspect(InspectArgs),
}

/// Arguments of `jvmprof doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `jvmprof inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The process
    pub pid: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// How to sample: the same for `record` and `daemon`.
#[derive(Clone, Debug, Args)]
pub struct SamplingArgs {
    /// Samples per second and CPU
    #[arg(short = 'F', long, default_value_t = 99, value_name = "HZ",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub frequency: u32,

    /// Memory for symbols of files, in MiB
    #[arg(long, default_value_t = 24, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub symbol_cache_mib: u64,

    /// Size of the ring buffer between kernel and daemon, in KiB (rounded up to a power of two) [default: 512 a CPU]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=1_048_576))]
    pub ring_buffer_kib: Option<u32>,

    /// Log what the kernel programs do (at level debug)
    #[arg(long)]
    pub kernel_log: bool,
}

/// Arguments of `jvmprof record`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without -p and COMMAND the whole host is profiled. Needs root, or CAP_BPF, CAP_PERFMON, \
                        CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_SYSLOG: see `jvmprof doctor`."
)]
pub struct RecordArgs {
    /// Profile only this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "command")]
    pub pids: Vec<u32>,

    /// How long, such as 10s, 5m or 1500ms [default: until Ctrl-C, or until the command or processes end]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Where to write: .pb.gz (pprof), .folded, .svg or .html by its ending (repeatable)
    #[arg(short, long = "output", value_name = "FILE")]
    pub outputs: Vec<PathBuf>,

    /// Print the summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Start this command and profile it and its children, from its first instruction to its end; it gets SIGTERM if
    /// the recording ends first
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `10s`, `1m 30s`, or a plain number of seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
    };
    if duration.is_zero() { Err("must be longer than nothing".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &str) -> Result<RecordArgs, clap::Error> {
        match Cli::try_parse_from(line.split(' '))?.command {
            Command::Record(args) => Ok(args),
            other => panic!("{other:?} is no record"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_flags() {
        let args = record("jvmprof record -d 1500ms -o x.svg -- java -d -p 7 Main").expect("valid");
        assert_eq!(args.command, ["java", "-d", "-p", "7", "Main"]);
        assert_eq!(args.duration, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "jvmprof record -p 1 -- sleep 1",
            "jvmprof record -d 0",
            "jvmprof record -d soon",
            "jvmprof record -F 0",
            "jvmprof record -F 20001",
            "jvmprof record -p -3",
            "jvmprof recrod",
        ] {
            assert!(record(line).is_err(), "{line}");
        }
    }
}
