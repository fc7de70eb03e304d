//! Flags of `jvmprof daemon`, each of which is also a key of the configuration file and an
//! environment variable.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::budget::BudgetArgs;
use super::containers::ContainerArgs;
use super::delivery::DeliveryArgs;
use super::labels::LabelArgs;
use super::remote_store::RemoteStoreArgs;
use super::sampling::SamplingArgs;
use super::telemetry::TelemetryArgs;
use super::uploads::UploadArgs;
use super::values::{DAY, duration};

/// Where settings come from, and questions about them.
#[derive(Clone, Debug, Args)]
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

    /// Profile allocation in the heaps of JVMs, too
    #[arg(long)]
    pub alloc_enabled: bool,

    #[command(flatten)]
    pub sampling: SamplingArgs,
}
