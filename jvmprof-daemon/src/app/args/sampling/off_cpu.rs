//! Flags for profiles of waits off the CPU, of `record` and `daemon` alike.

use std::time::Duration;

use clap::Args;

use crate::app::args::values::duration;
use crate::pipeline::off_cpu::IdleRule;

const LONGEST: Duration = Duration::from_mins(15);

/// How waits are profiled.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Profiles of waits")]
pub struct OffCpuArgs {
    /// Shorter waits are counted, but not profiled
    #[arg(long, default_value = "1ms", value_name = "TIME",
          value_parser = duration(Duration::ZERO..=LONGEST))]
    pub offcpu_min: Duration,

    /// Mean distance of the points in waiting time that decide which waits are kept: of a thread
    /// that only waits, and briefly, so many stacks are taken
    #[arg(long, default_value = "10ms", value_name = "TIME",
          value_parser = duration(Duration::from_micros(1)..=LONGEST))]
    pub offcpu_interval: Duration,

    /// Waits a second whose stacks are taken, at most: beyond, their distance grows
    #[arg(long, hide_short_help = true, default_value_t = 1000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub offcpu_max_events: u32,

    /// Rule for waits of threads that have nothing to do, a TOML table, beside those that are built
    /// in (repeatable): { frames = ["com.acme.Pool.take"], wait = ["park"] }
    #[arg(long, hide_short_help = true, value_name = "RULE")]
    pub offcpu_idle: Vec<IdleRule>,
}
