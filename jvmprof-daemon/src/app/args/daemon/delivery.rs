//! Flags for the delivery of profiles and for the spool.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::app::args::values::{DAY, duration};

/// What to do with a request of which nobody knows whether it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliveryArg {
    /// Count its samples as possibly lost
    AtMostOnce,
    /// Send it again: nothing is lost, some samples may count twice
    AtLeastOnce,
}

/// Who gets the times of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SampleTimesArg {
    /// Nobody: a sample has the time of its window
    Off,
    /// The local store and --collector-address
    Collector,
    /// Each --remote-store-address, too, which then should be a `jvmprof collector`
    RemoteStore,
}

/// Whether requests are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionArg {
    /// The profiles in them are compressed anyway
    None,
    /// Labels too; the server has to support it
    Gzip,
}

/// How profiles are delivered.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Delivery and what waits")]
pub struct DeliveryArgs {
    /// A `jvmprof collector` to push to as well, in plaintext; it gets neither token nor headers
    #[arg(long, value_name = "HOST:PORT")]
    pub collector_address: Option<String>,

    /// Who gets the time of each sample of CPU time, by which the collector's page shows parts of a
    /// second: nobody; the local store and --collector-address; or each --remote-store-address,
    /// too, which should be a `jvmprof collector` then
    #[arg(long, hide_short_help = true, default_value = "off", value_name = "WHERE")]
    pub sample_times: SampleTimesArg,

    /// What to do with a request of which nobody knows whether it was stored
    #[arg(long, hide_short_help = true, default_value = "at-most-once", value_name = "POLICY")]
    pub delivery: DeliveryArg,

    /// Where profiles wait that can't be pushed now, a folder for each backend in it; `none`: they
    /// are lost
    #[arg(long, default_value = "/var/lib/jvmprof/spool", value_name = "DIR")]
    pub spool_directory: PathBuf,

    /// Disk space for them, for each backend; the oldest leave first
    #[arg(long, hide_short_help = true, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub spool_limit_mib: u64,

    /// Profiles that wait longer are not pushed any more
    #[arg(long, hide_short_help = true, default_value = "24h", value_name = "TIME",
          value_parser = duration(Duration::from_secs(1)..=3650 * DAY))]
    pub spool_max_age: Duration,

    /// How fast waiting profiles are pushed when the backend is back, beside fresh ones, in KiB a
    /// second
    #[arg(long, hide_short_help = true, default_value_t = 2048, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub spool_rate_kib: u64,

    /// Compression of requests
    #[arg(long, hide_short_help = true, default_value = "none", value_name = "HOW")]
    pub remote_store_compression: CompressionArg,
}
