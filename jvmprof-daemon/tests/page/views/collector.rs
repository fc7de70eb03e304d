//! The views of the collector's page.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use super::{LOADED, METHOD, POPOVER, View, check_all, opened_parts};
use crate::browser::Browser;
use crate::data::pauses;
use crate::server::{Server, fill_busy, millis, open, push};

/// A store with five minutes of a JVM and another program, of which the JVM stopped once.
fn served() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(300), 20);
    let stops = [(1_000, 3, 90, "ThreadDump", None)];
    push(&store, &pauses(SystemTime::now() - Duration::from_secs(60), Duration::from_secs(10), &stops));
    let server = Server::start(store, ReadLimits::default());
    (folder, server)
}

const JAVA: &str = "match=comm=java";

#[test]
#[ignore = "needs Chromium"]
fn all_views_of_the_collectors_page_are_accessible_and_within_reach() {
    let (_folder, server) = served();
    let has_rows = "document.querySelectorAll('.row-name').length > 2";
    let has_sandwich = "document.querySelectorAll('.sandwich-part canvas').length === 2";
    // The latest of its samples, however long the other views take.
    let now = millis(SystemTime::now());
    let latest = format!("from={}&to={now}", now - 120_000);
    let views = [
        View::new("collector-flame", "?view=flame")
            .shown_when("document.querySelector('.pauses').checkVisibility()"),
        View::new("collector-both", format!("?view=both&{JAVA}")),
        View::new("collector-table", format!("?view=table&{JAVA}")),
        View::new("collector-java", format!("?view=both&frames=java&{JAVA}")),
        View::new("collector-sandwich", format!("?view=both&{JAVA}&sandwich={METHOD}"))
            .shown_when(has_sandwich),
        View::new("collector-table-sandwich", format!("?view=table&{JAVA}&sandwich={METHOD}"))
            .shown_when(has_sandwich),
        View::new("collector-groups", "?view=flame&timeline=groups").shown_when(has_rows),
        View::new("collector-activities", "?view=flame&timeline=activities").shown_when(has_rows),
        View::new("collector-lines", "?view=flame&timeline=lines"),
        View::new("collector-seconds", format!("?view=flame&timeline=seconds&{JAVA}&{latest}"))
            .shown_when("document.querySelector('.heatmap').checkVisibility()"),
        // Not all samples have times here, which a notice says.
        View::new("collector-untimed", format!("?view=flame&timeline=seconds&{latest}&frames=app"))
            .after("document.querySelectorAll('details.notice').forEach((it) => (it.open = true))")
            .shown_when("Boolean(document.querySelector('#message details.notice[open]'))"),
        View::new("collector-threads", format!("?view=both&group=thread_kind&{JAVA}&edit=thread:gc"))
            .opened_when(LOADED)
            .shown_when("document.querySelector('.thread-button[aria-pressed=true]').checkVisibility()"),
        // The timeline says why it doesn't follow.
        View::new("collector-unfollowed", format!("?view=flame&timeline=groups&{JAVA}&edit=thread:gc"))
            .opened_when(LOADED)
            .shown_when("document.querySelector('.choices > .notice').checkVisibility()"),
        View::new("collector-compared", format!("?base=before&view=both&{JAVA}&{latest}"))
            .shown_when("Boolean(jvmprof.view.comparison)"),
        View::new("collector-nobody", "?range=7x&match=comm=nobody")
            .opened_when("document.querySelector('.empty')?.checkVisibility() ?? false"),
    ];
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &format!("{}/", server.url), &views);
    assert_eq!(browser.complaints, [""; 0]);
}

/// True while a popover stands right below its button.
const IS_BELOW_ITS_BUTTON: &str = "((panel) => { if (!panel) return false; \
const [own, button] = [panel, panel.parentElement.querySelector('button')].map((it) => it.getBoundingClientRect()); \
return own.top >= button.top && own.top - button.bottom < 150 })(document.querySelector('.popover.menu:not([hidden])'))";

/// A popover, once this button has been clicked anew.
fn popover(name: &str, address: &str, button: &str, then: &str) -> View {
    let close = "document.body.dispatchEvent(new MouseEvent('mousedown', { bubbles: true }))";
    let act = format!("({close}, ({button}).click(), {then})");
    View::new(name, address).after(act).above(POPOVER).shown_when(IS_BELOW_ITS_BUTTON)
}

#[test]
#[ignore = "needs Chromium"]
fn what_opens_in_the_collectors_page_is_accessible_and_within_reach() {
    let (_folder, server) = served();
    // Narrow windows don't show the words of all of them.
    let button = |text: &str| {
        format!("[...document.querySelectorAll('button')].find((it) => it.textContent.trim() === '{text}')")
    };
    let comm = "[...document.querySelectorAll('.popover .menu-row')].find((it) => it.innerText.startsWith('comm')).click()";
    let mut views = vec![
        popover("collector-compare", "?view=flame", &button("Compare"), "0"),
        popover("collector-labels", "?view=flame", &button("Add filter"), "0"),
        popover("collector-values", "?view=flame", &button("Add filter"), comm),
        popover("collector-custom", "?view=flame", &button("Custom"), "0"),
        popover(
            "collector-chip",
            &format!("?view=flame&{JAVA}"),
            "document.querySelector('button.chip-text')",
            "0",
        ),
    ];
    views.extend(opened_parts("collector", &format!("?view=both&{JAVA}")));
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &format!("{}/", server.url), &views);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn errors_and_an_empty_collector_are_accessible_and_within_reach() {
    let (_folder, server) = served();
    let too_long = "document.querySelector('.error')?.innerText.includes('longer than 400 days') ?? false";
    let views = [
        View::new("collector-error", "?from=1&to=4000000000000").opened_when(too_long),
        // Above what was shown before.
        View::new("collector-error-later", "?view=flame")
            .after("jvmprof.page.change({ from: 1, to: Date.now() })")
            .shown_when(too_long),
    ];
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &format!("{}/", server.url), &views);
    let folder = tempfile::tempdir().unwrap();
    let empty = Server::start(open(folder.path()), ReadLimits::default());
    let says = "document.querySelector('.empty')?.innerText.includes('jvmprof daemon') ?? false";
    check_all(
        &mut browser,
        &format!("{}/", empty.url),
        &[View::new("collector-empty", "").opened_when(says)],
    );
    assert_eq!(browser.complaints_of_the_page(), [""; 0]);
}
