//! What the collector takes to answer its page: of one JVM with trees of several sizes, and of 50
//! JVMs over a longer and longer time.
//!
//! `cargo bench --bench answers`: no browser, no network; each answer is made three times, and the
//! median is printed. How much a request may read is not limited here. `-- day`: only a day of the
//! 50 JVMs, in windows of a minute, with the sums that the collector keeps; it takes minutes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that can't go on ends")]
#![allow(dead_code, reason = "the pages' tests need more of these modules")]

#[path = "../tests/page/data.rs"]
mod data;
#[path = "../tests/page/server.rs"]
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::export::collector::page_server::{PageOptions, router};
use jvmprof_daemon::export::collector::sums::sum_all;
use jvmprof_daemon::export::store::Store;
use jvmprof_daemon::profile::model::Batch;
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

fn page(store: Arc<Store>, nodes: usize) -> Router {
    let limits = ReadLimits { nodes, profiles: usize::MAX, bytes: u64::MAX, time: Duration::MAX };
    router(store, PageOptions { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), limits })
}

/// Milliseconds until an answer is there, and its bytes. `path` may have parameters of its own.
fn answer(runtime: &tokio::runtime::Runtime, page: &Router, path: &str) -> (f64, usize) {
    let to = millis(SystemTime::now());
    let mark = if path.contains('?') { '&' } else { '?' };
    let uri = format!("/api/{path}{mark}from={}&to={to}&group=auto", to - 86_400_000);
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

/// A day of the JVMs, in windows of a minute.
fn day(runtime: &tokio::runtime::Runtime) {
    const MINUTES: u32 = 24 * 60;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut numbers = Numbers::new(7);
    for minute in 0..MINUTES {
        push(&store, &many_jvms(SystemTime::now() - Duration::from_mins(1) * (minute + 1), &mut numbers));
    }
    let profiles = store.used_bytes();
    let page = page(Arc::clone(&store), ReadLimits::default().nodes);
    let paths = ["timeline", "flamegraph", "flamegraph?match=pid%3D5001"];
    println!("MB of profiles, of sums   timeline   flame graph   of one JVM");
    let begin = Instant::now();
    let sums = sum_all(&store, SystemTime::now().into());
    println!("{sums} sums made in {:.0} s", begin.elapsed().as_secs_f64());
    let [timeline, graph, one] = paths.map(|path| answer(runtime, &page, path).0);
    let megabytes = |bytes: u64| bytes / 1_000_000;
    let (profiles, sums) = (megabytes(profiles), megabytes(store.used_bytes() - profiles));
    println!("{profiles:>8} {sums:>9} {timeline:>7.0} ms {graph:>10.0} ms {one:>9.0} ms");
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::args().any(|argument| argument == "day") {
        return day(&runtime);
    }
    println!("nodes allowed   flame graph   bytes");
    for (nodes, samples) in SIZES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        fill(&store, Duration::from_secs(300), Shape::Wide, samples);
        let (time, bytes) = answer(&runtime, &page(store, nodes), "flamegraph");
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
        let [labels, timeline, graph] =
            ["labels", "timeline", "flamegraph"].map(|path| answer(&runtime, &page, path).0);
        let profiles = windows as usize * JVMS;
        println!("{profiles:>19} {labels:>6.0} ms {timeline:>7.0} ms {graph:>10.0} ms");
    }
}
