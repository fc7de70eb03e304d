//! The options of native code: the debuginfod client that they start, and the folder of unwind
//! rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use url::Url;

use super::args::{NativeSymbolArgs, parse_url};
use crate::hotspot::stubs::AnalysesOnDisk;
use crate::kernel_tables::RowsOnDisk;
use crate::native::debuginfod::{Debuginfod, DebuginfodOptions};
use crate::native::file_identity::ContentIdsOnDisk;
use crate::pipeline::Pipeline;
use crate::symbolize::NativeOptions;

/// The variable that gdb and others read: URLs with spaces between them.
const URLS_VARIABLE: &str = "DEBUGINFOD_URLS";
/// Longest time that a recording waits for debug files at its end.
const LAST_WAIT: Duration = Duration::from_secs(60);
const LAST_POLL: Duration = Duration::from_millis(50);

/// Returns the servers that the variable names; words that aren't URLs are for other programs
/// (`ima:enforcing`).
fn urls_of(variable: &str) -> Vec<Url> {
    variable.split_ascii_whitespace().filter_map(|word| parse_url(word).ok()).collect()
}

/// Returns the options of these flags, and starts the debuginfod client if they name a server.
///
/// # Errors
/// debuginfod's folder can't be made.
pub(super) fn options(args: &NativeSymbolArgs) -> anyhow::Result<NativeOptions> {
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
    if args.unwind_rows_cache_mib > 0 {
        match ContentIdsOnDisk::open(&args.unwind_rows_cache) {
            Ok(on_disk) => options.content_ids = Some(Arc::new(on_disk)),
            Err(error) => tracing::debug!(%error, "hashes of files' contents aren't kept on disk"),
        }
        match RowsOnDisk::open(&args.unwind_rows_cache, args.unwind_rows_cache_mib << 20) {
            Ok(on_disk) => options.rows_on_disk = Some(Arc::new(on_disk)),
            Err(error) => tracing::debug!(%error, "unwind rows aren't kept on disk"),
        }
        match AnalysesOnDisk::open(&args.unwind_rows_cache) {
            Ok(on_disk) => options.stub_analyses = Some(Arc::new(on_disk)),
            Err(error) => tracing::debug!(%error, "analyses of JVMs' stubs aren't kept on disk"),
        }
    }
    Ok(options)
}

/// Waits for debug files that are being fetched, for a while: a recording has one profile only.
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
