//! Times of samples, on the page of a recording.

mod collector;
mod pauses;
mod touch;

use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::model::Batch;
use jvmprof_daemon::profile::recording_page::{PauseLane, PauseMark};
use serde_json::Value;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::{write, write_with_pauses};
use crate::widths::{assert_all_is_reachable, windows};
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
    for (width, scheme) in windows() {
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

/// Samples of both sides of a comparison of two parts, and those that were taken in each.
const SIDES: &str = "jvmprof.view.comparison.sides.map(({ total }) => total)";
const IN_PARTS: &str = "['basePart', 'part'].map((name) => jvmprof.view.state[name]).map(([from, to]) => jvmprof.view.times.from(to) - jvmprof.view.times.from(from))";

#[test]
#[ignore = "needs Chromium"]
fn two_parts_of_a_recording_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(20), 6_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL);
    browser.open("about:blank");
    visit(&mut browser, &format!("{url}#part=0-5000"));
    browser.point(
        "[...document.querySelectorAll('.edits button')].find((it) => it.innerText === 'Compare with another part')",
        true,
    );
    let notices = "document.querySelector('.notices').textContent";
    browser.wait_for(&format!("{notices}.includes('Choose the part to compare with this one')"));
    let heat = browser.evaluate("(() => { const b = document.querySelector('.heat').getBoundingClientRect(); return [b.x, b.y, b.width] })()");
    let at = |share: f64| {
        [heat[0].as_f64().unwrap() + heat[2].as_f64().unwrap() * share, heat[1].as_f64().unwrap() + 20.0]
    };
    browser.drag(at(0.5), at(0.75));
    browser.wait_for("jvmprof.view.state.part[0] > 5_000");
    assert_eq!(browser.evaluate(&format!("{notices}.includes('Choose the part')")), false);
    let sides = browser.evaluate(SIDES);
    assert_eq!(sides, browser.evaluate(IN_PARTS));
    assert!(sides[0].as_u64() > sides[1].as_u64(), "there is more in the first half: {sides}");
    let chips =
        browser.evaluate("[...document.querySelectorAll('.edits .chip-text')].map((it) => it.innerText)");
    assert_eq!(chips[0], "before: 0 s – 5 s");
    assert!(chips[1].as_str().unwrap().starts_with("after: "), "{chips}");
    // By share most is the same; by time there is less of everything.
    let coloured = "[...document.querySelectorAll('.top tbody td:is(.more-than, .less-than)')].length";
    let by_share = browser.evaluate(coloured);
    browser.press("n");
    browser.wait_for("location.hash.includes('by=time')");
    assert!(browser.evaluate(coloured).as_u64() > by_share.as_u64());
    // What fell most is the last.
    browser.evaluate(
        "(jvmprof.view.change({ sort: '-attributed' }), document.querySelector('button.opener').click(), 0)",
    );
    browser.wait_for("[...document.querySelectorAll('.top tr.detail')].some((it) => /\\.java:\\d+.* → /s.test(it.textContent))");
    let compared = browser.evaluate("location.href");
    assert!(compared.as_str().unwrap().contains("base_part=0-5000"), "{compared}");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        browser.open("about:blank");
        visit(&mut browser, compared.as_str().unwrap());
        assert_eq!(browser.evaluate(SIDES), sides, "the address says all of it");
        assert_all_is_reachable(&mut browser, width, "two parts");
        picture(&mut browser, &format!("times-compared-{width}-{scheme}"));
    }

    browser.evaluate("document.querySelector('.edits .chip-remove').click()");
    browser.wait_for(&format!("!jvmprof.view.comparison && {TOTAL} === {}", sides[1]));
    browser.evaluate("history.back()");
    browser.wait_for(&format!("String(jvmprof.view.comparison && {SIDES}) === '{},{}'", sides[0], sides[1]));
    browser.evaluate("document.querySelector('.heatmap').focus()");
    browser.press("Escape");
    browser.wait_for(&format!("!jvmprof.view.comparison && {TOTAL} === {all}"));
    assert_eq!(browser.evaluate("location.hash.includes('part=')"), false);
    assert_eq!(browser.complaints, [""; 0]);
}

/// A JVM that was followed for 20 s, with two pauses.
fn shop(marks: Vec<PauseMark>) -> PauseLane {
    PauseLane {
        jvm: "Shop (7)".to_owned(),
        followed_from_ms: 0.0,
        followed_ms: 20_000.0,
        followed_spans_ms: Vec::new(),
        pauses: 2,
        stopped_ms: 600.0,
        to_safepoint_ms: 20.0,
        marks,
    }
}

/// Records a program, and returns the page's sentences of these lanes, which have no marks.
fn sentences(batch: Batch, lanes: &[PauseLane], fragment: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let url = write_with_pauses(&[batch], lanes, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}{fragment}"));
    let hidden = "document.querySelector('.pause-lane').hidden";
    assert_eq!(browser.evaluate(hidden), true, "there is nothing to draw");
    let sentences = browser.evaluate("document.querySelector('.pause-text').textContent");
    assert_eq!(browser.complaints, [""; 0]);
    sentences
}

#[test]
#[ignore = "needs Chromium"]
fn of_jvms_whose_sums_alone_are_known_these_are_said() {
    let batch =
        || window(SystemTime::now(), Duration::from_secs(20), 6_000, Shape::Program, &mut Numbers::new(1));
    let lane = shop(Vec::new());
    let text = |time: &str| {
        format!(
            "Shop (7) was stopped for 600 ms, 3.00 % of {time}, 2 pauses, and took 20 ms (0.10 %) to reach safepoints"
        )
    };
    assert_eq!(sentences(batch(), std::slice::from_ref(&lane), ""), text("the time"));
    assert_eq!(sentences(batch(), &[lane], "#part=5010-6010"), text("the whole time"));
}

#[test]
#[ignore = "needs Chromium"]
fn pauses_stand_below_the_timeline_with_their_share_of_what_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(20), 6_000, Shape::Program, &mut Numbers::new(1));
    let mark = |begin_ms: f64, stopped_ms: f64, what: &str| PauseMark {
        begin_ms,
        to_safepoint_ms: 10.0,
        stopped_ms,
        what: what.to_owned(),
    };
    let marks = vec![mark(5_000.0, 500.0, "G1CollectFull (System.gc())"), mark(15_000.0, 100.0, "</script>")];
    let lane = shop(marks);
    let url = write_with_pauses(&[batch], &[lane], &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let text = "document.querySelector('.pause-text').textContent";
    let whole = browser.evaluate(text);
    let whole = whole.as_str().unwrap();
    assert!(
        whole.starts_with(
            "Shop (7) was stopped for 600 ms, 3.00 % of the time, 2 pauses, and took 20 ms (0.10 %)"
        ),
        "{whole}"
    );
    assert!(whole.contains("500 ms at 5.000 s") && whole.ends_with("G1CollectFull (System.gc())"), "{whole}");
    // What is drawn there, by its share of red.
    let red = |seconds: f64| {
        let at = format!("Math.round(canvas.width * {seconds} / 20)");
        format!(
            "(() => {{ const canvas = document.querySelector('.pause-marks'); const [r, g, , a] = canvas.getContext('2d').getImageData({at}, canvas.height / 2, 1, 1).data; return a > 0 && r > g }})()"
        )
    };
    for (seconds, expected) in [(5.2, true), (15.05, true), (4.0, false), (10.0, false)] {
        assert_eq!(browser.evaluate(&red(seconds)), expected, "at {seconds} s");
    }
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#part=5010-6010"));
        browser.wait_for(&format!(
            "{text}.startsWith('Shop (7) was stopped for 500 ms, 50.0 % of the time, 1 pause,')"
        ));
        assert_all_is_reachable(&mut browser, width, "pauses");
        picture(&mut browser, &format!("pauses-{width}-{scheme}"));
    }
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

/// With the time of each sample of CPU time, allocations of many sizes, and pauses.
#[test]
#[ignore = "needs Chromium"]
fn a_page_of_100_000_samples_of_cpu_time_and_allocation_has_less_than_a_megabyte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.html");
    let (now, length, mut numbers) = (SystemTime::now(), Duration::from_secs(60), Numbers::new(1));
    let cpu = window(now, length, 80_000, Shape::Program, &mut numbers);
    let mut allocation = window(now, length, 20_000, Shape::Program, &mut numbers);
    allocation.event = EventType::Allocation;
    for sample in allocation.series.iter_mut().flat_map(|series| &mut series.samples) {
        let size = 16_u64 << numbers.below(8);
        sample.times.clear();
        sample.value = sample.events * (524_288 + size * numbers.below(1_000) as u64);
        sample.count = sample.value / size;
    }
    let bytes = allocation.series.iter().flat_map(|series| &series.samples).map(|sample| sample.value);
    let bytes: u64 = bytes.sum();
    let mark = |pause: u16| PauseMark {
        begin_ms: f64::from(pause) * 39.7,
        to_safepoint_ms: f64::from(pause % 37) / 100.0,
        stopped_ms: f64::from(pause % 101) / 7.0,
        what: "G1CollectForAllocation (G1 Evacuation Pause)".to_owned(),
    };
    let lane = shop((0..500).map(mark).collect());
    let url = write_with_pauses(&[cpu, allocation], &[lane], &path);
    let size = std::fs::metadata(&path).unwrap().len();
    eprintln!("{size} bytes");
    assert!(size < 1_000_000, "{size}");
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    assert_eq!(browser.evaluate("jvmprof.view.times.times.length"), 80_000);
    let nodes = "jvmprof.view.data.nodes.parent.length";
    let all = browser.evaluate(nodes).as_u64().unwrap();
    assert!((19_000..=20_000).contains(&all), "{all}");
    browser.evaluate("(jvmprof.page.choose('alloc_space'), 0)");
    assert_eq!(browser.evaluate(TOTAL), bytes, "no byte is lost");
    let of_bytes = browser.evaluate(nodes).as_u64().unwrap();
    assert!((9_000..=10_000).contains(&of_bytes), "{of_bytes}");
    assert_eq!(browser.complaints, [""; 0]);
}
