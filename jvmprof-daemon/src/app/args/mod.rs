//! The command line: one type of arguments for each subcommand and for each subject.

mod collector;
mod completions;
mod daemon;
mod diff;
mod doctor;
mod inspect;
mod ps;
mod record;
mod sampling;
mod top;
mod ui;
mod values;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

pub use collector::CollectorArgs;
pub use completions::{CompletionsArgs, ManPagesArgs};
pub use daemon::{
    BackendAddress, BackendCredentials, BudgetArgs, CompressionArg, ConfigArgs, ContainerArgs, DaemonArgs,
    DeliveryArg, DeliveryArgs, HostFractionArgs, HostIdentityArg, LabelArgs, LocalStoreArgs, OtlpArgs,
    OtlpProtocolArg, PyroscopeArgs, RemoteStoreArgs, SampleTimesArg, SymbolizeArg, TelemetryArgs, UploadArgs,
};
pub use diff::DiffArgs;
pub use doctor::DoctorArgs;
pub use inspect::InspectArgs;
pub use ps::PsArgs;
pub use record::{EventArg, RecordArgs, ThreadKindArg};
pub(super) use sampling::parse_url;
pub use sampling::{AllocationArgs, ClassArg, CpuSamplingArgs, NativeSymbolArgs, OffCpuArgs, SamplingArgs};
pub use top::TopArgs;
pub use ui::UiArgs;
pub use values::ProcessArg;

use crate::telemetry::log::LogFormat;

const EXAMPLES: &str = "\
Examples:
  jvmprof doctor                                    what this host allows, and its JVMs
  jvmprof record -p 4711 -d 30s -o x.html           one process, as a page
  jvmprof record -d 10s                             the whole host, a summary
  jvmprof top -p 4711                               live: the hottest methods of a process
  jvmprof daemon                                    all the time, into /var/lib/jvmprof
  jvmprof ui /var/lib/jvmprof                       look at that in a browser

`jvmprof COMMAND -h` has a command's flags and examples.";

/// Continuous profiler for hosts that run JVMs.
#[derive(Debug, Parser)]
#[command(name = "jvmprof", version, about, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to log: error, warn, info, debug, trace, or filters such as
    /// `jvmprof_daemon::symbolize=debug`
    #[arg(long, global = true, help_heading = "Logging", env = "JVMPROF_LOG", value_name = "FILTER", value_parser = parse_filter)]
    pub log_level: Option<String>,

    /// How to log
    #[arg(
        long,
        global = true,
        help_heading = "Logging",
        env = "JVMPROF_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile processes, a command or the whole host into a file
    Record(Box<RecordArgs>),
    /// Show live which JVMs and methods cost most
    Top(Box<TopArgs>),
    /// Profile the host and push to a Parca-compatible backend, or into a folder
    Daemon(Box<DaemonArgs>),
    /// Receive profiles as Parca does, keep them in a folder, and show them in a browser
    Collector(CollectorArgs),
    /// Show profiles in a browser: a store's, those of a pprof file or of a URL
    Ui(UiArgs),
    /// Compare two profiles: what changed, as a text and as a page
    Diff(DiffArgs),
    /// Check what this host allows, advise where something is missing, and list the running JVMs
    Doctor(DoctorArgs),
    /// List the running JVMs: pid, CPU, version, main class
    Ps(PsArgs),
    /// Show what is known of one process
    Inspect(InspectArgs),
    /// Print what a shell needs to complete this program's flags
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands
    #[command(hide = true)]
    ManPages(ManPagesArgs),
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(line: &str) -> Result<RecordArgs, clap::Error> {
        match Cli::try_parse_from(line.split(' '))?.command {
            Command::Record(args) => Ok(*args),
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
    fn a_plain_number_is_one_of_seconds_everywhere() {
        let line = "jvmprof daemon --push-interval 30 --container-wait 30 --spool-max-age 30";
        match Cli::try_parse_from(line.split(' ')).expect("valid").command {
            Command::Daemon(args) => {
                let times = [args.push_interval, args.container.container_wait, args.delivery.spool_max_age];
                assert_eq!(times, [Duration::from_secs(30); 3]);
            }
            other => panic!("{other:?} is no daemon"),
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "jvmprof record -p 1 -- sleep 1",
            "jvmprof record -d 0",
            "jvmprof record -d soon",
            "jvmprof record -d 18446744073709551615",
            "jvmprof daemon --push-interval 18446744073709551615",
            "jvmprof daemon --push-interval 1ns",
            "jvmprof daemon --push-interval 2days",
            "jvmprof daemon --spool-max-age 18446744073709551615",
            "jvmprof daemon --container-wait 18446744073709551615",
            "jvmprof daemon --container-wait 0",
            "jvmprof daemon --log-level foo=bar=baz",
            "jvmprof daemon --remote-store-grpc-headers a(b=c",
            "jvmprof record -F 0",
            "jvmprof record -F 20001",
            "jvmprof record -p -3",
            "jvmprof inspect 1 --pc 7f00",
            "jvmprof inspect 1 --pc 0xno",
            "jvmprof recrod",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
