//! Both pages in windows of a desktop, half of one, and a telephone, in light and dark.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::server::{Server, fill, millis, open};
use crate::{IDLE, picture, visit};

pub(crate) const WIDTHS: [u32; 3] = [1440, 800, 420];

/// The controls of a part of the page that can't be clicked: cut at the side, covered, or outside
/// what can be scrolled to. Of the table's rows, which are alike, the first ones are enough.
const UNREACHABLE: &str = r#"((part) => {
  const wrong = [];
  for (const control of part.querySelectorAll('button, select, input, a, summary')) {
    if (!control.checkVisibility() || control.disabled || control.closest('tbody tr:nth-child(n + 21), .popover')) continue;
    control.scrollIntoView({ block: 'center' });
    const box = control.getBoundingClientRect();
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const inside = box.left >= -0.5 && box.right <= innerWidth + 0.5;
    if (!inside || !(hit && (control.contains(hit) || hit.contains(control)))) {
      wrong.push(`${control.outerHTML.slice(0, 90)} at ${Math.round(box.left)} to ${Math.round(box.right)}`);
    }
  }
  scrollTo(0, 0);
  return wrong;
})"#;

pub(crate) fn assert_all_is_reachable(browser: &mut Browser, width: u32, page: &str) {
    assert_is_reachable(browser, "document", width, page);
}

fn assert_is_reachable(browser: &mut Browser, part: &str, width: u32, page: &str) {
    let unreachable = browser.evaluate(&format!("{UNREACHABLE}({part})"));
    assert_eq!(unreachable, serde_json::json!([]), "{page} at {width}");
    let scrolled = browser.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(scrolled <= u64::from(width), "{page} at {width} is {scrolled} wide");
}

/// Checks a part of the page as it is in light and dark.
fn look_in_both_schemes(browser: &mut Browser, part: &str, width: u32, page: &str) {
    // In the end it is as it was.
    for scheme in ["dark", "light"] {
        browser.prefer(scheme);
        browser.wait_for(&format!("document.documentElement.dataset.theme === '{scheme}'"));
        assert_is_reachable(browser, part, width, &format!("{page} in {scheme}"));
        picture(browser, &format!("widths-{page}-{width}-{scheme}"));
    }
}

/// The same at every width. `change` is what the page is to do first, in each of them.
fn look_at_every_width(browser: &mut Browser, page: &str, part: &str, change: &str) {
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.evaluate(&format!("({change}, 0)"));
        browser.wait_for(IDLE);
        look_in_both_schemes(browser, part, width, page);
    }
}

/// What both pages have beside their first view: Java's frames, callers and callees, and a menu in
/// the corner of the window.
fn look_at_further_views(browser: &mut Browser, page: &str) {
    for (view, change) in [
        ("java", "{ view: 'both', frames: 'java' }"),
        ("sandwich", "{ frames: 'all', sandwich: 'com.acme.shop.order.OrderService.total' }"),
    ] {
        let change = format!("jvmprof.view.change({change})");
        look_at_every_width(browser, &format!("{page}-{view}"), "document", &change);
    }
    let method =
        "jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('OrderService.total')).data";
    browser.evaluate("(jvmprof.view.change({ sandwich: '' }), 0)");
    let menu = format!("jvmprof.view.menu({method}, innerWidth, innerHeight)");
    let part = "document.querySelector('.frame-menu')";
    look_at_every_width(browser, &format!("{page}-menu"), part, &menu);
    browser.press("Escape");
    browser.wait_for(&format!("!{part}"));
}

/// Narrower than this, the collector's presets are a list (`style.css`).
const NARROWEST_WITH_PRESETS: u32 = 1241;

/// The rows that the head of the page takes.
const HEAD_ROWS: &str = "new Set([...document.querySelectorAll('header > *')].filter((it) => it.checkVisibility() && \
it.offsetWidth && it.offsetHeight).map((it) => { const b = it.getBoundingClientRect(); return Math.round((b.top + b.bottom) / 20) })).size";

#[test]
#[ignore = "needs Chromium"]
fn the_collectors_controls_can_be_reached_at_every_width() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Program, 60);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    for width in WIDTHS {
        browser.resize(width, 900);
        for view in ["flame", "both", "table"] {
            visit(&mut browser, &format!("{}/?view={view}&match=comm=java", server.url));
            look_in_both_schemes(&mut browser, "document", width, &format!("collector-{view}"));
        }
    }
    look_at_further_views(&mut browser, "collector");
    let nobody = "jvmprof.page.change({ matches: [{ label: 'comm', value: 'nobody', not: false }] })";
    browser.evaluate(&format!("({nobody}, 0)"));
    browser.wait_for("document.querySelector('.empty').checkVisibility()");
    look_at_every_width(&mut browser, "collector-nothing", "document", "0");
    // With a range of one's own: the text that stays whole, and the longest, of other days.
    let now = millis(SystemTime::now());
    let days = |count: i64| now + count * 86_400_000;
    for range in ["range=9d".to_owned(), format!("from={}&to={}", days(-2), days(2))] {
        for width in WIDTHS.into_iter().chain([NARROWEST_WITH_PRESETS]) {
            browser.resize(width, 900);
            visit(&mut browser, &format!("{}/?{range}", server.url));
            assert_all_is_reachable(&mut browser, width, &range);
            if width >= 800 {
                assert_eq!(browser.evaluate(HEAD_ROWS), 1, "the head at {width} with {range}");
            }
            let has_presets = browser.evaluate("document.querySelector('.presets').checkVisibility()");
            assert_eq!(has_presets, width >= NARROWEST_WITH_PRESETS, "at {width}");
            picture(&mut browser, &format!("widths-collector-{}-{width}", &range[..5]));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
    // The browser complains of the answer, too.
    browser.evaluate("(jvmprof.page.change({ from: 1, to: Date.now() }), 0)");
    browser.wait_for("document.querySelector('.error')?.innerText.includes('longer than 400 days')");
    look_at_every_width(&mut browser, "collector-error", "document", "0");
}

/// Of the open panel: pixels between it and its button above, those that both have in common from
/// left to right, and those to the left, right and bottom of the window.
const PANEL: &str = "(() => { const panel = document.querySelector('.popover.menu:not([hidden])'); \
const [own, button] = [panel, panel.previousElementSibling].map((it) => it.getBoundingClientRect()); \
const common = Math.min(own.right, button.right) - Math.max(own.left, button.left); \
return [own.top - button.bottom, common, own.left, innerWidth - own.right, innerHeight - own.bottom] })()";

#[test]
#[ignore = "needs Chromium"]
fn panels_open_inside_the_window_below_their_buttons_at_every_width() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Program, 20);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    for width in WIDTHS {
        browser.resize(width, 900);
        for name in ["Compare", "Custom", "Add filter", "comm = java"] {
            visit(&mut browser, &format!("{}/?match=comm=java", server.url));
            browser.evaluate(&format!(
                "[...document.querySelectorAll('.holder > button')].find((it) => it.textContent.trim() === '{name}').click()"
            ));
            let panel: [f64; 5] = serde_json::from_value(browser.evaluate(PANEL)).unwrap();
            let [below, common, inside @ ..] = panel;
            let is_near = (0.0..60.0).contains(&below) && common > 0.0;
            assert!(is_near && inside.iter().all(|pixels| *pixels >= 0.0), "{name} at {width}: {panel:?}");
            picture(&mut browser, &format!("widths-panel-{}-{width}", &name[..3]));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_pages_controls_can_be_reached_at_every_width() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    for width in WIDTHS {
        browser.resize(width, 900);
        for view in ["flame", "both"] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#view={view}"));
            look_in_both_schemes(&mut browser, "document", width, &format!("record-{view}"));
        }
        if width >= 800 {
            assert_eq!(browser.evaluate(HEAD_ROWS), 1, "the head at {width}");
        }
    }
    look_at_further_views(&mut browser, "record");
    let nothing = "jvmprof.view.change({ view: 'both', edits: ['only:nobody'] })";
    look_at_every_width(&mut browser, "record-nothing", "document", nothing);
    assert_eq!(browser.evaluate("jvmprof.view.tree.value"), 0);
    look_at_every_width(&mut browser, "record-wrong-search", "document", "jvmprof.view.setSearch('/(/')");
    assert_eq!(browser.evaluate("document.querySelector('.matched').textContent"), "no valid expression");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn bars_of_the_table_are_as_long_as_their_share() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#view=table"));
        let wrong = browser.evaluate(
            r#"[...document.querySelectorAll('td.samples')].filter((cell) => {
                const track = cell.querySelector('.track').getBoundingClientRect();
                const bar = cell.querySelector('.bar').getBoundingClientRect();
                const share = parseFloat(cell.querySelector('.percent').textContent.replace(/[<>]/, '')) / 100;
                return Math.abs(bar.width / track.width - share) > 0.01;
            }).length"#,
        );
        assert_eq!(wrong, 0, "at {width}");
        let longest = "Math.max(...[...document.querySelectorAll('.bar')].map((bar) => bar.offsetWidth / bar.parentElement.offsetWidth))";
        assert!(browser.evaluate(longest).as_f64().unwrap() > 0.9, "at {width}: one function has nearly all");
    }
    assert_eq!(browser.complaints, [""; 0]);
}
