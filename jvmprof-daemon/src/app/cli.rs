//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use super::budget::BudgetArgs;
use super::containers::ContainerArgs;
use super::delivery::DeliveryArgs;
use super::memory::MemoryLimits;
use super::native::NativeArgs;
use super::settings::ConfigArgs;
use super::targets::LabelArgs;
use super::telemetry::TelemetryArgs;
use super::upload::UploadArgs;
use crate::export::parca::check_header;
use crate::process::memory_limit::memory_limit;
use crate::telemetry::log::LogFormat;

/// Continuous profiler for hosts that run JVMs.
#[derive(Debug, Parser)]
#[command(name = "jvmprof", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to log: error, warn, info, debug, trace, or filters such as
    /// `jvmprof_daemon::symbolize=debug`
    #[arg(long, global = true, env = "JVMPROF_LOG", value_name = "FILTER", value_parser = parse_filter)]
    pub log_level: Option<String>,

    /// How to log
    #[arg(long, global = true, env = "JVMPROF_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile processes, a command or the whole host into a file
    Record(RecordArgs),
    /// Profile the host and push to a Parca-compatible backend, or into a folder
    Daemon(Box<DaemonArgs>),
    /// Receive profiles as Parca does, keep them in a folder, and show them in a browser
    Collector(CollectorArgs),
    /// Tell what this host allows, what to do where something is missing, and which JVMs run
    Doctor(DoctorArgs),
    /// Tell what is known of one process
    Inspect(InspectArgs),
}

/// Arguments of `jvmprof daemon`.
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    #[command(flatten)]
    pub config: ConfigArgs,

    /// A window's length: how often profiles are pushed, more or less by a fifth
    #[arg(long, default_value = "10s", value_name = "TIME",
          value_parser = duration(Duration::from_millis(100)..=DAY))]
    pub push_interval: Duration,

    /// Where profiles go if nothing else is asked for; `jvmprof collector --dir` shows them
    #[arg(long, default_value = "/var/lib/jvmprof", value_name = "DIR")]
    pub local_store_directory: PathBuf,

    /// Disk space for profiles in that folder; the oldest leave first
    #[arg(long, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub local_store_limit_mib: u64,

    #[command(flatten)]
    pub remote: RemoteStoreArgs,

    #[command(flatten)]
    pub delivery: DeliveryArgs,

    #[command(flatten)]
    pub upload: UploadArgs,

    #[command(flatten)]
    pub container: ContainerArgs,

    /// The `node` label [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,

    #[command(flatten)]
    pub labels: LabelArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub budget: BudgetArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl DaemonArgs {
    /// What each cache and each queue may take.
    pub(super) fn memory(&self) -> MemoryLimits {
        let asked_for = self.budget.max_memory.map(|mib| mib << 20);
        let budget = asked_for.or_else(|| memory_limit().map(MemoryLimits::budget_within));
        MemoryLimits::new(self.sampling.symbol_cache_mib << 20, budget)
    }
}

/// How to reach the backend. The names are those of parca-agent.
#[derive(Clone, Debug, Args)]
pub struct RemoteStoreArgs {
    /// The backend: http://host:port, https://host:port, or host:port, which means TLS (repeatable:
    /// each of them gets everything, the token and the headers too)
    #[arg(long, value_name = "ADDRESS")]
    pub remote_store_address: Vec<String>,

    /// Plaintext for an address without http:// or https://
    #[arg(long)]
    pub remote_store_insecure: bool,

    /// Token for the authorization header
    #[arg(long, hide_env_values = true, value_name = "TOKEN")]
    pub remote_store_bearer_token: Option<String>,

    /// File with that token; read anew for each request
    #[arg(long, value_name = "FILE", conflicts_with = "remote_store_bearer_token")]
    pub remote_store_bearer_token_file: Option<PathBuf>,

    /// Header for each request, NAME=VALUE (repeatable)
    #[arg(long, hide_env_values = true, value_name = "NAME=VALUE", value_parser = parse_header)]
    pub remote_store_grpc_headers: Vec<(String, String)>,

    /// PEM file with the certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    pub remote_store_ca_file: Option<PathBuf>,

    /// PEM file with this daemon's certificate
    #[arg(long, value_name = "FILE", requires = "remote_store_client_key")]
    pub remote_store_client_cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, value_name = "FILE", requires = "remote_store_client_cert")]
    pub remote_store_client_key: Option<PathBuf>,
}

/// Arguments of `jvmprof collector`.
#[derive(Debug, Args)]
pub struct CollectorArgs {
    /// Where to listen, for gRPC and browsers alike; nobody is asked for a password
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,

    /// Where profiles are kept
    #[arg(long, default_value = "/var/lib/jvmprof", value_name = "DIR")]
    pub dir: PathBuf,

    /// Disk space for profiles; the oldest leave first
    #[arg(long, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub limit_mib: u64,

    /// Disk space for debug files that daemons upload; the oldest leave first, and one may take
    /// half of it
    #[arg(long, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u64).range(2..=1 << 30))]
    pub debuginfo_limit_mib: u64,
}

/// Arguments of `jvmprof doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Also load each kernel program and tell what the verifier made of it
    #[arg(long)]
    pub programs: bool,
}

/// Arguments of `jvmprof inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The process
    pub pid: u32,

    /// Also tell what is at this address: 0x7f1234abcd, or decimal
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    pub pc: Option<u64>,

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

    /// Size of the ring buffer between kernel and daemon, in KiB (rounded up to a power of two)
    /// [default: 512 a CPU]
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=1_048_576))]
    pub ring_buffer_kib: Option<u32>,

    /// Append to names of Java methods how they ran: _[0] interpreted, _[1] C1, _[j] C2, _[i]
    /// inlined, _[n] native
    #[arg(long)]
    pub java_frame_types: bool,

    #[command(flatten)]
    pub native: NativeArgs,

    /// Ask JVMs whose code can't be read for a perf map (JDK 17 and later), at most once a minute
    /// each: sends SIGQUIT to a JVM that nobody has attached to yet
    #[arg(long)]
    pub attach_perfmap: bool,

    /// Log what the kernel programs do (at level debug)
    #[arg(long)]
    pub kernel_log: bool,
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

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    check_header(name, value).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// `0x` and hexadecimal digits, or a decimal number.
fn parse_address(text: &str) -> Result<u64, String> {
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    parsed.map_err(|error| error.to_string())
}

pub(super) const DAY: Duration = Duration::from_hours(24);

/// Reads times within this range: `10s`, `1m 30s`, or a plain number of seconds.
pub(super) fn duration(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let duration = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string())?,
        };
        if range.contains(&duration) {
            return Ok(duration);
        }
        let [least, most] = [range.start(), range.end()].map(|it| humantime::format_duration(*it));
        Err(format!("must be {least} at least and {most} at most"))
    }
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
    fn addresses_are_hexadecimal_with_a_prefix() {
        assert_eq!(parse_address("0x7f00"), Ok(0x7f00));
        assert_eq!(parse_address("4096"), Ok(4096));
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
