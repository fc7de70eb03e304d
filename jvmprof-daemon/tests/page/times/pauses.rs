//! The lane of JVMs' pauses on the collector's page.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, pauses, window};
use crate::server::{Server, millis, open, push};
use crate::widths::{assert_all_is_reachable, windows};
use crate::{IDLE, picture, visit};

const TEXT: &str = "document.querySelector('.pause-text').textContent";
const HINT: &str = "document.querySelector('.pauses .timeline-hint').textContent";

#[test]
#[ignore = "needs Chromium"]
fn the_collectors_timeline_has_the_pauses_of_jvms_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let ten_seconds = Duration::from_secs(10);
    // A round time, and two windows of ten seconds from then on.
    let from = millis(SystemTime::now() - Duration::from_secs(600)) / 1_000 * 1_000;
    let start = SystemTime::UNIX_EPOCH + Duration::from_millis(from as u64);
    for (at, stops) in [
        (start, &[(4_000, 10, 500, "G1CollectFull", Some("System.gc()"))][..]),
        (start + ten_seconds, &[(2_000, 100, 80, "ThreadDump", None)]),
    ] {
        push(&store, &window(at, ten_seconds, 300, Shape::Program, &mut Numbers::new(1)));
        push(&store, &pauses(at, ten_seconds, stops));
    }
    let server = Server::start(store, ReadLimits::default());
    let url = |from: i64, to: i64, rest: &str| format!("{}/?from={from}&to={to}{rest}", server.url);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url(from, from + 20_000, ""));
    // 500, 80 and twice 20 ms of 20 s; 110 ms until all threads had stopped.
    let whole = browser.evaluate(TEXT);
    let whole = whole.as_str().unwrap();
    let expected = "java (4242) was stopped for 620 ms, 3.10 % of the 20.0 s that its profiles cover, 82 pauses, \
                    and took 110 ms (0.55 %) to reach safepoints; the lane has the longest 2, of them the longest 500 ms at ";
    assert!(whole.starts_with(expected), "{whole}");
    assert!(whole.ends_with(".000, 10 ms to the safepoint: G1CollectFull (System.gc())"), "{whole}");
    // What is drawn there, by its share of red.
    let red = |seconds: f64, left: &str| {
        format!(
            "(() => {{ const canvas = document.querySelector('.pause-marks'); const left = {left} * devicePixelRatio; \
             const at = Math.round(left + (canvas.width - left) * {seconds} / 20); \
             const [r, g, , a] = canvas.getContext('2d').getImageData(at, canvas.height / 2, 1, 1).data; return a > 0 && r > g }})()"
        )
    };
    for (seconds, expected) in [(4.2, true), (12.14, true), (3.0, false), (8.0, false)] {
        assert_eq!(browser.evaluate(&red(seconds, "0")), expected, "at {seconds} s");
    }

    // By the mouse, and by keys.
    let at = "(() => { const b = document.querySelector('.pause-marks').getBoundingClientRect(); \
              return { getBoundingClientRect: () => new DOMRect(b.x + b.width * 4.2 / 20, b.y, 1, b.height) } })()";
    browser.point(at, false);
    browser.wait_for(&format!(
        "{HINT}.endsWith('stopped for 500 ms, 10 ms to the safepoint: G1CollectFull (System.gc())')"
    ));
    picture(&mut browser, "collector-pauses");
    let hint = browser.evaluate(HINT);
    let hint = hint.as_str().unwrap().to_owned();
    let (begin, end) = hint.split_once(" \u{b7} ").unwrap().0.split_once(" \u{2013} ").unwrap();
    assert!(begin.ends_with(".000") && end.ends_with(".510"), "begin and end: {hint}");
    // Away from the lane, where a browser repeats the mouse's move after it has drawn.
    browser.point("document.querySelector('.brand')", false);
    browser.wait_for(&format!("{HINT} === ''"));
    browser.evaluate("document.querySelector('.pause-lane').focus()");
    browser.press("ArrowRight");
    assert_eq!(browser.evaluate(HINT), hint.as_str());
    browser.press("ArrowRight");
    browser.wait_for(&format!("{HINT}.endsWith('stopped for 80 ms, 100 ms to the safepoint: ThreadDump')"));
    browser.press("Escape");
    assert_eq!(browser.evaluate(HINT), "");

    // Heatmaps have their names at the left; the lane keeps below their columns.
    browser.evaluate("(() => { const it = document.querySelector('select[aria-label=\"What the timeline shows\"]'); it.value = 'groups'; it.dispatchEvent(new Event('change')) })()");
    browser.wait_for("jvmprof.page.timeline.left > 0");
    assert_eq!(browser.evaluate(&red(4.2, "jvmprof.page.timeline.left")), true);
    assert_eq!(browser.evaluate(&red(3.0, "jvmprof.page.timeline.left")), false);

    // A chosen range has its own sum and share: half of the longest pause.
    browser.open(&url(from + 4_260, from + 5_260, ""));
    browser.wait_for(&format!("document.querySelector('.pause-text') && {TEXT} !== ''"));
    let part = browser.evaluate(TEXT);
    let part = part.as_str().unwrap();
    assert!(part.starts_with("java (4242) was stopped for 250 ms, 25.0 % of the 1.00 s"), "{part}");
    assert!(part.contains(", 1 pause, "), "{part}");

    // So has a part of it, which the lane marks as the heatmap does. When the 40 were that are
    // summed isn't known.
    let url_of_part = url(from, from + 20_000, "&timeline=seconds&part=4260-5260");
    browser.open(&url_of_part);
    let in_part = format!(
        "{TEXT}.startsWith('java (4242) was stopped for at least 250 ms, 25.0 % of the 1.00 s that its profiles cover, 1 pause whose time is known, ')"
    );
    browser.wait_for(&format!("document.querySelector('.pause-text') && {in_part}"));
    browser.wait_for(IDLE);
    let marked = |seconds: f64| {
        format!(
            "(() => {{ const canvas = document.querySelector('.pause-marks'); const at = Math.round(canvas.width * {seconds} / 20); \
             return canvas.getContext('2d').getImageData(at, canvas.height / 2, 1, 1).data[3] > 0 }})()"
        )
    };
    for (seconds, expected) in [(4.9, true), (5.1, true), (3.0, false), (8.0, false)] {
        assert_eq!(browser.evaluate(&marked(seconds)), expected, "at {seconds} s");
    }
    assert_eq!(browser.evaluate(&red(4.4, "0")), true);
    picture(&mut browser, "collector-pauses-part");
    browser.evaluate("document.querySelector('.edits .chip-remove').click()");
    browser.wait_for(&format!("{TEXT}.startsWith('java (4242) was stopped for 620 ms')"));
    assert_eq!(browser.evaluate(&marked(4.9)), false);
    browser.evaluate("history.back()");
    browser.wait_for(&in_part);

    // Whatever is counted, pauses are there by the same labels, and a profile of their own, too.
    for (rest, expected) in [("&match=comm=java", true), ("&match=comm=postgres", false)] {
        browser.open(&url(from, from + 20_000, rest));
        browser.wait_for(&format!("globalThis.jvmprof?.view?.flame.root && {IDLE}"));
        assert_eq!(browser.evaluate("!document.querySelector('.pauses').hidden"), expected, "{rest}");
    }
    browser.open(&url(from, from + 20_000, "&type=jvm_pauses:pause"));
    browser.wait_for("(document.querySelector('.figures')?.innerText ?? '').includes('730 ms of pauses')");
    assert_eq!(browser.evaluate("document.querySelector('.pauses').hidden"), false);

    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        visit(&mut browser, &url(from, from + 20_000, ""));
        assert!(browser.evaluate(TEXT).as_str().unwrap().contains("620 ms"));
        assert_all_is_reachable(&mut browser, width, "pauses");
        picture(&mut browser, &format!("collector-pauses-{width}-{scheme}"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}
