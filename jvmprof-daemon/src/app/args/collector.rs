//! Flags of `jvmprof collector`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  jvmprof collector                                 take profiles at 127.0.0.1:7070 and show them
  jvmprof daemon --collector-address 127.0.0.1:7070 push to it, in another terminal
  jvmprof collector --dir DIR                       show what a daemon keeps in this folder
  jvmprof collector --listen 0.0.0.0:7070 --tls-cert tls.crt --tls-key tls.key --token-file token
                                                    for other hosts, which need the token
  jvmprof daemon --remote-store-address https://HOST:7070 --remote-store-bearer-token-file token
                                                    push to that one

Where a daemon writes to --dir itself (--local-store-directory), the collector shows its profiles as
they come and takes no others.";

/// Arguments of `jvmprof collector`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CollectorArgs {
    /// Where to listen, for gRPC and browsers alike
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,

    /// Where profiles are kept: this collector's own, or those that a daemon writes there
    #[arg(long, default_value = "/var/lib/jvmprof", value_name = "DIR")]
    pub dir: PathBuf,

    /// Disk space for profiles; the oldest leave first
    #[arg(long, hide_short_help = true, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub limit_mib: u64,

    /// PEM file with the certificate and its chain: the port speaks TLS
    ///
    /// It and the key are read anew each minute, for connections from then on.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// File with the token that requests must bring; read anew each minute
    ///
    /// Daemons send it as their bearer token; browsers ask for it as the password, with any user
    /// name. Without this, nobody is asked for anything. Only `/healthz` needs no token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::app::args::{Cli, Command};

    /// The flags in a deployed file, with a value for each.
    fn flags(file: &str) -> Vec<String> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let text = std::fs::read_to_string(root.join(file)).expect("it is committed");
        let commands = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = commands.flat_map(str::split_whitespace);
        let name = |word: &str| {
            let flag = word.trim_start_matches("- ").strip_prefix("--")?;
            Some(flag.split('=').next().unwrap_or(flag).to_owned())
        };
        words.filter_map(name).collect()
    }

    #[test]
    fn what_is_deployed_has_flags_that_exist() {
        for (file, count) in
            [("jvmprof-collector.service", 1), ("helm/jvmprof-collector/templates/statefulset.yaml", 6)]
        {
            let flags = flags(file);
            assert_eq!(flags.len(), count, "{file}: {flags:?}");
            let value = |flag: &str| match flag {
                "listen" => "127.0.0.1:1",
                "limit-mib" => "1",
                _ => "/x",
            };
            let args = flags.iter().map(|flag| format!("--{flag}={}", value(flag)));
            let line = ["jvmprof", "collector"].map(str::to_owned).into_iter().chain(args);
            let cli = Cli::try_parse_from(line).expect(file);
            assert!(matches!(cli.command, Command::Collector(_)));
        }
    }

    #[test]
    fn certificate_and_key_come_together() {
        for half in ["--tls-cert=/x", "--tls-key=/x"] {
            assert!(Cli::try_parse_from(["jvmprof", "collector", half]).is_err(), "{half}");
        }
    }
}
