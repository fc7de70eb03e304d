//! `jvmprof ui`: the collector's page over a store that others write, over a pprof file of any
//! tool, or over what a URL answers. Nothing is stored but in a folder that goes with the process.

pub(super) mod diff;
mod pprof_series;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use url::Url;

use super::args::UiArgs;
use super::errors::UsageError;
use super::shutdown_signals::ShutdownSignals;
use super::stdout::print_report;
use crate::export::collector::page_server::{self, PageOptions};
use crate::export::collector::{ReadLimits, serve};
use crate::export::store::{NewProfile, Store, StoreOptions, TimeRange, UnixNanos};
use crate::native::http_client;
use crate::own_process::stderr_line;
use crate::profile::pprof::decode::{DecodeLimits, decode};
use pprof_series::ImportedProfile;

/// The page's own range, which ends now: what is older needs another one.
const DEFAULT_RANGE: Duration = Duration::from_mins(15);
/// A server may profile for minutes before it answers (`?seconds=120`).
const FETCH_TIME: Duration = Duration::from_mins(10);
const FETCH_STALL: Duration = Duration::from_mins(5);
/// Bytes of a file or an answer: more than is decoded in any case.
const MAX_BYTES: u64 = 256 << 20;

/// The data that the page shows, and its address's query.
struct Source {
    store: Store,
    query: String,
    /// Holds the store of an imported file.
    _folder: Option<tempfile::TempDir>,
}

/// Runs the subcommand.
pub(super) fn run(args: &UiArgs) -> anyhow::Result<()> {
    let source = open(&args.source)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .context("cannot start the event loop")?
        .block_on(show(args, source))
}

async fn show(args: &UiArgs, source: Source) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let listen = listener.local_addr().context("cannot read the address of the listening socket")?;
    let mut shutdown = ShutdownSignals::new().context("cannot handle signals")?;
    let Source { store, query, _folder } = source;
    let page = page_server::router(Arc::new(store), PageOptions { listen, limits: ReadLimits::default() });
    // For people and for scripts that asked for any free port.
    print_report(&format!("http://{listen}/{query}\n"))?;
    stderr_line!("jvmprof: open this address in a browser; Ctrl-C ends it");
    let stop = async move {
        shutdown.requested().await;
    };
    serve(listener, page, stop).await;
    Ok(())
}

fn open(source: &str) -> anyhow::Result<Source> {
    if source.starts_with("http://") || source.starts_with("https://") {
        let url = Url::parse(source).map_err(|error| UsageError(format!("{source:?} is no URL: {error}")))?;
        return import(&fetch(&url)?, source);
    }
    let path = Path::new(source);
    if path.is_dir() {
        let store = Store::open_for_reading(path)?.following();
        let query = newest_range(&store);
        return Ok(Source { store, query, _folder: None });
    }
    import(&read(path)?, source)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let attempt = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(attempt)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(attempt)?;
    anyhow::ensure!(
        bytes.len() as u64 <= MAX_BYTES,
        "{} has more than {} MiB",
        path.display(),
        MAX_BYTES >> 20
    );
    if bytes.trim_ascii_start().starts_with(b"<") {
        return Err(UsageError(format!("{} is a page itself: open it in a browser", path.display())).into());
    }
    Ok(bytes)
}

fn fetch(url: &Url) -> anyhow::Result<Vec<u8>> {
    let attempt = || format!("cannot fetch {url}");
    stderr_line!("jvmprof: fetching {url}");
    let agent = http_client::agent(FETCH_TIME, FETCH_STALL);
    // A profile over some time is answered after that time.
    let request = agent.get(url.as_str()).config().timeout_recv_response(Some(FETCH_STALL)).build();
    let mut response = request.call().with_context(attempt)?;
    let body = response.body_mut().with_config().limit(MAX_BYTES);
    body.read_to_vec().with_context(attempt)
}

/// Stores a pprof file's profiles in a folder of their own.
fn import(bytes: &[u8], source: &str) -> anyhow::Result<Source> {
    let attempt = || format!("{source} can't be shown: it is neither a store's folder nor a pprof file");
    let profile = decode(bytes, DecodeLimits::default()).with_context(attempt)?;
    let ImportedProfile { profiles, sample_type, left_out } =
        pprof_series::import(profile).with_context(attempt)?;
    if !left_out.is_empty() {
        stderr_line!("jvmprof: not shown: {}", left_out.join(", "));
    }
    let folder = tempfile::Builder::new().prefix("jvmprof-ui-").tempdir().context("cannot make a folder")?;
    let store = Store::open(folder.path(), StoreOptions::default())?;
    store.append(&profiles)?;
    let mut query = range_query(&profiles);
    if let Some(sample_type) = sample_type {
        query.push_str(&format!("&type={sample_type}"));
    }
    Ok(Source { store, query, _folder: Some(folder) })
}

fn millis(time: UnixNanos) -> i64 {
    time.0.div_euclid(1_000_000)
}

/// The time that these profiles cover.
fn range_query(profiles: &[NewProfile]) -> String {
    let start = profiles.iter().map(|profile| profile.start).min().unwrap_or_default();
    let end = profiles.iter().map(|profile| profile.start.plus(profile.duration)).max().unwrap_or_default();
    format!("?from={}&to={}", millis(start), millis(end).max(millis(start)) + 1)
}

/// The last minutes that have profiles, unless those are the last ones anyway.
fn newest_range(store: &Store) -> String {
    let newest = store.series(TimeRange::ALL, &[]).iter().map(|series| series.last).max();
    let Some(newest) = newest else {
        stderr_line!("jvmprof: there are no profiles yet");
        return String::new();
    };
    let now = UnixNanos::from(std::time::SystemTime::now());
    if newest.plus(DEFAULT_RANGE) >= now {
        return String::new();
    }
    let range = i64::try_from(DEFAULT_RANGE.as_millis()).unwrap_or(0);
    format!("?from={}&to={}", millis(newest) - range, millis(newest) + 1)
}
