//! The page of a recorded file.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, Line, Sample, Series};
use jvmprof_daemon::profile::recording_page::{PauseLane, RecordingTitle, StackGroups, write_html};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::{DRAWN, picture};

pub(crate) fn write(batch: &Batch, path: &Path) -> String {
    write_all(std::slice::from_ref(batch), path)
}

/// Writes the page of these batches and returns its address.
pub(crate) fn write_all(batches: &[Batch], path: &Path) -> String {
    write_with_pauses(batches, &[], path)
}

/// The same, of a recording that followed pauses.
pub(crate) fn write_with_pauses(batches: &[Batch], pauses: &[PauseLane], path: &Path) -> String {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let title =
        RecordingTitle { title: "java -jar shop.jar (pid 4242)".to_owned(), host: "worker-1".to_owned() };
    write_html(batches, pauses, StackGroups::Programs, &title, &mut file).unwrap();
    format!("file://{}", path.display())
}

/// The frame with most samples whose function has this name.
fn frame(name: &str) -> String {
    format!("jvmprof.view.flame.drawnBoxes().find((g) => g.data.name === '{name}')")
}

/// Something that stands where this frame is drawn.
pub(crate) fn at(frame: &str) -> String {
    format!("{{ getBoundingClientRect: () => jvmprof.view.flame.place({frame}) }}")
}

fn width(browser: &mut Browser, name: &str) -> f64 {
    browser.evaluate(&format!("jvmprof.view.flame.place({}).width", frame(name))).as_f64().unwrap()
}

fn search(browser: &mut Browser, text: &str) {
    browser.press("/");
    browser.type_text(text);
    browser.wait_for("document.querySelector('.matched').textContent !== ''");
}

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_file_is_drawn_searched_and_zoomed() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 20_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1280, 1100);
    browser.open(&url);
    browser.wait_for(DRAWN);
    let figures = browser.evaluate("document.querySelector('.figures').innerText");
    assert!(figures.as_str().unwrap().contains("21,850 samples"), "{figures}");

    search(&mut browser, "StockRepository");
    let found =
        "jvmprof.view.flame.drawnBoxes().filter((box) => jvmprof.view.flame.fill(box) === '#c21fb4').length";
    assert!(browser.evaluate(found).as_u64().unwrap() > 5);
    let share = browser.evaluate("document.querySelector('.matched').textContent");
    assert!(share.as_str().unwrap().ends_with("% matched"), "{share}");
    picture(&mut browser, "record-search");
    browser.press("Escape");
    browser.wait_for(&format!("{found} === 0"));

    let order = "com.acme.shop.order.OrderService.total";
    let before = width(&mut browser, order);
    browser.point(&at(&frame(order)), true);
    let whole = browser.evaluate("document.querySelector('.flame canvas').clientWidth").as_f64().unwrap();
    browser.wait_for(&format!("jvmprof.view.flame.place({}).width > {whole} * 0.95", frame(order)));
    assert!(before < whole * 0.6);
    browser.wait_for(
        "!document.querySelector('.tip').hidden || document.querySelector('.status').textContent !== ''",
    );
    picture(&mut browser, "record-zoom");
    browser.evaluate("document.activeElement.blur()");
    browser.press("Escape");
    browser.wait_for(&format!("Math.abs(jvmprof.view.flame.place({}).width - {before}) < 2", frame(order)));

    browser.point("document.querySelector('.brand')", false);
    browser.wait_for("document.querySelector('.tip').hidden && jvmprof.view.flame.canvas.part === 1");
    browser.point(&at(&frame(order)), false);
    browser.wait_for("!document.querySelector('.tip').hidden");
    let tip = browser.evaluate("document.querySelector('.tip').innerText");
    for part in [order, "Java · jvm", "OrderService.java:4", "Samples", "Self", "Ran"] {
        assert!(tip.as_str().unwrap().contains(part), "{part} in {tip}");
    }
    picture(&mut browser, "record-tooltip");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn keys_move_zoom_and_switch() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1280, 800);
    browser.open(&url);
    browser.wait_for(DRAWN);
    browser.press("f");
    for _ in 0..3 {
        browser.press("ArrowDown");
    }
    browser.wait_for("document.querySelector('.tip-name')?.textContent === '__clone3'");
    browser.press("ArrowUp");
    browser.press("ArrowRight");
    browser.wait_for("document.querySelector('.tip-name').textContent === 'postgres'");
    browser.press("Enter");
    browser.wait_for("document.querySelector('.status').textContent.includes('postgres')");
    browser.wait_for("!jvmprof.view.flame.drawnBoxes().some((g) => g.data.name === 'java')");
    picture(&mut browser, "record-keys");
    browser.press("Escape");
    browser.wait_for(&format!("Boolean({})", frame("java")));
    // Zooming out begins where the zoom stood and moves from there.
    let picture_of = "document.querySelector('.flame-canvas').toDataURL()";
    let still = "jvmprof.view.flame.canvas.part === 1";
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({})", frame("postgres")));
    browser.wait_for(still);
    let begin = browser.evaluate(&format!("(jvmprof.view.flame.resetZoom(), {picture_of})"));
    browser.wait_for(still);
    assert_ne!(browser.evaluate(picture_of), begin);
    browser.press("3");
    browser.wait_for("document.querySelector('.panes').dataset.view === 'table'");
    picture(&mut browser, "record-table");
    browser.press("1");
    let row_of_root = "jvmprof.view.flame.place(jvmprof.view.flame.root).y";
    let top = browser.evaluate(row_of_root).as_f64().unwrap();
    browser.press("i");
    browser.wait_for(&format!("{row_of_root} > {top} + 100"));
    picture(&mut browser, "record-root-at-bottom");
    browser.press("i");
    let depth = "Math.max(...jvmprof.view.flame.drawnBoxes().map((g) => g.depth))";
    assert!(browser.evaluate(depth).as_u64().unwrap() > 1_000);
    browser.press("r");
    browser.wait_for(&format!("{depth} < 100"));
    picture(&mut browser, "record-folded");
    browser.press("?");
    browser.wait_for("document.querySelector('dialog').open");
    picture(&mut browser, "record-help");
    assert_eq!(browser.complaints, [""; 0]);
}

/// Of a tree at both bounds: 4,096 deep and 20,000 nodes.
#[test]
#[ignore = "needs Chromium"]
fn the_largest_tree_stays_responsive() {
    let folder = tempfile::tempdir().unwrap();
    let mut batch =
        window(SystemTime::now(), Duration::from_secs(10), 60_000, Shape::Wide, &mut Numbers::new(3));
    let frames: Vec<_> = (0..4_200).map(|depth| named(&format!("deep{}", depth % 900))).collect();
    batch.series[0].samples.push(Sample::of_events(frames.into(), 20_000, 20_000 * 10_000_000));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1920, 1080);
    let before = browser.cpu_ms();
    browser.open(&url);
    browser.wait_for(DRAWN);
    let opened = browser.cpu_ms() - before;
    let mut cost = |what: &str| {
        let before = browser.cpu_ms();
        browser.evaluate(&format!("({what}, document.body.offsetHeight, 0)"));
        browser.cpu_ms() - before
    };
    let search = cost("jvmprof.view.setSearch('HashMap')");
    let clear = cost("jvmprof.view.setSearch('')");
    let zoom = cost("jvmprof.view.flame.zoomTo(jvmprof.view.flame.root.children[0].children[1])");
    let reset = cost("jvmprof.view.flame.resetZoom()");
    let invert = cost("jvmprof.view.change({ rootOnTop: false })");
    let costs = format!(
        "ms of CPU time: opened {opened:.0}, search {search:.0}, clear {clear:.0}, zoom {zoom:.0}, reset {reset:.0}, invert {invert:.0}"
    );
    eprintln!("{costs}");
    // Wide margins for slow machines: what this guards against is a page that hangs.
    assert!(opened < 30_000.0, "{costs}");
    assert!([search, clear, zoom, reset, invert].into_iter().all(|took| took < 10_000.0), "{costs}");
    picture(&mut browser, "record-largest");
    assert_eq!(browser.complaints, [""; 0]);
}

fn named(name: &str) -> Arc<Frame> {
    let line = Line::named(name);
    Arc::new(Frame { kind: FrameKind::Java, address: None, mapping: None, lines: vec![line] })
}

#[test]
#[ignore = "needs Chromium"]
fn hostile_names_do_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = [
        "</script><script>document.title = 'owned'</script>",
        "<img src=x onerror=\"document.title = 'owned'\">",
        "<!--<script>",
        "{{scripts}}",
        "\u{202e}\u{0}javascript:alert(1)",
        "",
    ];
    let frames = hostile.iter().map(|name| named(name)).collect();
    let samples = vec![Sample::of_events(frames, 3, 3 * 10_000_000)];
    let labels =
        |name: &str| [("comm".to_owned(), hostile[0].to_owned()), ("pid".to_owned(), name.to_owned())].into();
    let batch = Batch {
        event: EventType::Cpu,
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        period: 10_000_000,
        series: vec![
            Series { labels: labels("1"), samples: samples.clone() },
            Series { labels: labels("2"), samples },
        ],
    };
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1280, 800);
    browser.open(&format!("{url}#group=process"));
    browser.wait_for("globalThis.jvmprof?.view?.flame.root && jvmprof.view.flame.drawnBoxes().length === 15");
    browser.point(&at("jvmprof.view.flame.drawnBoxes()[4]"), false);
    browser.wait_for("!document.querySelector('.tip').hidden");
    browser.press("2");
    browser.wait_for("document.querySelectorAll('table.top tbody tr').length === 6");
    assert_eq!(browser.evaluate("document.images.length"), 0);
    let title = browser.evaluate("document.title");
    assert!(title.as_str().unwrap().starts_with("java -jar shop.jar (pid 4242) · worker-1 · "), "{title}");
    picture(&mut browser, "record-hostile");
    assert_eq!(browser.complaints, [""; 0]);
}
