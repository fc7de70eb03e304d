//! Fingers on the collector's timeline and on the heatmap of a recording: along it they choose, up
//! they scroll the page.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use super::TOTAL;
use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::server::{Server, fill_busy, open};
use crate::{IDLE, picture, visit};

/// Left, top, width and height of the element in the window.
fn place(browser: &mut Browser, element: &str) -> [f64; 4] {
    let place = browser.evaluate(&format!(
        "(() => {{ const b = {element}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
    ));
    [0, 1, 2, 3].map(|at| place[at].as_f64().unwrap())
}

/// Draws a finger from the middle of the element upwards, and checks that the page went along.
fn assert_scrolls(browser: &mut Browser, element: &str) {
    browser.evaluate("scrollTo(0, 0)");
    browser.wait_for("scrollY === 0 && document.documentElement.scrollHeight > innerHeight + 100");
    let [left, top, width, height] = place(browser, element);
    let from = [left + width / 2.0, top + height / 2.0];
    assert!(from[1] > 120.0, "there is room for the finger above {}", from[1]);
    browser.touch_drag(from, [from[0], from[1] - 100.0]);
    browser.wait_for("scrollY > 50");
    browser.evaluate("scrollTo(0, 0)");
}

#[test]
#[ignore = "needs Chromium"]
fn a_finger_chooses_along_the_collectors_timeline_and_scrolls_across_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(540), 40);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(420, 800);
    browser.emulate_touch();
    let timeline = "document.getElementById('timeline')";
    for heat in ["", "activities"] {
        visit(&mut browser, &format!("{}/?timeline={heat}", server.url));
        let all = browser.evaluate(TOTAL).as_u64().unwrap();
        assert_scrolls(&mut browser, timeline);
        assert_eq!(browser.evaluate("document.querySelectorAll('.bars .selection').length"), 0);
        assert_eq!(browser.evaluate("location.search.includes('from=')"), false, "nothing was chosen");

        let [left, top, width, _] = place(&mut browser, timeline);
        let gutter = browser.evaluate("jvmprof.page.timeline.left").as_f64().unwrap();
        assert_eq!(gutter > 0.0, heat == "activities");
        let at = |part: f64| [left + gutter + (width - gutter) * part, top + 20.0];
        browser.evaluate("globalThis.range = [jvmprof.page.timeline.from, jvmprof.page.timeline.to], 0");
        browser.touch_drag(at(0.3), at(0.9));
        browser.wait_for("location.search.includes('from=')");
        browser.wait_for(IDLE);
        let parts = browser.evaluate(
            "['from', 'to'].map((name) => (Number(new URLSearchParams(location.search).get(name)) - range[0]) / (range[1] - range[0]))",
        );
        for (part, expected) in [(&parts[0], 0.3), (&parts[1], 0.9)] {
            assert!((part.as_f64().unwrap() - expected).abs() < 0.02, "{parts}");
        }
        let part = browser.evaluate(TOTAL).as_u64().unwrap();
        assert!((1..all).contains(&part), "{part} of {all}");
        assert_eq!(browser.evaluate("scrollY"), 0, "the page stays where it was");
        picture(&mut browser, &format!("touch-timeline-{heat}"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_finger_chooses_along_a_recordings_heatmap_and_scrolls_across_it() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(20), 6_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(420, 800);
    browser.emulate_touch();
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let heat = "document.querySelector('.heat')";
    assert_scrolls(&mut browser, heat);
    assert_eq!(browser.evaluate(TOTAL), all, "nothing was chosen");
    let is_marked = "Boolean(jvmprof.view.heatmap.drawnPart())";
    assert_eq!(browser.evaluate(is_marked), false);

    // Of the load: from 5 to 10 s of 20.
    let [left, top, width, _] = place(&mut browser, heat);
    browser.touch_drag([left + width * 0.25, top + 20.0], [left + width * 0.5, top + 20.0]);
    browser.wait_for(&format!("{TOTAL} < {all}"));
    let part = browser.evaluate("jvmprof.view.state.part");
    // A pixel is 50 ms.
    for (at, expected) in [(&part[0], 5_000.0), (&part[1], 10_000.0)] {
        assert!((at.as_f64().unwrap() - expected).abs() < 110.0, "{part}");
    }
    assert_eq!(browser.evaluate("scrollY"), 0, "the page stays where it was");
    assert_scrolls(&mut browser, heat);
    assert_eq!(browser.evaluate("jvmprof.view.state.part"), part, "it stays chosen");
    picture(&mut browser, "touch-heatmap");
    assert_eq!(browser.complaints, [""; 0]);
}
