//! What the collector's page takes to answer and to draw trees of 1,000, 10,000 and 100,000 nodes,
//! in a real Chromium.
//!
//! `cargo bench --bench page`: needs Chromium. Figures are of headless software rendering: the
//! frames of a desktop with a GPU are shorter.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that can't go on ends")]
#![allow(dead_code, reason = "the pages' tests need more of these modules")]

#[path = "../tests/page/browser.rs"]
mod browser;
#[path = "../tests/page/data.rs"]
mod data;
#[path = "../tests/page/server.rs"]
mod server;

use std::time::{Duration, Instant};

use browser::Browser;
use data::Shape;
use jvmprof_daemon::export::collector::ReadLimits;
use server::{Server, fill, open};

/// Nodes of a tree, and samples of each of 30 profiles that are enough for it.
const SIZES: [(usize, usize); 3] = [(1_000, 50), (10_000, 150), (100_000, 1_500)];

/// Milliseconds of the page's main thread that something takes, with the layout that it needs.
fn took(browser: &mut Browser, what: &str) -> f64 {
    let before = browser.cpu_ms();
    browser.evaluate(&format!("(async () => {{ await ({what}); document.body.offsetHeight; }})()"));
    browser.cpu_ms() - before
}

/// Frames a second while the graph scrolls for two seconds, and how many there were.
const SCROLLING: &str = "new Promise((done) => { const s = document.querySelector('.flame-scroller'); let n = 0; const t = performance.now(); \
const step = () => { const d = performance.now() - t; if (d > 2000) return done([(n * 1000) / d, n]); n++; s.scrollTop = (n % 40) * 20; requestAnimationFrame(step) }; requestAnimationFrame(step) })";

fn main() {
    println!("main thread: milliseconds of CPU. answer: milliseconds until it is there.");
    println!("   nodes   answer     open   search     zoom    reset   scrolling: a frame, frames/s");
    for (nodes, samples) in SIZES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        fill(&store, Duration::from_secs(300), Shape::Wide, samples);
        let server = Server::start(store, ReadLimits { nodes, ..ReadLimits::default() });
        let mut browser = Browser::start(1440, 900);
        let before = browser.cpu_ms();
        browser.open(&server.url);
        browser.wait_for(
            "(globalThis.jvmprof?.view?.flame.root ? jvmprof.view.flame.drawnBoxes().length : 0) > 50",
        );
        let opened = browser.cpu_ms() - before;
        let begin = Instant::now();
        browser.evaluate(
            "fetch('/api/flamegraph?' + jvmprof.page.query).then((response) => response.arrayBuffer()).then(() => 0)",
        );
        let answer = begin.elapsed().as_secs_f64() * 1e3;
        let search = took(&mut browser, "jvmprof.view.setSearch('HashMap')");
        browser.evaluate("jvmprof.view.setSearch('')");
        let middle = "jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('OrderController.place'))";
        let zoom = took(&mut browser, &format!("jvmprof.view.flame.showZoomed({middle}, true)"));
        let reset = took(&mut browser, "jvmprof.view.flame.resetZoom()");
        let before = browser.cpu_ms();
        let frames = browser.evaluate(SCROLLING);
        let a_frame = (browser.cpu_ms() - before) / frames[1].as_f64().unwrap();
        let drawn = browser.evaluate("jvmprof.view.data.nodes.parent.length").as_u64().unwrap();
        let frames = frames[0].as_f64().unwrap();
        println!(
            "{drawn:>8} {answer:>6.0} ms {opened:>5.0} ms {search:>5.0} ms {zoom:>5.0} ms {reset:>5.0} ms   {a_frame:.1} ms, {frames:.0}"
        );
    }
}
