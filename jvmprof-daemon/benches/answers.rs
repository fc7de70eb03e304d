//! What the collector takes to answer its page: of one JVM with trees of several sizes, and of 50
//! JVMs over a longer and longer time.
//!
//! `cargo bench --bench answers`: no browser, no network; each answer is made three times, and the
//! median is printed. How much a request may read is not limited here. `-- day [FOLDER]`: only a
//! day of the 50 JVMs, in windows of a minute, with the sums that the collector keeps; it takes
//! minutes. In a folder they stay for the next time: the day is the same one in every run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that can't go on ends")]
#![allow(dead_code, reason = "the pages' tests need more of these modules")]

#[path = "../tests/page/data.rs"]
mod data;
#[path = "../tests/page/server.rs"]
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::export::collector::page_server::{PageOptions, router};
use jvmprof_daemon::export::collector::sums::sum_all;
use jvmprof_daemon::export::store::{Matcher, Store, TimeRange};
use jvmprof_daemon::profile::model::Batch;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tower::ServiceExt as _;

use data::{Numbers, Shape, window};
use server::{fill, millis, open, push};

/// Nodes of a tree, and samples of each of 30 profiles that are enough for it.
const SIZES: [(usize, usize); 3] = [(1_000, 50), (10_000, 150), (100_000, 1_500)];

const JVMS: usize = 50;
/// Windows of ten seconds of these JVMs.
const WINDOWS: [u32; 2] = [6, 60];
const WINDOW: Duration = Duration::from_secs(10);
/// Samples of each JVM in a window: eight cores, shared by 50.
const SAMPLES: usize = 160;

/// The end of the day, 2024-11-21 13:37 UTC: like most times that a page asks for, it lies within
/// an hour and within five minutes.
const DAY_END: Duration = Duration::from_secs(1_732_196_220);
const DAY: Duration = Duration::from_hours(24);
/// What is younger than this has no sum in a collector that runs.
const GRACE: Duration = Duration::from_mins(2);

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

/// Milliseconds until an answer about the day before `to` is there, and its bytes. `path` may have
/// parameters of its own.
fn answer(runtime: &tokio::runtime::Runtime, page: &Router, path: &str, to: SystemTime) -> (f64, usize) {
    let mark = if path.contains('?') { '&' } else { '?' };
    let (from, to) = (millis(to - DAY), millis(to));
    let uri = format!("/api/{path}{mark}from={from}&to={to}&group=auto");
    let mut times: Vec<(f64, usize)> = (0..3)
        .map(|_| {
            let request = Request::get(&uri).header("host", "localhost:7070").body(Body::empty()).unwrap();
            let begin = Instant::now();
            let bytes = runtime.block_on(async {
                let response = page.clone().oneshot(request).await.unwrap();
                assert!(response.status().is_success(), "{uri}: {}", response.status());
                to_bytes(response.into_body(), usize::MAX).await.unwrap().len()
            });
            (begin.elapsed().as_secs_f64() * 1e3, bytes)
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

/// A window in which every JVM is a series of its own.
fn many_jvms(start: SystemTime, numbers: &mut Numbers) -> Batch {
    let mut batch = window(start, WINDOW, SAMPLES, Shape::Program, numbers);
    batch.series.truncate(1);
    for jvm in 1..JVMS {
        let mut next = window(start, WINDOW, SAMPLES, Shape::Program, numbers).series.swap_remove(0);
        next.labels.insert("pid".to_owned(), (5_000 + jvm).to_string());
        next.labels.insert("jvm_main_class".to_owned(), format!("com.acme.service{jvm}.Main"));
        batch.series.push(next);
    }
    batch
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
    let (from, to) = (millis(to - DAY), millis(to));
    let uri = format!("/api/flamegraph?from={from}&to={to}&group=auto");
    let request = Request::get(&uri).header("host", "localhost:7070").body(Body::empty()).unwrap();
    let bytes = runtime.block_on(async {
        let response = page.clone().oneshot(request).await.unwrap();
        to_bytes(response.into_body(), usize::MAX).await.unwrap()
    });
    let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    [&answer["most_lacking"], &answer["tree"]["total"]].map(|number| number.as_u64().unwrap())
}

/// A day of the JVMs, in windows of a minute.
fn day(runtime: &tokio::runtime::Runtime, kept: Option<String>) {
    const MINUTES: u32 = 24 * 60;
    let folder = tempfile::tempdir().unwrap();
    let path = kept.map_or_else(|| folder.path().to_owned(), PathBuf::from);
    let store = open(&path);
    let end = SystemTime::UNIX_EPOCH + DAY_END;
    let mut numbers = Numbers::new(7);
    let minutes = if store.used_bytes() == 0 { MINUTES } else { 0 };
    for minute in 0..minutes {
        push(&store, &many_jvms(end - Duration::from_mins(1) * (minute + 1), &mut numbers));
    }
    let all: &[Matcher] = &[];
    let in_blocks = |bytes: u64| bytes.div_ceil(4096) * 4096;
    let profiles: u64 = store.profiles(TimeRange::ALL, all).iter().map(|of| in_blocks(of.bytes)).sum();
    let begin = Instant::now();
    let sums = sum_all(&store, (end - GRACE).into()).stored;
    println!(
        "{sums} sums made in {:.0} s, {} MiB at most",
        begin.elapsed().as_secs_f64(),
        peak_memory() >> 10
    );
    let page = page(Arc::clone(&store), ReadLimits::default().nodes);
    let paths = ["timeline", "flamegraph?match=pid%3D5001", "flamegraph"];
    println!("answer                           median   CPU time   most memory       bytes");
    for path in paths {
        peak_memory();
        let begin = cpu_time();
        let (time, bytes) = answer(runtime, &page, path, end);
        let cpu = (cpu_time() - begin).as_secs_f64() * 1e3 / 3.0;
        println!("{path:<30} {time:>6.0} ms {cpu:>7.0} ms {:>9} MiB {bytes:>11}", peak_memory() >> 10);
    }
    let [lacking, samples] = lacking(runtime, &page, end);
    println!("a frame may lack {lacking} of {samples} samples");
    let megabytes = |bytes: u64| bytes / 1_000_000;
    let (profiles, sums) = (megabytes(profiles), megabytes(store.used_bytes() - profiles));
    println!("{profiles} MB of profiles, {sums} MB of sums on disk");
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut arguments = std::env::args().skip_while(|argument| argument != "day");
    if arguments.next().is_some() {
        return day(&runtime, arguments.find(|argument| !argument.starts_with('-')));
    }
    println!("nodes allowed   flame graph   bytes");
    for (nodes, samples) in SIZES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        fill(&store, Duration::from_secs(300), Shape::Wide, samples);
        let (time, bytes) = answer(&runtime, &page(store, nodes), "flamegraph", SystemTime::now());
        println!("{nodes:>13} {time:>10.0} ms {bytes:>7}");
    }
    println!("profiles of {JVMS} JVMs   labels   timeline   flame graph");
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut numbers = Numbers::new(7);
    let mut filled = 0;
    for windows in WINDOWS {
        for index in filled..windows {
            push(&store, &many_jvms(SystemTime::now() - WINDOW * (index + 1), &mut numbers));
        }
        filled = windows;
        let page = page(Arc::clone(&store), ReadLimits::default().nodes);
        let [labels, timeline, graph] = ["labels", "timeline", "flamegraph"]
            .map(|path| answer(&runtime, &page, path, SystemTime::now()).0);
        let profiles = windows as usize * JVMS;
        println!("{profiles:>19} {labels:>6.0} ms {timeline:>7.0} ms {graph:>10.0} ms");
    }
}
