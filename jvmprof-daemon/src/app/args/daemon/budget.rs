//! Flags for the limits of CPU and memory.

use clap::Args;

use crate::own_process::DEFAULT_URGENT_PERCENT;

/// Limits of what the daemon costs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What the daemon may cost")]
pub struct BudgetArgs {
    /// CPU that the daemon and its kernel program may take over half a minute, in percent of one
    /// core (100 is a whole one, whatever the host has); beyond it the frequency falls, and rises
    /// again when it can. 0: no limit [default: 5 for each CPU of the host]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub max_cpu: Option<f64>,

    /// CPU that the threads which read sampled processes may take at a raised priority, in percent
    /// of one core, of four seconds at once; beyond it they have the default priority, as always
    /// with 0
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = DEFAULT_URGENT_PERCENT,
        value_parser = parse_percent
    )]
    pub urgent_cpu: f64,

    /// Memory for all that is remembered and all that waits, in MiB: each cache and queue has a
    /// share of it, and never more than its own limit. The program itself takes some 25 MiB beside
    /// it [default: three quarters of the memory limit of the daemon's cgroup, if it has one]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(32..=1 << 20))]
    pub max_memory: Option<u64>,
}

/// Parses a percentage: `5`, `2.5` or `5%`.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=1e6).contains(&percent) => Ok(percent),
        _ => Err("must be a number of percent of one core, such as 5 or 2.5%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_percent("2.5%"), Ok(2.5));
        assert_eq!(parse_percent("150"), Ok(150.0));
        for nonsense in ["", "-1", "nan", "inf", "5 cores"] {
            assert!(parse_percent(nonsense).is_err(), "{nonsense}");
        }
    }
}
