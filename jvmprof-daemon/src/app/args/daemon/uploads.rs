//! Flags for symbols that the backend resolves, and for the debug files that it gets for that.

use clap::{Args, ValueEnum};
use globset::Glob;

/// Who names native frames.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SymbolizeArg {
    /// This daemon, with the symbols that are on the host
    Local,
    /// The backend, for all files with a build id; debug files are uploaded to it
    Server,
    /// This daemon where there is a symbol on the host, else the backend
    Auto,
}

/// What is left to the backend, and what may be uploaded to it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Symbols for the backend")]
pub struct UploadArgs {
    /// Who names native frames
    #[arg(long, hide_short_help = true, default_value = "local", value_name = "WHO")]
    pub symbolize: SymbolizeArg,

    /// Never upload symbols of files whose path matches, such as '/opt/secret/**' (repeatable)
    #[arg(long, hide_short_help = true, value_name = "GLOB")]
    pub upload_exclude: Vec<Glob>,

    /// Bandwidth for uploads, in MiB a second
    #[arg(long, hide_short_help = true, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub upload_bandwidth_mib: u64,

    /// Files that are uploaded at the same time
    #[arg(long, hide_short_help = true, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub upload_parallel: u16,
}
