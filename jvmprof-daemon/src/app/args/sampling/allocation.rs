//! Flags for profiles of allocation, of `record` and `daemon` alike.

use clap::{Args, ValueEnum};

use crate::app::args::values::bytes;

/// How allocation is profiled.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Profiles of allocation")]
pub struct AllocationArgs {
    /// Mean distance of the allocations whose stacks are taken, in bytes that one thread allocates
    #[arg(long, default_value = "512KiB", value_name = "BYTES", value_parser = bytes(1024..=1 << 40))]
    pub alloc_interval: u64,

    /// Allocations a second of one JVM whose stacks are taken, at most, and of all JVMs four times
    /// as many: beyond, their distance grows
    #[arg(long, hide_short_help = true, default_value_t = 250, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub alloc_max_events: u32,

    /// CPU time for counting objects in buffers that threads have given up, which makes shares of
    /// classes exact, in percent of one core; 0: they are estimated
    #[arg(long, hide_short_help = true, default_value_t = 2.0, value_name = "PERCENT", value_parser = percent)]
    pub alloc_census_cpu: f64,

    /// Where the object's class stands
    #[arg(long, hide_short_help = true, default_value = "leaf", value_name = "PLACE")]
    pub alloc_class: ClassArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClassArg {
    /// It is the leaf of the stack
    Leaf,
    /// It is the label `class` of the sample
    Label,
    /// Nowhere: leaves are methods
    Off,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a number of percent of one core, from 0 to 100".to_owned()),
    }
}
