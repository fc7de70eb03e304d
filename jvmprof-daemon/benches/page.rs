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

/// The milliseconds that something takes, with the layout that it needs.
fn took(browser: &mut Browser, what: &str) -> f64 {
    let timed = format!(
        "(async () => {{ const t = performance.now(); await ({what}); document.body.offsetHeight; return performance.now() - t }})()"
    );
    browser.evaluate(&timed).as_f64().unwrap()
}

/// Frames a second while the graph scrolls for a second.
const SCROLLING: &str = "new Promise((done) => { const s = document.querySelector('.flame-scroller'); let n = 0; const t = performance.now(); \
const step = () => { const d = performance.now() - t; if (d > 1000) return done((n * 1000) / d); n++; s.scrollTop = (n % 40) * 20; requestAnimationFrame(step) }; requestAnimationFrame(step) })";

fn main() {
    println!("   nodes   answer     open   search     zoom    reset  frames/s while scrolling");
    for (nodes, samples) in SIZES {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        fill(&store, Duration::from_secs(300), Shape::Wide, samples);
        let server = Server::start(store, ReadLimits { nodes, ..ReadLimits::default() });
        let mut browser = Browser::start(1440, 900);
        let begin = Instant::now();
        browser.open(&server.url);
        browser.wait_for("document.querySelectorAll('g.frame').length > 50");
        let opened = begin.elapsed();
        let answer = took(
            &mut browser,
            "fetch('/api/flamegraph?' + jvmprof.page.query).then((response) => response.arrayBuffer())",
        );
        let search = took(&mut browser, "jvmprof.view.setSearch('HashMap')");
        browser.evaluate("jvmprof.view.setSearch('')");
        let middle = "jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('OrderController.place'))";
        let zoom = took(&mut browser, &format!("jvmprof.view.flame.showZoomed({middle}, true)"));
        let reset = took(&mut browser, "jvmprof.view.flame.resetZoom()");
        let frames = browser.evaluate(SCROLLING).as_f64().unwrap();
        let drawn = browser.evaluate("jvmprof.view.data.nodes.parent.length");
        println!(
            "{:>8} {answer:>6.0} ms {:>5.0} ms {search:>5.0} ms {zoom:>5.0} ms {reset:>5.0} ms  {frames:.0}",
            drawn.as_u64().unwrap(),
            opened.as_secs_f64() * 1e3
        );
    }
}
