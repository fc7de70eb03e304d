//! Arguments of `jvmprof ui`.

use std::net::SocketAddr;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  jvmprof ui /var/lib/jvmprof                       what a daemon or collector keeps there
  jvmprof ui x.pb.gz                                a recording, or a pprof file of any tool
  jvmprof ui http://localhost:6060/debug/pprof/profile?seconds=10
                                                    what a Go program says of itself

Nothing is written, and nobody else on the network sees the page.";

/// Arguments of `jvmprof ui`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UiArgs {
    /// A store's folder, a pprof file (gzipped or not), or the URL of one
    #[arg(value_name = "DIR|FILE|URL")]
    pub source: String,

    /// Where to listen: an address of this machine alone; port 0 is any free one
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT", value_parser = parse_loopback)]
    pub listen: SocketAddr,
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "must be an address such as 127.0.0.1:8080".to_owned())?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("must be an address of this machine alone, such as 127.0.0.1:8080 or [::1]:8080".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_for_this_machine_alone() {
        assert!(parse_loopback("127.0.0.1:0").is_ok() && parse_loopback("[::1]:8080").is_ok());
        for wrong in ["0.0.0.0:80", "192.168.0.1:80", "[::]:80", "localhost:80", "8080"] {
            assert!(parse_loopback(wrong).is_err(), "{wrong}");
        }
    }
}
