//! Flags for the symbols and lines of native code, of `record` and `daemon` alike.

use std::path::PathBuf;

use clap::Args;
use url::Url;

/// How native frames get their names: the same for `record` and `daemon`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Symbols and lines of native code")]
pub struct NativeSymbolArgs {
    /// Show inlined functions and lines of native code where debug information is installed; takes
    /// memory, up to 512 MiB more
    #[arg(long)]
    pub native_lines: bool,

    /// Fetch debug files that the host hasn't from this debuginfod server, in the background
    /// (repeatable) [env: DEBUGINFOD_URLS]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub debuginfod_url: Vec<Url>,

    /// Where fetched debug files are kept
    #[arg(long, hide_short_help = true, default_value = "/var/cache/jvmprof/debuginfod", value_name = "DIR")]
    pub debuginfod_cache: PathBuf,

    /// Disk space for them; the oldest leave first
    #[arg(long, hide_short_help = true, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u64).range(2..=1 << 30))]
    pub debuginfod_cache_mib: u64,

    /// Where unwind rows of large files and of JVMs' stubs are kept, so that a restart needn't read
    /// them again
    #[arg(
        long,
        hide_short_help = true,
        default_value = "/var/cache/jvmprof/unwind-rows",
        value_name = "DIR"
    )]
    pub unwind_rows_cache: PathBuf,

    /// Disk space for those of files; the oldest leave first; 0: none are kept
    #[arg(long, hide_short_help = true, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    pub unwind_rows_cache_mib: u64,
}

pub(in crate::app) fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("{other} is not http or https")),
    }
}
