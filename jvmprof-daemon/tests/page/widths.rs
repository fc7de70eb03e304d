//! Controls that can be reached in windows of a desktop, half of one, and a telephone, and how the
//! heads and the table's bars look there.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::server::{Server, fill, millis, open};
use crate::{picture, pictures, visit};

pub(crate) const WIDTHS: [u32; 3] = [1440, 800, 420];

/// The windows that something is checked in, and their colour schemes. Those differ by colours
/// alone (`scripts/colour.test.mjs`), at which axe-core looks in all views: here dark is for
/// pictures.
pub(crate) fn windows() -> impl Iterator<Item = (u32, &'static str)> {
    let schemes: &[&str] = if pictures().is_some() { &["light", "dark"] } else { &["light"] };
    WIDTHS.into_iter().flat_map(move |width| schemes.iter().map(move |scheme| (width, *scheme)))
}

/// The controls of a part of the page that can't be clicked: cut at the side, covered, or outside
/// what can be scrolled to. The table's rows scroll below its head. What stands above the page is a
/// part of its own.
const UNREACHABLE: &str = r#"((part) => {
  const wrong = [];
  const isWithin = ({ left, right }) => left >= -0.5 && right <= innerWidth + 0.5;
  const note = (element, { left, right }) => wrong.push(`${element.outerHTML.slice(0, 90)} at ${Math.round(left)} to ${Math.round(right)}`);
  if (part !== document && !isWithin(part.getBoundingClientRect())) note(part, part.getBoundingClientRect());
  for (const control of part.querySelectorAll('button, select, input, a, summary')) {
    if (!control.checkVisibility() || control.disabled) continue;
    if (part === document && control.closest('tbody tr, .popover')) continue;
    control.scrollIntoView({ block: 'center' });
    const box = control.getBoundingClientRect();
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (!isWithin(box) || !(hit && (control.contains(hit) || hit.contains(control)))) note(control, box);
  }
  scrollTo(0, 0);
  return wrong;
})"#;

/// Returns what of a part of the page can't be reached in a window of this width.
pub(crate) fn unreachable_controls(browser: &mut Browser, part: &str, width: u32) -> Vec<String> {
    let found = browser.evaluate(&format!("{UNREACHABLE}({part})"));
    let mut wrong: Vec<String> = serde_json::from_value(found).unwrap();
    let scrolled = browser.evaluate("document.documentElement.scrollWidth").as_u64().unwrap();
    if scrolled > u64::from(width) {
        wrong.push(format!("the page is {scrolled} wide"));
    }
    wrong
}

pub(crate) fn assert_all_is_reachable(browser: &mut Browser, width: u32, page: &str) {
    assert_eq!(unreachable_controls(browser, "document", width), [""; 0], "{page} at {width}");
}

/// Narrower than this, the collector's presets are a list (`style.css`).
const NARROWEST_WITH_PRESETS: u32 = 1241;

/// The rows that the head of the page takes.
const HEAD_ROWS: &str = "new Set([...document.querySelectorAll('header > *')].filter((it) => it.checkVisibility() && \
it.offsetWidth && it.offsetHeight).map((it) => { const b = it.getBoundingClientRect(); return Math.round((b.top + b.bottom) / 20) })).size";

#[test]
#[ignore = "needs Chromium"]
fn the_heads_are_one_row_but_on_a_telephone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Program, 60);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
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
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.open("about:blank");
        visit(&mut browser, &url);
        assert_all_is_reachable(&mut browser, width, "a recorded page");
        if width >= 800 {
            assert_eq!(browser.evaluate(HEAD_ROWS), 1, "the head at {width}");
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
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
