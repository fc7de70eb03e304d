//! The same on the collector's page, of profiles with the times of their samples.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use super::{IN_PARTS, SIDES, TOTAL};
use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::server::{Server, millis, open, push};
use crate::widths::{assert_all_is_reachable, windows};
use crate::{IDLE, picture, visit};

const IS_SHOWN: &str = "!document.querySelector('.heatmap').hidden";

/// The samples of the chosen part, by the times that the page has.
const IN_PART: &str = "jvmprof.view.times.from(jvmprof.view.state.part[1]) - jvmprof.view.times.from(jvmprof.view.state.part[0])";

#[test]
#[ignore = "needs Chromium"]
fn a_part_of_the_collectors_time_is_chosen_by_sub_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (length, mut numbers) = (Duration::from_secs(10), Numbers::new(3));
    let begin = SystemTime::now() - Duration::from_secs(60);
    for start in [begin, begin + length] {
        push(&store, &window(start, length, 3_000, Shape::Program, &mut numbers));
    }
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    let range = format!("from={}&to={}", millis(begin), millis(begin) + 20_000);
    visit(&mut browser, &format!("{}/?match=comm=java&{range}", server.url));
    assert_eq!(browser.evaluate(IS_SHOWN), false, "times are asked for where they are wanted");
    let choose =
        "jvmprof.page.heats.value = 'seconds', jvmprof.page.heats.dispatchEvent(new Event('change')), 0";
    browser.evaluate(choose);
    browser.wait_for(IS_SHOWN);
    browser.wait_for(IDLE);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();

    // Of the heatmap: from the middle of the third second to that of the ninth.
    let heat = browser.evaluate("(() => { const b = document.querySelector('.heat').getBoundingClientRect(); return [b.x, b.y, b.width] })()");
    let at = |second: f64| {
        let x = heat[0].as_f64().unwrap() + heat[2].as_f64().unwrap() * (second + 0.5) / 20.0;
        [x, heat[1].as_f64().unwrap() + 44.0 + 4.0 + 31.0]
    };
    browser.drag(at(2.0), at(8.0));
    browser.wait_for(&format!("{TOTAL} < {all}"));
    let part = browser.evaluate("jvmprof.view.state.part");
    assert_eq!(part, serde_json::json!([2_500, 8_500]));
    let total = browser.evaluate(TOTAL);
    assert_eq!(total, browser.evaluate(IN_PART));
    let exactly = format!("from={}&to={}&times=known", millis(begin) + 2_500, millis(begin) + 8_500);
    let answer = format!("fetch('/api/flamegraph?match=comm=java&{exactly}').then((it) => it.json())");
    assert_eq!(browser.evaluate(&format!("{answer}.then((it) => it.tree.total)")), total);
    let download = browser.evaluate("jvmprof.page.refreshDownload(), jvmprof.page.download.href");
    let download = download.as_str().unwrap();
    assert!(exactly.split('&').all(|parameter| download.contains(parameter)), "{download}");
    let url_of_part = browser.evaluate("location.href");
    assert!(url_of_part.as_str().unwrap().contains("timeline=seconds&part="), "{url_of_part}");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        browser.open("about:blank");
        visit(&mut browser, url_of_part.as_str().unwrap());
        assert_eq!(browser.evaluate(TOTAL), total, "the address says all of it");
        assert_all_is_reachable(&mut browser, width, "a part of the collector's time");
        picture(&mut browser, &format!("collector-seconds-{width}-{scheme}"));
    }

    // Keys, and back.
    browser.resize(1440, 900);
    browser.evaluate("document.querySelector('.edits .chip-remove').click()");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    browser.evaluate("document.querySelector('.heatmap').focus()");
    browser.press("ArrowRight");
    browser.press("ArrowRight");
    browser.press_with_shift("ArrowDown");
    browser.press("Enter");
    browser.wait_for("String(jvmprof.view.state.part) === '1000,1100'");
    browser.evaluate("history.back()");
    browser.wait_for(&format!("!jvmprof.view.state.part && {TOTAL} === {all}"));
    browser.wait_for(IDLE);

    // A time that moves stays where a part of it is chosen.
    visit(&mut browser, &format!("{}/?match=comm=java&range=5m&timeline=seconds", server.url));
    browser.wait_for(IS_SHOWN);
    browser.evaluate("(jvmprof.view.change({ part: [60_000, 280_000] }), 0)");
    let url = browser.evaluate("location.href");
    assert!(url.as_str().unwrap().contains("from=") && !url.as_str().unwrap().contains("range="), "{url}");
    let total = browser.evaluate(TOTAL);
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(browser.evaluate(TOTAL), total);
    // Another time has other parts.
    browser.evaluate("(jvmprof.page.change({ range: '15m' }), 0)");
    browser.wait_for(IDLE);
    assert_eq!(browser.evaluate("location.search.includes('part=')"), false);
    browser.evaluate("(jvmprof.page.change({ range: '1h' }), 0)");
    browser.wait_for("document.querySelector('#message')?.innerText.includes('at most 15 minutes')");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn two_parts_of_the_collectors_time_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (length, mut numbers) = (Duration::from_secs(10), Numbers::new(3));
    let begin = SystemTime::now() - Duration::from_secs(60);
    for start in [begin, begin + length] {
        push(&store, &window(start, length, 3_000, Shape::Program, &mut numbers));
    }
    let server = Server::start(store, ReadLimits { nodes: 1_000, ..ReadLimits::default() });
    let mut browser = Browser::start(1440, 900);
    let range = format!("from={}&to={}&timeline=seconds", millis(begin), millis(begin) + 20_000);
    let parts = "part=12000-19000&base_part=0-4500";
    visit(&mut browser, &format!("{}/?match=comm=java&{range}&{parts}", server.url));
    let sides = browser.evaluate(SIDES);
    assert_eq!(sides, browser.evaluate(IN_PARTS));
    assert!(sides[0].as_u64() > Some(0) && sides[1].as_u64() > Some(0), "{sides}");
    assert_eq!(browser.evaluate("document.querySelectorAll('.edits .chip-remove').length"), 2);
    picture(&mut browser, "collector-seconds-compared");
    // What was pruned below a frame could be had of one part alone: it stays.
    browser.evaluate(
        "(globalThis.asked = 0, globalThis.first = fetch, globalThis.fetch = (...of) => (asked++, first(...of)), \
         jvmprof.view.zoomTo(jvmprof.view.tree.children[0]), 0)",
    );
    assert_eq!((browser.evaluate("asked"), browser.evaluate(SIDES)), (0.into(), sides));
    // Another time has other parts.
    browser.evaluate("(jvmprof.page.change({ range: '15m' }), 0)");
    browser.wait_for(IDLE);
    assert_eq!(browser.evaluate("/part=/.test(location.search) || Boolean(jvmprof.view.comparison)"), false);
    assert_eq!(browser.complaints, [""; 0]);
}
