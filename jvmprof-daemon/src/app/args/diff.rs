//! Arguments of `jvmprof diff`.

use std::path::PathBuf;

use clap::Args;

use crate::profile::comparison::Normalisation;

const EXAMPLES: &str = "\
Examples:
  jvmprof diff yesterday.pb.gz today.pb.gz          what changed by more than chance
  jvmprof diff a.pb.gz b.pb.gz -o d.html            the same as a page: red is more, blue is less
  jvmprof diff --by time a.pb.gz b.pb.gz            in CPUs rather than in shares of the samples";

/// Arguments of `jvmprof diff`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// The profile before: a pprof file of any tool, gzipped or not
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,

    /// The profile after
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,

    /// Where to write a page with both; without it only the text is printed
    #[arg(short, long = "output", value_name = "FILE.html")]
    pub output: Option<PathBuf>,

    /// What is compared: the share that functions have of all samples, or their time per time
    #[arg(long, value_enum, default_value_t, value_name = "share|time")]
    pub by: Normalisation,

    /// How many functions to print
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub top: usize,
}
