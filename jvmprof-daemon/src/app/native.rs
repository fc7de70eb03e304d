//! Flags for names of native code, and what they mean.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use url::Url;

use super::pipeline::Pipeline;
use crate::native::debuginfod::{Debuginfod, DebuginfodOptions};
use crate::symbolize::NativeOptions;

/// What gdb and others read: URLs with spaces between them.
const URLS_VARIABLE: &str = "DEBUGINFOD_URLS";
/// How long a recording waits for debug files at its end.
const LAST_WAIT: Duration = Duration::from_secs(60);
const LAST_POLL: Duration = Duration::from_millis(50);

/// How native frames get their names: the same for `record` and `daemon`.
#[derive(Clone, Debug, Args)]
pub struct NativeArgs {
    /// Show inlined functions and lines of native code where debug information is installed; takes
    /// memory, up to 512 MiB more
    #[arg(long)]
    pub native_lines: bool,

    /// Fetch debug files that the host hasn't from this debuginfod server, in the background
    /// (repeatable) [env: DEBUGINFOD_URLS]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub debuginfod_url: Vec<Url>,

    /// Where fetched debug files are kept
    #[arg(long, default_value = "/var/cache/jvmprof/debuginfod", value_name = "DIR")]
    pub debuginfod_cache: PathBuf,

    /// Disk space for them; the oldest leave first
    #[arg(long, default_value_t = 2048, value_name = "MIB", value_parser = clap::value_parser!(u64).range(2..=1 << 30))]
    pub debuginfod_cache_mib: u64,
}

fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("{other} is not http or https")),
    }
}

/// The servers that the variable names; what isn't a URL there is for other programs
/// (`ima:enforcing`).
fn urls_of(variable: &str) -> Vec<Url> {
    variable.split_ascii_whitespace().filter_map(|word| parse_url(word).ok()).collect()
}

/// Starts what the flags ask for.
///
/// # Errors
/// debuginfod's folder can't be made.
pub(super) fn options(args: &NativeArgs) -> anyhow::Result<NativeOptions> {
    let urls = match args.debuginfod_url.as_slice() {
        [] => urls_of(&std::env::var(URLS_VARIABLE).unwrap_or_default()),
        urls => urls.to_vec(),
    };
    let mut options = NativeOptions { lines: args.native_lines, ..NativeOptions::default() };
    if !urls.is_empty() {
        let servers = DebuginfodOptions {
            limit_bytes: args.debuginfod_cache_mib << 20,
            ..DebuginfodOptions::new(urls, args.debuginfod_cache.clone())
        };
        let client = Debuginfod::start(servers).context("cannot fetch debug files")?;
        options.debuginfod = Some(Arc::new(client));
    }
    Ok(options)
}

/// A recording has one profile only: debug files on their way are waited for, for a while.
pub(super) async fn wait_for_debug_files(options: &NativeOptions, pipeline: &mut Pipeline) {
    let Some(server) = &options.debuginfod else { return };
    let end = Instant::now() + LAST_WAIT;
    // Naming is what asks for files.
    pipeline.name_new();
    while !server.is_idle() && Instant::now() < end {
        tokio::time::sleep(LAST_POLL).await;
    }
    tracing::info!(counts = ?server.counts(), "debuginfod");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_may_hold_more_than_urls() {
        let urls =
            urls_of("ima:enforcing https://debuginfod.example/a/ ima:ignore http://127.0.0.1:8002 /etc");
        let urls: Vec<_> = urls.iter().map(Url::as_str).collect();
        assert_eq!(urls, ["https://debuginfod.example/a/", "http://127.0.0.1:8002/"]);
        assert_eq!(urls_of(""), []);
        assert!(parse_url("file:///etc/passwd").is_err());
    }
}
