//! Cost of the collector's answers to its page: of one JVM with trees of several sizes, and of 50
//! JVMs over a longer and longer time.
//!
//! `cargo bench --bench answers`: no browser, no network; each answer is made three times, and the
//! median is printed. How much a request may read is not limited here.
//!
//! `-- day [--window=10s] [--pauses] [FOLDER]`: only a day of the 50 JVMs, with the sums that the
//! collector keeps, and all that its page asks for when it opens. Windows have a minute without the
//! option, by default 10 s in daemons; the load is the same in windows of any length. Making the
//! day takes many minutes, longer in shorter windows: in a folder it stays for the next time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that can't go on ends")]
#![allow(dead_code, reason = "the pages' tests need more of these modules")]

#[path = "../tests/page/data.rs"]
mod data;
mod day;
#[path = "../tests/page/server.rs"]
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use bytes::Bytes;
use futures_util::future::join_all;
use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::export::collector::page_server::{PageOptions, router};
use jvmprof_daemon::export::store::Store;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tower::ServiceExt as _;

use data::{Numbers, Shape};
use day::{DAY, DayOptions, JVMS, StoredDay, many_jvms};
use server::{fill, millis, open, push};

/// Nodes of a tree, and samples of each of 30 profiles that are enough for it.
const SIZES: [(usize, usize); 3] = [(1_000, 50), (10_000, 150), (100_000, 1_500)];

/// Windows of ten seconds of 50 JVMs.
const WINDOWS: [u32; 2] = [6, 60];
const WINDOW: Duration = Duration::from_secs(10);
/// Samples of each JVM in a window: eight cores, shared by 50.
const SAMPLES: usize = 160;

fn page(store: Arc<Store>, nodes: usize) -> Router {
    let limits = ReadLimits {
        nodes,
        profiles: usize::MAX,
        bytes: u64::MAX,
        time: Duration::MAX,
        ..ReadLimits::default()
    };
    router(store, PageOptions { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), limits })
}

/// What is asked about the day before `to`. `path` may have parameters of its own.
fn address(path: &str, to: SystemTime) -> String {
    let mark = if path.contains('?') { '&' } else { '?' };
    let (from, to) = (millis(to - DAY), millis(to));
    format!("/api/{path}{mark}from={from}&to={to}&group=auto")
}

/// The bytes of an answer.
async fn ask(page: Router, address: &str) -> Bytes {
    let request = Request::get(address).header("host", "localhost:7070").body(Body::empty()).unwrap();
    let response = page.oneshot(request).await.unwrap();
    assert!(response.status().is_success(), "{address}: {}", response.status());
    to_bytes(response.into_body(), usize::MAX).await.unwrap()
}

/// Milliseconds until all of these answers are there, asked for at the same time, and their bytes:
/// the median of three times.
fn answers(runtime: &tokio::runtime::Runtime, page: &Router, paths: &[&str], to: SystemTime) -> (f64, usize) {
    let addresses: Vec<String> = paths.iter().map(|path| address(path, to)).collect();
    let mut times: Vec<(f64, usize)> = (0..3)
        .map(|_| {
            let begin = Instant::now();
            let asked = addresses.iter().map(|address| ask(page.clone(), address));
            let sizes = runtime.block_on(join_all(asked)).iter().map(Bytes::len).sum::<usize>();
            (begin.elapsed().as_secs_f64() * 1e3, sizes)
        })
        .collect();
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    times[1]
}

/// The CPU time of this process, on a machine on which others run.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    Duration::from_micros((micros(usage.user_time()) + micros(usage.system_time())).cast_unsigned())
}

/// The most memory that this process has had in KiB, since the last time that it was asked for.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The samples that a frame may lack in the graph of the day before `to`, and all samples.
fn lacking(runtime: &tokio::runtime::Runtime, page: &Router, to: SystemTime) -> [u64; 2] {
    let bytes = runtime.block_on(ask(page.clone(), &address("flamegraph", to)));
    let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    [&answer["most_lacking"], &answer["tree"]["total"]].map(|number| number.as_u64().unwrap())
}

/// What the page asks for when it opens.
const OPENING: &[&str] = &["timeline", "labels", "flamegraph", "pauses"];

/// What the page is answered of a day of the JVMs.
fn measure_day(runtime: &tokio::runtime::Runtime, options: &DayOptions) {
    let StoredDay { store, windows, profile_bytes, new_sums, summing, .. } = &StoredDay::open(options);
    let to = day::end();
    let (seconds, most) = (summing.as_secs_f64(), peak_memory() >> 10);
    println!("{windows} windows; {new_sums} sums made in {seconds:.0} s, {most} MiB at most");
    let page = page(Arc::clone(store), ReadLimits::default().nodes);
    println!("answer                           median   CPU time   most memory       bytes");
    let alone = OPENING.iter().chain(&["flamegraph?match=pid%3D5001"]).map(std::slice::from_ref);
    for paths in alone.chain([OPENING]) {
        let name = if let [path] = paths { *path } else { "these, as the page opens" };
        peak_memory();
        let begin = cpu_time();
        let (time, bytes) = answers(runtime, &page, paths, to);
        let cpu = (cpu_time() - begin).as_secs_f64() * 1e3 / 3.0;
        println!("{name:<30} {time:>6.0} ms {cpu:>7.0} ms {:>9} MiB {bytes:>11}", peak_memory() >> 10);
    }
    let [lacking, samples] = lacking(runtime, &page, to);
    println!("a frame may lack {lacking} of {samples} samples");
    let megabytes = |bytes: u64| bytes / 1_000_000;
    let (profiles, sums) = (megabytes(*profile_bytes), megabytes(store.used_bytes() - profile_bytes));
    println!("{profiles} MB of profiles, {sums} MB of sums on disk");
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Some(options) = DayOptions::of_process() {
        return measure_day(&runtime, &options);
    }
    println!("nodes allowed   flame graph   bytes");
    for (nodes, samples) in SIZES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        fill(&store, Duration::from_secs(300), Shape::Wide, samples);
        let (time, bytes) = answers(&runtime, &page(store, nodes), &["flamegraph"], SystemTime::now());
        println!("{nodes:>13} {time:>10.0} ms {bytes:>7}");
    }
    println!("profiles of {JVMS} JVMs   labels   timeline   flame graph");
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut numbers = Numbers::new(7);
    let mut filled = 0;
    for windows in WINDOWS {
        for index in filled..windows {
            let start = SystemTime::now() - WINDOW * (index + 1);
            push(&store, &many_jvms(start, WINDOW, SAMPLES, &mut numbers));
        }
        filled = windows;
        let page = page(Arc::clone(&store), ReadLimits::default().nodes);
        let [labels, timeline, graph] = ["labels", "timeline", "flamegraph"]
            .map(|path| answers(&runtime, &page, &[path], SystemTime::now()).0);
        let profiles = windows as usize * JVMS;
        println!("{profiles:>19} {labels:>6.0} ms {timeline:>7.0} ms {graph:>10.0} ms");
    }
}
