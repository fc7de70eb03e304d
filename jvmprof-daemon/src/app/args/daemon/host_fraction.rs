//! Flags for which hosts of a fleet are profiled.

use clap::{Args, ValueEnum};

/// What identifies a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostIdentityArg {
    /// /etc/machine-id of the host, also in a container; the name of the node where there is none
    MachineId,
    /// The name of the node: --node, else the host's name
    Node,
}

/// Which hosts are profiled.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which hosts are profiled")]
pub struct HostFractionArgs {
    /// Share of a fleet's hosts that are profiled: 0.1, say, or 10%. A hash of what identifies the
    /// host decides, so that it is the same after a restart, and a larger share has the hosts of a
    /// smaller one; the daemons of other hosts are idle
    #[arg(long, default_value_t = 1.0, value_name = "SHARE", value_parser = parse_share)]
    pub host_fraction: f64,

    /// What identifies the host
    #[arg(long, hide_short_help = true, default_value = "machine-id", value_name = "WHAT")]
    pub host_fraction_by: HostIdentityArg,

    /// A text that is hashed too: another one chooses other hosts
    #[arg(long, hide_short_help = true, value_name = "TEXT")]
    pub host_fraction_salt: Option<String>,
}

/// Parses a share of the hosts: `0.1` or `10%`.
fn parse_share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
        None => text.trim().parse(),
    };
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a share of all hosts, from 0 to 1, such as 0.1 or 10%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_nonsense_is_refused() {
        for (text, share) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("25%", 0.25), ("100 %", 1.0)] {
            assert_eq!(parse_share(text), Ok(share), "{text}");
        }
        for nonsense in ["", "%", "-0.1", "1.01", "101%", "nan", "half"] {
            assert!(parse_share(nonsense).is_err(), "{nonsense}");
        }
    }
}
