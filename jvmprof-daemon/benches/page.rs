//! Cost of the pages in a real Chromium: the collector's with trees of 1,000, 10,000 and 100,000
//! nodes, and recorded ones, which have 20,000 at most, with up to 18,000 cells in their heatmap.
//!
//! `cargo bench --bench page`: needs Chromium. Figures are of headless software rendering: the
//! frames of a desktop with a GPU are shorter.
//!
//! `-- day [--window=10s] [--pauses] [FOLDER]`: only the collector's page of the day of 50 JVMs
//! that the bench `answers` has, with its options: the time from the navigation until the graph is
//! drawn.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that can't go on ends")]
#![allow(dead_code, reason = "the pages' tests need more of these modules")]

#[path = "../tests/page/browser.rs"]
mod browser;
#[path = "../tests/page/data.rs"]
mod data;
mod day;
#[path = "../tests/page/server.rs"]
mod server;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::recording_page::{RecordingTitle, StackGroups, write_html};

use browser::Browser;
use data::{Numbers, Shape, window};
use day::{DAY, DayOptions, JVMS, StoredDay};
use server::{Server, fill, millis, open};

/// Nodes of a tree, and samples of each of 30 profiles that are enough for it.
const SIZES: [(usize, usize); 3] = [(1_000, 50), (10_000, 150), (100_000, 1_500)];

/// Samples of recordings of a quarter of an hour: the last one has as many nodes as a page may
/// have, and samples in nearly every cell of its heatmap.
const RECORDED_SAMPLES: [usize; 3] = [100, 1_500, 100_000];
const RECORDED: Duration = Duration::from_mins(15);

/// How often the mouse moves, and how often all else is done.
const MOVES: usize = 200;
const TURNS: usize = 30;

const WIDTH: u32 = 1440;
const HEIGHT: u32 = 900;

/// True once the graph is drawn.
const HAS_GRAPH: &str =
    "(globalThis.jvmprof?.view?.flame.root ? jvmprof.view.flame.drawnBoxes().length : 0) > 50";
const IDLE: &str = "!document.body.matches('.loading, .fetching')";

/// Waits until what was changed has been drawn.
const NEXT_FRAME: &str =
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))";

/// Frames a second while the graph scrolls for two seconds, and how many there were.
const SCROLLING: &str = "new Promise((done) => { const s = document.querySelector('.flame-scroller'); let n = 0; const t = performance.now(); \
const step = () => { const d = performance.now() - t; if (d > 2000) return done([(n * 1000) / d, n]); n++; s.scrollTop = (n % 40) * 20; requestAnimationFrame(step) }; requestAnimationFrame(step) })";

/// Milliseconds of CPU time that the page's main thread takes for something, each time that it is
/// done, in their order of size.
struct Costs(Vec<f64>);

impl Costs {
    fn new(mut taken: Vec<f64>) -> Self {
        taken.sort_by(f64::total_cmp);
        Self(taken)
    }

    /// The costs of moving the mouse, held down or not, to these places.
    fn of_moves(browser: &mut Browser, place: impl Fn(usize) -> [f64; 2]) -> Self {
        let taken = |at| cost(browser, |browser| browser.mouse_at("mouseMoved", place(at)));
        Self::new((0..MOVES).map(taken).collect())
    }

    /// The costs of two expressions that take turns.
    fn of_turns(browser: &mut Browser, expressions: [&str; 2]) -> [Self; 2] {
        let mut taken = [Vec::new(), Vec::new()];
        for turn in 0..2 * TURNS {
            let expression = format!("({}, 0)", expressions[turn % 2]);
            let cost = cost(browser, |browser| {
                browser.evaluate(&expression);
            });
            taken[turn % 2].push(cost);
        }
        taken.map(Self::new)
    }

    fn percentile(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent).div_ceil(100).max(1) - 1]
    }

    fn print(&self, what: &str) {
        println!("  {what:<28} {:>8.1} ms {:>8.1} ms", self.percentile(50), self.percentile(99));
    }
}

/// Milliseconds of CPU time of the page's main thread until what was done is drawn.
fn cost(browser: &mut Browser, act: impl FnOnce(&mut Browser)) -> f64 {
    let before = browser.cpu_ms();
    act(browser);
    browser.evaluate(NEXT_FRAME);
    browser.cpu_ms() - before
}

/// Left, top, width and height of the element in the window.
fn place(browser: &mut Browser, element: &str) -> [f64; 4] {
    let place = browser.evaluate(&format!(
        "(() => {{ const b = document.querySelector('{element}').getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
    ));
    [0, 1, 2, 3].map(|at| place[at].as_f64().unwrap())
}

/// Prints what a user's actions on a page with a graph cost.
fn measure(browser: &mut Browser) {
    println!("  {:<28} {:>11} {:>11}", "", "median", "99 % below");
    let idle = (0..MOVES).map(|_| cost(browser, |_| ())).collect();
    Costs::new(idle).print("two frames of nothing");
    let [left, top, width, height] = place(browser, ".flame-scroller");
    let part = |at: usize, of: usize| (at % of) as f64 / of as f64;
    let pointing = |at| [left + width * part(37 * at, 100), top + height * part(7 * at, 20)];
    Costs::of_moves(browser, pointing).print("pointing at another frame");
    let [search, end] =
        Costs::of_turns(browser, ["jvmprof.view.setSearch('HashMap')", "jvmprof.view.setSearch('')"]);
    search.print("search");
    end.print("its end");
    let middle =
        "jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('OrderController.place'))";
    let zoom = format!("jvmprof.view.flame.showZoomed({middle}, true)");
    let [zoom, whole] =
        Costs::of_turns(browser, [&zoom, "jvmprof.view.flame.showZoomed(jvmprof.view.flame.root, true)"]);
    zoom.print("zoom");
    whole.print("whole again");
    let before = browser.cpu_ms();
    let frames = browser.evaluate(SCROLLING);
    let a_frame = (browser.cpu_ms() - before) / frames[1].as_f64().unwrap();
    println!("  scrolling: {a_frame:.1} ms a frame, {:.0} frames a second", frames[0].as_f64().unwrap());
}

/// Prints what it costs to draw the mouse over a recorded page's heatmap, and to let it go.
fn measure_heatmap(browser: &mut Browser) {
    let cells = browser.evaluate("jvmprof.view.heatmap.cells.filter((samples) => samples > 0).length");
    let [left, top, width, height] = place(browser, ".heat");
    let at = |part: f64| [left + width * (0.02 + 0.9 * part), top + height * (0.5 + 0.4 * part)];
    browser.mouse_at("mouseMoved", at(0.0));
    browser.mouse_at("mousePressed", at(0.0));
    let dragging = Costs::of_moves(browser, |step| at((step + 1) as f64 / MOVES as f64));
    dragging.print(&format!("dragging over {cells} cells"));
    let chosen = cost(browser, |browser| browser.mouse_at("mouseReleased", at(1.0)));
    println!("  choosing that part: {chosen:.0} ms");
}

/// The frames of the page's tree.
fn frames(browser: &mut Browser) -> u64 {
    browser.evaluate("jvmprof.view.data.nodes.parent.length").as_u64().unwrap()
}

fn measure_collector(nodes: usize, samples: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Wide, samples);
    let server = Server::start(store, ReadLimits { nodes, ..ReadLimits::default() });
    let mut browser = Browser::start(WIDTH, HEIGHT);
    let before = browser.cpu_ms();
    browser.open(&server.url);
    browser.wait_for(HAS_GRAPH);
    let opened = browser.cpu_ms() - before;
    let begin = Instant::now();
    browser.evaluate(
        "fetch('/api/flamegraph?' + jvmprof.page.query).then((response) => response.arrayBuffer()).then(() => 0)",
    );
    let answer = begin.elapsed().as_secs_f64() * 1e3;
    let frames = frames(&mut browser);
    println!("collector, {frames} frames: opening {opened:.0} ms; the answer is there after {answer:.0} ms");
    measure(&mut browser);
}

fn measure_recording(samples: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.html");
    let batch = window(SystemTime::now(), RECORDED, samples, Shape::Wide, &mut Numbers::new(3));
    let title = RecordingTitle { title: "java -jar shop.jar".to_owned(), host: "worker-1".to_owned() };
    let mut file = BufWriter::new(File::create(&path).unwrap());
    write_html(&[batch], &[], StackGroups::Programs, &title, &mut file).unwrap();
    file.flush().unwrap();
    let size = std::fs::metadata(&path).unwrap().len() / 1_000;
    let mut browser = Browser::start(WIDTH, HEIGHT);
    let before = browser.cpu_ms();
    browser.open(&format!("file://{}", path.display()));
    browser.wait_for(HAS_GRAPH);
    let opened = browser.cpu_ms() - before;
    println!(
        "recording of {samples} samples, {} frames, {size} kB: opening {opened:.0} ms",
        frames(&mut browser)
    );
    measure(&mut browser);
    measure_heatmap(&mut browser);
}

/// Milliseconds since the navigation at which the graph was drawn or an error shown, and the error.
const SHOWN_AT: &str = "new Promise((done) => { const step = () => { \
const error = document.querySelector('.error')?.innerText ?? ''; const flame = globalThis.jvmprof?.view?.flame; \
if (error || (flame?.root && flame.drawnBoxes().length > 50)) done([performance.now(), error]); else requestAnimationFrame(step) }; step() })";

/// The paths of answers, and since the navigation when they were asked for and were there.
const ANSWERS: &str = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/')) \
.map(({ name, startTime, responseEnd }) => [new URL(name).pathname, startTime, responseEnd])";

/// Opens the page of the day, each time in a browser that knows nothing of it.
fn measure_day(options: &DayOptions) {
    let day = StoredDay::open(options);
    let server = Server::start(Arc::clone(&day.store), ReadLimits::default());
    let to = millis(day::end());
    let url = format!("{}/?from={}&to={to}", server.url, to - DAY.as_millis() as i64);
    println!("{} windows of {JVMS} JVMs; milliseconds since the navigation:", day.windows);
    for _ in 0..3 {
        let mut browser = Browser::start(WIDTH, HEIGHT);
        browser.open(&url);
        let shown = browser.evaluate(SHOWN_AT);
        browser.wait_for(IDLE);
        let idle = browser.evaluate("performance.now()").as_f64().unwrap();
        let answers = browser.evaluate(ANSWERS);
        for answer in answers.as_array().unwrap() {
            let [from, to] = [1, 2].map(|at| answer[at].as_f64().unwrap());
            println!("  {:<20} {from:>6.0} to {to:>6.0}", answer[0].as_str().unwrap());
        }
        let (drawn, error) = (shown[0].as_f64().unwrap(), shown[1].as_str().unwrap());
        println!("  drawn at {drawn:.0}, all there at {idle:.0} {error}");
    }
}

fn main() {
    if let Some(options) = DayOptions::of_process() {
        return measure_day(&options);
    }
    println!("CPU time of the page's main thread. `opening` is that until the graph is there.");
    for (nodes, samples) in SIZES {
        measure_collector(nodes, samples);
    }
    for samples in RECORDED_SAMPLES {
        measure_recording(samples);
    }
}
