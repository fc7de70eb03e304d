//! Flags of `jvmprof collector`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  jvmprof collector                                 take profiles at 127.0.0.1:7070 and show them
  jvmprof daemon --collector-address 127.0.0.1:7070 push to it, in another terminal
  jvmprof collector --dir DIR                       show what a daemon keeps in this folder

Where a daemon writes to --dir itself (--local-store-directory), the collector shows its profiles as
they come and takes no others.";

/// Arguments of `jvmprof collector`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CollectorArgs {
    /// Where to listen, for gRPC and browsers alike; nobody is asked for a password
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,

    /// Where profiles are kept: this collector's own, or those that a daemon writes there
    #[arg(long, default_value = "/var/lib/jvmprof", value_name = "DIR")]
    pub dir: PathBuf,

    /// Disk space for profiles; the oldest leave first
    #[arg(long, hide_short_help = true, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub limit_mib: u64,
}
