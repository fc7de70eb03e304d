//! Zoom: what it fetches, and that the address keeps it.

mod edits;

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, callees_of, window};
use crate::record::write;
use crate::server::{Server, fill, millis, open, push};
use crate::{DRAWN, IDLE, picture, visit};

/// Samples below the zoomed frame that end in `[pruned]`.
const PRUNED: &str = "(() => { let sum = 0; const todo = [jvmprof.view.zoomedNode]; while (todo.length) { \
const node = todo.pop(); if (node.fn.kind === 'pruned') sum += node.value; todo.push(...node.children) } return sum })()";

const ZOOMED: &str = "jvmprof.view.zoomedNode?.fn.name ?? ''";

/// The node of the middle of a request, below which much was pruned.
const INNER: &str =
    "jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('OrderController.place'))";

#[test]
#[ignore = "needs Chromium"]
fn zooming_fetches_what_was_pruned_and_the_address_keeps_the_zoom() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(200), Shape::Program, 100);
    let server = Server::start(store, ReadLimits { nodes: 1_000, ..ReadLimits::default() });
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    browser.wait_for("document.querySelector('.notices').innerText.includes('zoom to a frame')");
    picture(&mut browser, "zoom-before");
    browser.evaluate(&format!(
        "jvmprof.view.flame.showZoomed({INNER}, true), jvmprof.view.zoomedNode = {INNER}.data, 0"
    ));
    let (before, samples) = (browser.evaluate(PRUNED), browser.evaluate("jvmprof.view.zoomedNode.value"));
    assert!(before.as_u64().unwrap() > 100, "{before}");

    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({INNER})"));
    browser.wait_for(IDLE);
    let after = browser.evaluate(PRUNED);
    assert!(after.as_u64() < before.as_u64(), "{before} were pruned, now {after}");
    assert_eq!(browser.evaluate("jvmprof.view.zoomedNode.value"), samples);
    assert_eq!(browser.evaluate("jvmprof.view.tree.value"), browser.evaluate("jvmprof.view.data.total"));
    picture(&mut browser, "zoom-after");

    // Below a lighter frame there is room for all.
    let light = "jvmprof.view.flame.root.descendants().find((d) => d.data.fn.kind === 'java' && d.data.value < 40 && \
                 d.data.children.some((child) => child.fn.kind === 'pruned'))";
    let share = browser.evaluate(&format!("jvmprof.view.flame.zoomTo({light}), 0"));
    browser.wait_for(IDLE);
    assert_eq!((share, browser.evaluate(PRUNED)), (0.into(), 0.into()));

    // A frame that only the fetched part has.
    browser.evaluate(
        "jvmprof.view.flame.zoomTo(jvmprof.view.flame.root.descendants().filter((d) => d.data.fn.kind === 'java' && \
         new jvmprof.PathHashes(jvmprof.view.whole).indexOf(jvmprof.view.hashes.hex(jvmprof.view.sources(d.data)[0] ?? 0)) < 0)[0])",
    );
    browser.wait_for(IDLE);
    let (name, samples) = (browser.evaluate(ZOOMED), browser.evaluate("jvmprof.view.zoomedNode.value"));
    assert!(browser.evaluate("location.search").as_str().unwrap().contains("zoom="));
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    browser.open(url.as_str().unwrap());
    browser.wait_for(&format!("globalThis.jvmprof?.view?.zoomedNode?.fn.name === {name}"));
    assert_eq!(browser.evaluate("jvmprof.view.zoomedNode.value"), samples);
    browser.press("Escape");
    browser.wait_for("!location.search.includes('zoom=')");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn zooming_in_a_part_fetches_what_was_pruned_of_this_part() {
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
    visit(&mut browser, &format!("{}/?{range}&part=2500-8500", server.url));
    let total = browser.evaluate("jvmprof.view.tree.value");
    browser.evaluate(&format!(
        "jvmprof.view.flame.showZoomed({INNER}, true), jvmprof.view.zoomedNode = {INNER}.data, 0"
    ));
    let (before, samples) = (browser.evaluate(PRUNED), browser.evaluate("jvmprof.view.zoomedNode.value"));
    assert!(before.as_u64().unwrap() > 0, "{before}");
    browser.evaluate(
        "(globalThis.first = fetch, globalThis.fetch = (...of) => (globalThis.asked = of[0], first(...of)), 0)",
    );
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({INNER})"));
    browser.wait_for(IDLE);
    let after = browser.evaluate(PRUNED);
    assert!(after.as_u64() < before.as_u64(), "{before} were pruned, now {after}");
    assert_eq!(browser.evaluate("jvmprof.view.zoomedNode.value"), samples);
    assert_eq!(browser.evaluate("jvmprof.view.tree.value"), total, "all else stays");
    let asked = browser.evaluate("asked");
    let asked = asked.as_str().unwrap();
    for parameter in ["times=1", "part=2500-8500", "under=", "group=auto", "under_group=java"] {
        assert!(asked.contains(parameter), "{parameter} in {asked}");
    }
    picture(&mut browser, "zoom-part");

    // Of another part it is fetched anew, as the address says it.
    browser.evaluate("(jvmprof.view.change({ part: [2_500, 6_000] }), 0)");
    browser.wait_for("asked.includes('part=2500-6000')");
    browser.wait_for(IDLE);
    let of_part = ["jvmprof.view.zoomedNode.value", "jvmprof.view.tree.value", PRUNED];
    let expected = of_part.map(|number| browser.evaluate(number));
    assert!(expected[0].as_u64() < samples.as_u64(), "{expected:?}");
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(of_part.map(|number| browser.evaluate(number)), expected);
    // Without a part it is that of all.
    browser.evaluate("(jvmprof.view.change({ part: null }), 0)");
    browser.wait_for(IDLE);
    assert!(browser.evaluate("jvmprof.view.zoomedNode.value").as_u64() > samples.as_u64());
    let whole = "jvmprof.view.tree.value === jvmprof.view.whole.total";
    assert_eq!(browser.evaluate(whole), true);
    assert_eq!(browser.complaints, [""; 0]);
}

/// Samples of both sides below the zoomed frame that end in `[pruned]`, and those that end
/// anywhere.
const SIDES: &str = "(() => { const [pruned, own] = [[0, 0], [0, 0]]; const todo = [jvmprof.view.zoomedNode]; \
const add = (sums, of) => of.forEach((samples, side) => (sums[side] += samples)); while (todo.length) { \
const node = todo.pop(); if (node.fn.kind === 'pruned') add(pruned, node.sides); add(own, node.ownSides); \
todo.push(...node.children) } return [...pruned, ...own] })()";

#[test]
#[ignore = "needs Chromium"]
fn zooming_in_a_comparison_fetches_what_was_pruned_of_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (length, mut numbers) = (Duration::from_secs(10), Numbers::new(3));
    let begin = SystemTime::now() - Duration::from_secs(60);
    let mut before = window(begin, length, 3_000, Shape::Program, &mut numbers);
    let gone = "com.acme.shop.gone.Gone.run";
    before.series[0].samples.extend(callees_of(gone, 400));
    push(&store, &before);
    push(&store, &window(begin + length, length, 3_000, Shape::Program, &mut numbers));
    let server = Server::start(store, ReadLimits { nodes: 1_000, ..ReadLimits::default() });
    let mut browser = Browser::start(1440, 900);
    let middle = millis(begin) + 10_000;
    visit(&mut browser, &format!("{}/?from={middle}&to={}&base=before", server.url, middle + 10_000));
    let sides = "jvmprof.view.zoomedNode.sides";
    let look = |browser: &mut Browser, frame: &str| {
        browser.evaluate(&format!(
            "jvmprof.view.flame.showZoomed({frame}, true), jvmprof.view.zoomedNode = {frame}.data, 0"
        ));
        let sums: [u64; 4] = serde_json::from_value(browser.evaluate(SIDES)).unwrap();
        let of_frame: [u64; 2] = serde_json::from_value(browser.evaluate(sides)).unwrap();
        assert_eq!(sums[2..], of_frame, "each sample of the frame ends in it or below it");
        (sums, of_frame)
    };
    let (pruned, of_frame) = look(&mut browser, INNER);
    assert!(pruned[..2].iter().all(|samples| *samples > 0), "{pruned:?}");
    browser.evaluate(
        "(globalThis.first = fetch, globalThis.fetch = (...of) => (globalThis.asked = of[0], first(...of)), 0)",
    );
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({INNER})"));
    browser.wait_for(IDLE);
    let (left, of_fetched) = look(&mut browser, INNER);
    assert!(left.iter().zip(&pruned).take(2).all(|(left, before)| left < before), "{pruned:?}, now {left:?}");
    assert_eq!(of_fetched, of_frame);
    let asked = browser.evaluate("asked");
    let asked = asked.as_str().unwrap();
    for parameter in ["under=", "base_from=", "base_to=", "group=auto", "under_group=java"] {
        assert!(asked.contains(parameter), "{parameter} in {asked}");
    }
    picture(&mut browser, "zoom-compared");

    // A frame that is gone has samples of the base alone.
    browser.evaluate("jvmprof.view.flame.resetZoom()");
    let gone = format!("jvmprof.view.flame.root.descendants().find((d) => d.data.name === '{gone}')");
    let (pruned, of_frame) = look(&mut browser, &gone);
    assert_eq!((pruned[..2].to_vec(), of_frame), (vec![400, 0], [400, 0]));
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({gone})"));
    browser.wait_for(IDLE);
    let (left, of_fetched) = look(&mut browser, &gone);
    assert_eq!((left[..2].to_vec(), of_fetched), (vec![0, 0], [400, 0]));
    assert_eq!(browser.evaluate("jvmprof.view.zoomedNode.children.length"), 400);
    let notices = browser.evaluate("document.querySelector('.notices').innerText");
    assert!(!notices.as_str().unwrap().contains("has no samples here"), "{notices}");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_tooltip_of_the_collector_says_how_a_method_ran() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(120), Shape::Program, 60);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let tip = browser.evaluate(&format!(
        "(jvmprof.view.flame.showTip({INNER}, 300, 300), document.querySelector('.tip').innerText)"
    ));
    let tip = tip.as_str().unwrap();
    let row = tip.lines().skip_while(|line| !line.starts_with("Ran")).collect::<Vec<_>>().join(" ");
    for mode in ["C2", "C1", "interpreted", "%"] {
        assert!(row.contains(mode), "{mode} in {tip}");
    }
    picture(&mut browser, "zoom-tooltip");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_page_keeps_what_was_chosen_in_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 2_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    browser.open(&url);
    browser.wait_for(DRAWN);
    assert_eq!(browser.evaluate("location.hash"), "");
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({INNER})"));
    for key in ["i", "r", "j", "3"] {
        browser.press(key);
    }
    let (url, name) = (browser.evaluate("location.href"), browser.evaluate(ZOOMED));
    browser.open("about:blank");
    browser.open(url.as_str().unwrap());
    browser.wait_for(&format!("globalThis.jvmprof?.view?.zoomedNode?.fn.name === {name}"));
    let state = browser.evaluate("Object.values(jvmprof.view.state).slice(1, 5).join(' ')");
    assert_eq!(state, "table false true java");
    assert_eq!(browser.complaints, [""; 0]);
}
