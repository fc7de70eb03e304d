//! Flags of `jvmprof collector`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

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
}
