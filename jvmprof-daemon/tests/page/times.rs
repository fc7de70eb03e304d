//! When samples were taken, on the page of a recording.

use std::time::{Duration, SystemTime};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::widths::{WIDTHS, assert_all_is_reachable};
use crate::{picture, visit};

const TOTAL: &str = "jvmprof.view.tree.value";

#[test]
#[ignore = "needs Chromium"]
fn a_part_of_a_recording_is_chosen_in_its_heatmap() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(20), 6_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let heat = browser.evaluate("(() => { const b = document.querySelector('.heat').getBoundingClientRect(); return [b.x, b.y, b.width] })()");
    let at = |share: f64, y: f64| {
        [heat[0].as_f64().unwrap() + heat[2].as_f64().unwrap() * share, heat[1].as_f64().unwrap() + y]
    };
    // Of the load: from 5 to 10 s of 20.
    browser.drag(at(0.25, 20.0), at(0.5, 20.0));
    browser.wait_for(&format!("{TOTAL} < {all}"));
    let part = browser.evaluate("jvmprof.view.state.part");
    assert!((part[0].as_f64().unwrap() - 5_000.0).abs() < 50.0, "{part}");
    let samples = "jvmprof.view.times.from(jvmprof.view.state.part[1]) - jvmprof.view.times.from(jvmprof.view.state.part[0])";
    assert_eq!(browser.evaluate(TOTAL), browser.evaluate(samples));
    browser.press("2");
    browser.evaluate("[...document.querySelectorAll('button.opener')][0].click()");
    browser.wait_for("document.querySelector('.top tr.detail .line')?.textContent.includes('.java:')");
    let url_of_part = browser.evaluate("location.href");
    assert!(url_of_part.as_str().unwrap().contains("part="));
    for (width, scheme) in WIDTHS.into_iter().flat_map(|width| [(width, "light"), (width, "dark")]) {
        browser.resize(width, 900);
        browser.prefer(scheme);
        browser.open("about:blank");
        visit(&mut browser, url_of_part.as_str().unwrap());
        assert_all_is_reachable(&mut browser, width, "a part");
        picture(&mut browser, &format!("times-{width}-{scheme}"));
    }
    browser.evaluate("document.querySelector('.edits .chip-remove').click()");
    browser.wait_for(&format!("{TOTAL} === {all}"));

    // Keys: a second by its parts.
    browser.resize(1440, 900);
    browser.evaluate("document.querySelector('.heatmap').focus()");
    browser.press("ArrowRight");
    browser.press("ArrowRight");
    browser.press_with_shift("ArrowDown");
    browser.press("Enter");
    browser.wait_for("String(jvmprof.view.state.part) === '1000,1100'");
    browser.evaluate("document.querySelector('.heatmap').focus()");
    browser.press("Escape");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    assert_eq!(browser.complaints, [""; 0]);
}

/// With the times of all samples, and as many different stacks as a program has.
#[test]
#[ignore = "needs Chromium"]
fn a_page_of_100_000_samples_has_less_than_a_megabyte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.html");
    let batch =
        window(SystemTime::now(), Duration::from_secs(60), 100_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &path);
    let size = std::fs::metadata(&path).unwrap().len();
    eprintln!("{size} bytes for {} samples", batch.samples());
    assert!(size < 1_000_000, "{size}");
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    assert_eq!(browser.evaluate("jvmprof.view.times.times.length"), 100_000);
    picture(&mut browser, "times-100000");
    assert_eq!(browser.complaints, [""; 0]);
}
