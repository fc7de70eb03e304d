//! Flags of `jvmprof daemon`, each of which is also a key of the configuration file and an
//! environment variable.

mod backend_address;
mod budget;
mod containers;
mod delivery;
mod host_fraction;
mod labels;
mod otlp;
mod pyroscope;
mod remote_store;
mod telemetry;
mod uploads;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::sampling::SamplingArgs;
use super::values::{DAY, duration};

pub use backend_address::{BackendAddress, BackendCredentials};
pub use budget::BudgetArgs;
pub use containers::ContainerArgs;
pub use delivery::{CompressionArg, DeliveryArg, DeliveryArgs, SampleTimesArg};
pub use host_fraction::{HostFractionArgs, HostIdentityArg};
pub use labels::LabelArgs;
pub use otlp::{OtlpArgs, OtlpProtocolArg};
pub use pyroscope::PyroscopeArgs;
pub use remote_store::RemoteStoreArgs;
pub use telemetry::TelemetryArgs;
pub use uploads::{SymbolizeArg, UploadArgs};

/// The examples that stand below the help. `-h` has the flags that most need, `--help` all.
macro_rules! examples {
    () => {
        "\
Examples:
  jvmprof daemon                                              keep profiles in /var/lib/jvmprof
  jvmprof daemon --remote-store-address http://parca:7070     push to a Parca without TLS
  jvmprof daemon --remote-store-address parca.example:443     push over TLS
  jvmprof daemon --pyroscope-address http://pyroscope:4040    push to a Pyroscope without TLS
  jvmprof daemon --otlp-address http://otel-collector:4317    push to OpenTelemetry by gRPC
  jvmprof daemon --config /etc/jvmprof/jvmprof.toml           the same flags as keys of a file
  jvmprof daemon --example-config                             that file, with all keys and defaults

Profiles in /var/lib/jvmprof are shown by `jvmprof collector` or `jvmprof ui /var/lib/jvmprof`."
    };
}
const SHORT_END: &str =
    concat!(examples!(), "\n`jvmprof daemon --help` has all flags and their environment variables.");
const LONG_END: &str = examples!();

/// Where settings come from, and questions about them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Settings")]
pub struct ConfigArgs {
    /// TOML file with settings: each flag is a key, and each flag's variable and the flag itself
    /// override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the settings, print those that aren't the default, and end
    #[arg(long)]
    pub check_config: bool,

    /// Print a file with all keys and their defaults, and end
    #[arg(long)]
    pub example_config: bool,
}

/// Where profiles go that are kept on this host.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Local store")]
pub struct LocalStoreArgs {
    /// Where profiles go if nothing else is asked for; `jvmprof collector --dir` shows them
    #[arg(long, default_value = "/var/lib/jvmprof", value_name = "DIR")]
    pub local_store_directory: PathBuf,

    /// Keep profiles in the local store too if they are pushed
    #[arg(long)]
    pub local_store: bool,

    /// Disk space for profiles in that folder; the oldest leave first
    #[arg(long, hide_short_help = true, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub local_store_limit_mib: u64,
}

/// Arguments of `jvmprof daemon`.
#[derive(Clone, Debug, Args)]
#[command(after_help = SHORT_END, after_long_help = LONG_END)]
pub struct DaemonArgs {
    #[command(flatten)]
    pub config: ConfigArgs,

    #[command(flatten)]
    pub remote: RemoteStoreArgs,

    #[command(flatten)]
    pub pyroscope: PyroscopeArgs,

    #[command(flatten)]
    pub otlp: OtlpArgs,

    #[command(flatten)]
    pub local_store: LocalStoreArgs,

    /// A window's length: how often profiles are pushed, more or less by a fifth; the first one is
    /// shorter, by chance
    #[arg(long, help_heading = "Delivery and what waits", default_value = "10s", value_name = "TIME",
          value_parser = duration(Duration::from_millis(100)..=DAY))]
    pub push_interval: Duration,

    #[command(flatten)]
    pub delivery: DeliveryArgs,

    #[command(flatten)]
    pub upload: UploadArgs,

    #[command(flatten)]
    pub labels: LabelArgs,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub hosts: HostFractionArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub budget: BudgetArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Profile allocation in the heaps of JVMs, too
    #[arg(long, help_heading = "Profiles of allocation")]
    pub alloc_enabled: bool,

    /// Profile the time that threads wait off the CPU, too
    #[arg(long, help_heading = "Profiles of waits")]
    pub offcpu_enabled: bool,

    /// Profile the contention of locks in JVMs, too: the waits that are for one, with the thread
    /// that has the monitor; means --offcpu-enabled
    #[arg(long, help_heading = "Profiles of waits")]
    pub lock_enabled: bool,
}
