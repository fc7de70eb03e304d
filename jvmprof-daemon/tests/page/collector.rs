//! The page that the collector serves.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use serde_json::Value;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::server::{Server, fill, millis, open, push};
use crate::{DRAWN, IDLE, picture, pictures, visit};

/// The number of samples that the page says it shows.
const SHOWN: &str = "Number(document.querySelector('.figures b').textContent.replaceAll(',', ''))";

fn served(time: Duration, samples: usize) -> (tempfile::TempDir, Server, u64) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let total = fill(&store, time, Shape::Program, samples);
    let server = Server::start(store, ReadLimits::default());
    (folder, server, total)
}

fn address(browser: &mut Browser) -> String {
    let search = browser.evaluate("decodeURIComponent(location.search)");
    search.as_str().unwrap().to_owned()
}

fn button(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('button')].find((b) => b.checkVisibility() && b.innerText.trim().startsWith('{text}'))"
    )
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_shows_what_was_pushed() {
    let (_folder, server, total) = served(Duration::from_secs(540), 60);
    let mut browser = Browser::start(1280, 800);
    visit(&mut browser, &server.url);
    assert_eq!(browser.evaluate(SHOWN), total);
    let sizes = [(1280, 800), (1920, 1080)].into_iter().filter(|_| pictures().is_some());
    for (width, height) in sizes {
        for scheme in ["light", "dark"] {
            browser.resize(width, height);
            browser.prefer(scheme);
            visit(&mut browser, &server.url);
            picture(&mut browser, &format!("collector-{width}-{scheme}"));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn time_labels_and_views_are_chosen_and_stay_in_the_address() {
    let (_folder, server, total) = served(Duration::from_secs(540), 60);
    let mut browser = Browser::start(1280, 800);
    visit(&mut browser, &server.url);

    browser.point(&button("Add filter"), true);
    browser.wait_for(&format!("Boolean({})", button("comm")));
    picture(&mut browser, "collector-labels");
    browser.point(&button("comm"), true);
    browser.wait_for("document.querySelectorAll('.menu-value').length === 2");
    browser.point("document.querySelector('.menu-value .menu-row')", true);
    browser.wait_for(&format!("{SHOWN} < {total}"));
    browser.wait_for(IDLE);
    picture(&mut browser, "collector-values");
    browser.press("Escape");
    browser.wait_for("document.querySelectorAll('.popover.menu:not([hidden])').length === 0");
    let java = browser.evaluate(SHOWN);

    // A second value in the chip's own picker, and away again.
    browser.point("document.querySelector('.chip-text')", true);
    browser.wait_for("document.querySelectorAll('.menu-value').length === 2");
    browser.point(
        "[...document.querySelectorAll('.menu-row')].find((row) => row.innerText.includes('postgres'))",
        true,
    );
    browser.wait_for("document.querySelector('.chip-text').innerText === 'comm = java or postgres'");
    browser.wait_for(&format!("{SHOWN} === {total}"));
    browser.point(
        "[...document.querySelectorAll('.menu-row')].find((row) => row.innerText.includes('postgres'))",
        true,
    );
    browser.wait_for(&format!("{SHOWN} === {java}"));
    browser.press("Escape");
    assert!(address(&mut browser).contains("match=comm=java"));

    browser.evaluate("document.querySelector('#filters select').value = 'pid'; document.querySelector('#filters select').dispatchEvent(new Event('change'))");
    browser.wait_for("jvmprof.view.flame.drawnBoxes().some((g) => g.data.name === '4242')");

    let bars = browser.evaluate("(() => { const b = document.querySelector('.bars').getBoundingClientRect(); return [b.x, b.y, b.width, b.height] })()");
    let at = |share: f64| {
        [bars[0].as_f64().unwrap() + bars[2].as_f64().unwrap() * share, bars[1].as_f64().unwrap() + 20.0]
    };
    browser.drag(at(0.4), at(0.7));
    browser.wait_for("location.search.includes('from=')");
    browser.wait_for(IDLE);
    browser.wait_for(&format!("{SHOWN} < {java}"));
    let part = browser.evaluate(SHOWN);
    browser.press("/");
    browser.type_text("kind:kernel");
    browser.wait_for("location.search.includes('q=kind')");
    browser.wait_for("document.querySelector('.matched').textContent.endsWith('% matched')");
    picture(&mut browser, "collector-chosen");

    let url = browser.evaluate("location.href");
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(browser.evaluate(SHOWN), part, "the address says all of it");
    assert_eq!(browser.evaluate("document.querySelector('.search input').value"), "kind:kernel");
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{SHOWN} === {java}"));

    let address = browser.evaluate("jvmprof.page.refreshDownload(), jvmprof.page.download.href");
    let size =
        browser.evaluate(&format!("fetch({address}).then((r) => r.arrayBuffer()).then((b) => b.byteLength)"));
    assert!(size.as_u64().unwrap() > 1_000);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_order_a_label_and_what_is_compared_are_chosen_by_keys() {
    let (_folder, server, total) = served(Duration::from_secs(120), 60);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let first = "document.querySelector('.top .function-name').textContent";
    browser.evaluate("document.querySelector('.top th.total button').focus()");
    let orders = ["descending", "ascending"].map(|order| {
        browser.press("Enter");
        browser.wait_for(&format!("document.activeElement.parentElement.ariaSort === '{order}'"));
        browser.evaluate(first)
    });
    assert_ne!(orders[0], orders[1]);

    browser.evaluate(&format!("{}.focus()", button("Add filter")));
    browser.press("Enter");
    browser.wait_for("document.activeElement.matches('.popover .menu-row')");
    // The first label is the name of the series.
    browser.press("Tab");
    browser.wait_for("document.activeElement.innerText.startsWith('comm')");
    browser.press("Enter");
    browser.wait_for("document.activeElement.matches('.menu-filter')");
    browser.type_text("java");
    browser.press("Enter");
    browser.wait_for(&format!("{SHOWN} < {total}"));
    assert!(address(&mut browser).contains("match=comm=java"));
    browser.press("Escape");
    browser.wait_for(&format!("document.activeElement === {}", button("Add filter")));

    browser.evaluate(&format!("{}.focus()", button("Compare")));
    browser.press("Enter");
    browser.wait_for("document.activeElement.innerText.startsWith('The time before')");
    browser.press("Tab");
    browser.wait_for("document.activeElement.innerText.startsWith('A day before')");
    browser.press("Enter");
    browser.wait_for("location.search.includes('base=1d') && Boolean(jvmprof.view.comparison)");
    browser.wait_for(IDLE);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn an_own_range_is_typed_and_a_refresh_keeps_the_zoom() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(120), Shape::Program, 60);
    let server = Server::start(std::sync::Arc::clone(&store), ReadLimits::default());
    let mut browser = Browser::start(1280, 800);
    visit(&mut browser, &format!("{}/?range=5m&refresh=10", server.url));
    let before = browser.evaluate(SHOWN).as_u64().unwrap();
    let zoomed = "jvmprof.view.flame.zoomed?.data.name ?? ''";
    browser.evaluate("jvmprof.view.flame.zoomTo(jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('DispatcherServlet.doDispatch')))");
    let now = SystemTime::now() - Duration::from_secs(10);
    let late = window(now, Duration::from_secs(10), 40, Shape::Program, &mut Numbers::new(99));
    push(&store, &late);
    browser.wait_for(&format!("{SHOWN} === {}", before + late.samples()));
    let name = browser.evaluate(zoomed);
    assert!(name.as_str().unwrap().ends_with("DispatcherServlet.doDispatch"), "{name}");

    browser.point(&button("Custom"), true);
    browser.wait_for("Boolean(document.querySelector('form.custom'))");
    picture(&mut browser, "collector-custom");
    browser.evaluate("(() => { const [from, to] = document.querySelectorAll('form.custom input'); [from.value, to.value] = [to.value, from.value] })()");
    browser.point(&button("Apply"), true);
    browser.wait_for("document.querySelector('p.wrong').textContent.includes('later')");
    browser.evaluate("(() => { const [from, to] = document.querySelectorAll('form.custom input'); [from.value, to.value] = [to.value, from.value] })()");
    browser.point(&button("Apply"), true);
    browser.wait_for("location.search.includes('from=') && !location.search.includes('refresh')");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn empty_states_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let server = Server::start(std::sync::Arc::clone(&store), ReadLimits::default());
    let mut browser = Browser::start(1280, 800);
    browser.open(&server.url);
    let command = format!("sudo jvmprof daemon --collector-address {}", &server.url["http://".len()..]);
    browser.wait_for(&format!("document.querySelector('.empty pre')?.innerText === '{command}'"));
    picture(&mut browser, "collector-empty");
    let old = SystemTime::now() - Duration::from_secs(7_200);
    push(&store, &window(old, Duration::from_secs(10), 50, Shape::Program, &mut Numbers::new(5)));
    browser.point(&button("Look again"), true);
    browser.wait_for("document.querySelector('.empty').innerText.includes('No samples in this range')");
    picture(&mut browser, "collector-nothing-in-range");
    browser.point(&button("Show the 15 minutes"), true);
    browser.wait_for(DRAWN);
    browser.open(&format!("{}/?range=24h&match=comm=nobody", server.url));
    browser.wait_for(&format!("Boolean({})", button("Remove the filters")));
    browser.point(&button("Remove the filters"), true);
    browser.wait_for(DRAWN);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn errors_are_shown_with_a_way_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Program, 20);
    let limits = ReadLimits { profiles: 20, ..ReadLimits::default() };
    let server = Server::start(store, limits);
    let mut browser = Browser::start(1280, 800);
    browser.open(&server.url);
    browser.wait_for("document.querySelector('.error')?.innerText.includes('choose a shorter range')");
    browser.wait_for(IDLE);
    picture(&mut browser, "collector-error");
    let to = millis(SystemTime::now());
    visit(&mut browser, &format!("{}/?from={}&to={to}", server.url, to - 60_000));
    assert_eq!(browser.evaluate("document.querySelector('.error')"), Value::Null);
    browser.open(&format!("{}/?from=1&to={to}", server.url));
    browser.wait_for("document.querySelector('.error')?.innerText.includes('longer than 400 days')");
    assert_eq!(browser.evaluate("document.getElementById('timeline').checkVisibility()"), false);
    visit(&mut browser, &format!("{}/?from={}&to={to}", server.url, to - 60_000));
    drop(server);
    browser.evaluate("jvmprof.page.load()");
    browser.wait_for("document.querySelector('.error')?.innerText.includes('Is it still running?')");
    assert_eq!(browser.complaints_of_the_page(), [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn ranges_of_any_length_are_shown_and_wrong_parts_of_an_address_are_said() {
    let (_folder, server, total) = served(Duration::from_secs(300), 40);
    let mut browser = Browser::start(1280, 800);
    visit(&mut browser, &format!("{}/?range=7d", server.url));
    assert_eq!(browser.evaluate(SHOWN), total);
    assert!(address(&mut browser).contains("range=7d"));
    assert_eq!(browser.evaluate("jvmprof.page.timeline.to - jvmprof.page.timeline.from"), 7 * 86_400_000);
    browser.wait_for(&format!("{}?.getAttribute('aria-pressed') === 'true'", button("7 d")));
    assert_eq!(browser.evaluate(&format!("Boolean({})", button("Custom"))), true, "it is a preset");
    picture(&mut browser, "collector-week");
    browser.point(&button("30 d"), true);
    browser.wait_for("jvmprof.page.timeline.to - jvmprof.page.timeline.from === 30 * 86_400_000");
    assert!(address(&mut browser).contains("range=30d"));
    visit(&mut browser, &format!("{}/?range=9d", server.url));
    assert_eq!(browser.evaluate(SHOWN), total);
    browser.wait_for(&format!("{}?.getAttribute('aria-pressed') === 'true'", button("Last 9 d")));
    visit(&mut browser, &format!("{}/?range=7y&type=nothing&timeline=rainbow", server.url));
    let notice = browser.evaluate("document.getElementById('message').innerText");
    assert!(notice.as_str().unwrap().contains("“range=7y”, “type=nothing”, “timeline=rainbow”"), "{notice}");
    browser.point(&button("1 h"), true);
    browser.wait_for("document.getElementById('message').innerText === ''");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_timeline_has_a_scale_and_is_chosen_from_by_keys() {
    let (_folder, server, total) = served(Duration::from_secs(840), 60);
    let mut browser = Browser::start(1280, 800);
    visit(&mut browser, &server.url);
    let texts = "[...document.querySelectorAll('.axis span')].map((tick) => tick.textContent).join('|')";
    let ticks = browser.evaluate(texts);
    let (times, dates): (Vec<_>, Vec<_>) =
        ticks.as_str().unwrap().split('|').partition(|tick| tick.len() == 5 && tick.as_bytes()[2] == b':');
    // Where midnight is among the ticks, its text is the date, such as "Nov 27".
    assert!(times.len() >= 5 && !times.contains(&"00:00"), "{ticks}");
    assert!(dates.len() <= 1 && dates.iter().all(|date| date.contains(' ')), "{ticks}");
    browser.wait_for("document.querySelector('.scale').innerText.includes('CPUs')");
    browser.evaluate("document.getElementById('timeline').focus()");
    browser.press("ArrowLeft");
    for _ in 0..40 {
        browser.press("ArrowLeft");
    }
    for _ in 0..60 {
        browser.press_with_shift("ArrowLeft");
    }
    picture(&mut browser, "collector-timeline-keys");
    browser.press("Enter");
    browser.wait_for("location.search.includes('from=')");
    browser.wait_for(IDLE);
    let part = browser.evaluate(SHOWN).as_u64().unwrap();
    assert!((1..total).contains(&part), "{part} of {total}");
    let seconds =
        browser.evaluate("(jvmprof.page.state.to - jvmprof.page.state.from) / 1000").as_f64().unwrap();
    assert!((seconds - 61.0 * 900.0 / 240.0).abs() < 1.0, "{seconds}: the bar and sixty before it");
    assert_eq!(browser.complaints, [""; 0]);
}
