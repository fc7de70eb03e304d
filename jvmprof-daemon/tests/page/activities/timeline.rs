//! The timeline of the collector by what JVMs do, by kinds of threads and by groups.

use super::*;

#[test]
#[ignore = "needs Chromium"]
fn the_timeline_follows_kinds_of_threads_and_going_back_among_them_asks_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(540), 60);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{}/?match=comm=java", server.url));
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let sum = "jvmprof.page.timeline.samples.reduce((sum, it) => sum + it, 0)";
    let is_followed = format!("Math.abs({sum} - {TOTAL}) < 0.5");
    browser.wait_for(&is_followed);
    browser.point(&thread_button("gc"), true);
    browser.wait_for(&format!("{TOTAL} < {all} && {is_followed}"));
    let fills = "new Set([...document.querySelectorAll('.bars .slot')].map((it) => it.style.fill)).size";
    assert_eq!(browser.evaluate(fills), 1, "these threads collect");
    let label = browser.evaluate("document.getElementById('timeline').getAttribute('aria-label')");
    assert!(label.as_str().unwrap().contains(" of threads: gc."), "{label}");
    picture(&mut browser, "threads-timeline");
    // What was asked for once isn't again, as long as the time and the labels are the same.
    browser.evaluate("(globalThis.asked = 0, globalThis.first = fetch, globalThis.fetch = (...of) => (asked++, first(...of)), 0)");
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{TOTAL} === {all} && {is_followed}"));
    browser.evaluate("history.forward()");
    browser.wait_for(&format!("{TOTAL} < {all} && {is_followed}"));
    assert_eq!(browser.evaluate("asked"), 0);
    browser.evaluate("(jvmprof.page.change({ matches: [] }), 0)");
    browser.wait_for(IDLE);
    let asked = browser.evaluate("asked").as_u64().unwrap();
    browser.evaluate("history.back()");
    browser.wait_for(&format!("asked > {asked}"));
    browser.wait_for(IDLE);
    browser.wait_for(&is_followed);
    // Of series nobody knows it, which the page says.
    let note = "document.querySelector('.choices > .notice').innerText";
    assert_eq!(browser.evaluate(note), "");
    browser.evaluate("(() => { const of = document.querySelector('[aria-label=\"What the timeline shows\"]'); of.value = 'groups'; of.dispatchEvent(new Event('change')) })()");
    assert!(browser.evaluate(note).as_str().unwrap().contains("that of all threads"));
    // With an address, from the begin on.
    let url = browser.evaluate("location.href").as_str().unwrap().replace("timeline=groups", "");
    browser.open(&url);
    browser.wait_for(&format!("globalThis.jvmprof?.view?.flame.root && {TOTAL} < {all} && {is_followed}"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_collectors_timeline_is_stacked_by_what_jvms_do() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(540), 60);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let fills = "new Set([...document.querySelectorAll('.bars .slot')].map((it) => it.style.fill)).size";
    assert_eq!(browser.evaluate(fills), 9);
    let sums = "jvmprof.page.timeline.activities.flat().reduce((sum, it) => sum + it, 0) / \
                jvmprof.page.timeline.samples.reduce((sum, it) => sum + it, 0)";
    assert!((browser.evaluate(sums).as_f64().unwrap() - 1.0).abs() < 1e-6, "bars are as high as before");
    picture(&mut browser, "activities-collector");
    browser.point(&button("Kernel for Java"), true);
    browser.wait_for(&format!("{TOTAL} < {all}"));
    browser.wait_for("document.querySelectorAll('.bars .slot.aside').length > 0");
    assert!(browser.evaluate("location.search").as_str().unwrap().contains("edit=activity"));
    picture(&mut browser, "activities-collector-kernel");
    let url = browser.evaluate("location.href");
    visit(&mut browser, url.as_str().unwrap());
    assert!(browser.evaluate(TOTAL).as_u64().unwrap() < all);
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    // One JVM alone, beside itself.
    visit(&mut browser, &format!("{}/?range=5m&base=before&match=comm=java", server.url));
    browser.wait_for("document.querySelectorAll('.activity-bar').length === 2");
    assert_eq!(
        browser.evaluate("document.querySelector('.activity-title').textContent"),
        "Where this JVM's time goes"
    );
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        visit(&mut browser, &server.url);
        browser.wait_for(IDLE);
        assert_all_is_reachable(&mut browser, width, "the collector's bar");
        picture(&mut browser, &format!("activities-collector-{width}-{scheme}"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}

const TIMELINE_LABEL: &str = "document.getElementById('timeline').getAttribute('aria-label')";

/// Chooses what the collector's timeline shows.
fn choose_timeline(what: &str) -> String {
    format!(
        "(() => {{ const of = document.querySelector('[aria-label=\"What the timeline shows\"]'); of.value = '{what}'; of.dispatchEvent(new Event('change')) }})()"
    )
}

#[test]
#[ignore = "needs Chromium"]
fn the_timeline_has_a_line_for_each_program_over_one_scale_from_which_keys_choose() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(540), 40);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let lines = "document.querySelectorAll('.bars polyline').length";
    let names = "[...document.querySelectorAll('.line-name')].map((it) => it.innerText.trim())";
    assert_eq!((browser.evaluate(lines), browser.evaluate(names)), (0.into(), serde_json::json!([])));
    browser.evaluate(&choose_timeline("lines"));
    assert_eq!(browser.evaluate(lines), 2);
    assert_eq!(browser.evaluate(names), serde_json::json!(["java", "postgres"]));
    assert_eq!(browser.evaluate("document.querySelectorAll('.bars .slot').length"), 0);
    // Higher is more, by one scale: the most of each stands where the label says.
    let tops = browser.evaluate(
        "[...document.querySelectorAll('.bars polyline')].map((it) => Math.min(...it.getAttribute('points').split(' ').map((point) => Number(point.split(',')[1]))))",
    );
    let tops: [f64; 2] = serde_json::from_value(tops).unwrap();
    let mosts = browser.evaluate(
        "jvmprof.page.timeline.groups.map(({ samples }) => jvmprof.page.timeline.rate.of(Math.max(...samples), jvmprof.page.timeline.step))",
    );
    let mosts: [f64; 2] = serde_json::from_value(mosts).unwrap();
    let heights = tops.map(|top| 90.0 - top);
    let expected = heights[0] * mosts[1] / mosts[0];
    assert!(heights[0] > 40.0 && (heights[1] - expected).abs() < 0.2, "{tops:?} of {mosts:?}");
    assert!(
        browser.evaluate("document.querySelector('.scale').innerText").as_str().unwrap().contains("CPUs")
    );
    let colours = "[...document.querySelectorAll('.bars polyline')].map((it) => getComputedStyle(it).stroke)";
    let swatches = "[...document.querySelectorAll('.line-name .swatch')].map((it) => getComputedStyle(it).backgroundColor)";
    assert_eq!(browser.evaluate(colours), browser.evaluate(swatches));
    let said = browser.evaluate(TIMELINE_LABEL);
    for part in ["CPUs by group from ", " Lines, ", "java 0.", ", postgres 0."] {
        assert!(said.as_str().unwrap().contains(part), "{part} in {said}");
    }
    let url = browser.evaluate("location.href");
    assert!(url.as_str().unwrap().contains("timeline=lines"), "{url}");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        visit(&mut browser, url.as_str().unwrap());
        assert_eq!(browser.evaluate(lines), 2);
        assert_all_is_reachable(&mut browser, width, "lines");
        picture(&mut browser, &format!("lines-{width}-{scheme}"));
    }

    browser.resize(1440, 900);
    visit(&mut browser, url.as_str().unwrap());
    browser.evaluate("document.getElementById('timeline').focus()");
    for _ in 0..60 {
        browser.press("ArrowLeft");
    }
    let hint = browser.evaluate("document.querySelector('.timeline-hint').innerText");
    for part in [" CPUs · java 0.", ", postgres 0.", "Shift and arrows"] {
        assert!(hint.as_str().unwrap().contains(part), "{part} in {hint}");
    }
    for _ in 0..20 {
        browser.press_with_shift("ArrowLeft");
    }
    browser.press("Enter");
    browser.wait_for("location.search.includes('from=')");
    browser.wait_for(IDLE);
    assert_eq!(browser.evaluate(lines), 2);
    browser.evaluate(&choose_timeline(""));
    assert_eq!((browser.evaluate(lines), browser.evaluate(names)), (0.into(), serde_json::json!([])));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_timeline_is_a_heatmap_of_programs_or_of_jvm_time_from_which_a_drag_chooses() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(540), 40);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let rows = "[...document.querySelectorAll('.row-name[text-anchor=start]')].map((it) => it.textContent)";
    assert_eq!(browser.evaluate(rows), serde_json::json!([]));
    let bars = browser.evaluate(TIMELINE_LABEL);
    assert!(bars.as_str().unwrap().starts_with("CPUs from "), "{bars}");
    browser.evaluate(&choose_timeline("groups"));
    assert_eq!(browser.evaluate(rows), serde_json::json!(["java", "postgres"]));
    let said = browser.evaluate(TIMELINE_LABEL);
    for part in ["CPUs by group from ", " Rows, ", "java 0.", ", postgres 0."] {
        assert!(said.as_str().unwrap().contains(part), "{part} in {said}");
    }
    assert!(browser.evaluate("location.search").as_str().unwrap().contains("timeline=groups"));
    browser.evaluate(&choose_timeline("activities"));
    assert_eq!(browser.evaluate(rows), serde_json::json!(ALL));
    let url = browser.evaluate("location.href");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        visit(&mut browser, url.as_str().unwrap());
        assert_all_is_reachable(&mut browser, width, "the heatmap");
        picture(&mut browser, &format!("heat-{width}-{scheme}"));
    }
    browser.resize(1440, 900);
    visit(&mut browser, url.as_str().unwrap());
    let place = browser.evaluate("(() => { const b = document.getElementById('timeline').getBoundingClientRect(), l = jvmprof.page.timeline.left; return [b.x + l, b.y, b.width - l] })()");
    let [x, y, width] = [0, 1, 2].map(|at| place[at].as_f64().unwrap());
    browser.evaluate("globalThis.range = [jvmprof.page.timeline.from, jvmprof.page.timeline.to], 0");
    browser.drag([x + width * 0.25, y + 40.0], [x + width * 0.5, y + 40.0]);
    browser.wait_for("location.search.includes('from=')");
    browser.wait_for(IDLE);
    let parts = browser.evaluate(
        "['from', 'to'].map((name) => (Number(new URLSearchParams(location.search).get(name)) - range[0]) / (range[1] - range[0]))",
    );
    for (part, expected) in [(&parts[0], 0.25), (&parts[1], 0.5)] {
        assert!((part.as_f64().unwrap() - expected).abs() < 0.01, "{parts}");
    }
    assert_eq!(browser.complaints, [""; 0]);
}
