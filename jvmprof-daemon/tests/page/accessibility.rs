//! What axe-core says of the pages: roles, names, contrast, in each view, at each width, in light
//! and dark.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::diff_page::{compare, write_diff_page};
use jvmprof_daemon::profile::pprof::for_file;
use jvmprof_daemon::profile::recording_page::RecordingTitle;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, pauses, window};
use crate::record::write;
use crate::server::{Server, fill, open, push};
use crate::visit;
use crate::widths::WIDTHS;

/// The windows in which a page is looked at. Colours don't depend on the width, so that only the
/// widest has both schemes.
const WINDOWS: [(u32, &str); 4] =
    [(WIDTHS[0], "light"), (WIDTHS[0], "dark"), (WIDTHS[1], "light"), (WIDTHS[2], "dark")];

const METHOD: &str = "com.acme.shop.order.OrderService.total";

/// axe-core, at the version that `xtask/test-packages` has.
fn axe() -> String {
    let folder = std::env::var_os("JVMPROF_TEST_PACKAGES")
        .expect("JVMPROF_TEST_PACKAGES names the folder with npm's packages; `cargo xtask test` makes it");
    let path = PathBuf::from(folder).join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Appends what is wrong with the page as it is now.
fn check(browser: &mut Browser, axe: &str, what: &str, wrong: &mut Vec<String>) {
    browser.evaluate(&format!("if (!globalThis.axe) {{ {axe} }} 0"));
    let violations = browser.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map((it) => \
         `${it.id}: ${it.nodes.slice(0, 4).map((node) => `${node.html.slice(0, 120)} (${node.any.map((any) => any.message).join()})`).join(' | ')}`))",
    );
    let violations = violations.as_array().unwrap();
    wrong.extend(violations.iter().map(|violation| format!("{what}: {violation}")));
}

/// Writes the page of two recordings and returns its address.
fn write_diff(path: &Path) -> String {
    let [before, after] = [1, 2].map(|seed| {
        let mut numbers = Numbers::new(seed);
        for_file(&window(SystemTime::now(), Duration::from_secs(10), 400, Shape::Program, &mut numbers))
    });
    let title = RecordingTitle { title: "a.pb.gz → b.pb.gz".to_owned(), host: String::new() };
    let mut file = File::create(path).unwrap();
    let starts_ms = [1_690_000_000_000, 1_700_000_000_000];
    write_diff_page(compare(&before, &after).unwrap(), &title, starts_ms, &mut file).unwrap();
    format!("file://{}", path.display())
}

#[test]
#[ignore = "needs Chromium"]
fn axe_finds_nothing_wrong_with_a_recorded_page() {
    let folder = tempfile::tempdir().unwrap();
    let batch = window(SystemTime::now(), Duration::from_secs(10), 400, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let (axe, mut browser, mut wrong) = (axe(), Browser::start(1440, 900), Vec::new());
    for (width, scheme) in WINDOWS {
        browser.resize(width, 900);
        browser.prefer(scheme);
        let window = format!("at {width} in {scheme}");
        for view in [
            "view=flame",
            "view=flame&edit=activity:kernel",
            "view=both&frames=java&colour=package",
            "view=table&edit=hide:java.lang.String.hashCode&part=1000-5000",
            "q=kind:kernel&view=both&colour=how",
            &format!("sandwich={METHOD}"),
        ] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#{view}"));
            check(&mut browser, &axe, &format!("{view} {window}"), &mut wrong);
        }
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#view=both"));
        browser.evaluate("document.querySelector('button.opener').click()");
        check(&mut browser, &axe, &format!("an open row {window}"), &mut wrong);
        browser.evaluate("jvmprof.view.menu(jvmprof.view.tree.children[0].children[0], 300, 300)");
        check(&mut browser, &axe, &format!("a frame's menu {window}"), &mut wrong);
        browser.press("Escape");
        browser.press("?");
        browser.wait_for("document.querySelector('dialog').open");
        check(&mut browser, &axe, &format!("the help {window}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn axe_finds_nothing_wrong_with_the_page_of_two_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let url = write_diff(&folder.path().join("d.html"));
    let (axe, mut browser, mut wrong) = (axe(), Browser::start(1440, 900), Vec::new());
    for (width, scheme) in WINDOWS {
        browser.resize(width, 900);
        browser.prefer(scheme);
        let window = format!("at {width} in {scheme}");
        for view in ["view=flame", "view=table&by=time", &format!("sandwich={METHOD}"), "view=both"] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#{view}"));
            check(&mut browser, &axe, &format!("{view} {window}"), &mut wrong);
        }
        browser.evaluate("document.querySelector('button.opener').click()");
        browser.evaluate("document.querySelector('.notices summary').click()");
        check(&mut browser, &axe, &format!("an open row and notice {window}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn axe_finds_nothing_wrong_with_the_collectors_page() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(300), Shape::Program, 20);
    let stops = [(1_000, 3, 90, "ThreadDump", None)];
    push(&store, &pauses(SystemTime::now() - Duration::from_secs(60), Duration::from_secs(10), &stops));
    let server = Server::start(store, ReadLimits::default());
    let (axe, mut browser, mut wrong) = (axe(), Browser::start(1440, 900), Vec::new());
    for (width, scheme) in WINDOWS {
        browser.resize(width, 900);
        browser.prefer(scheme);
        let window = format!("at {width} in {scheme}");
        for view in [
            "",
            "?timeline=activities",
            "?timeline=lines",
            "?timeline=seconds&match=comm=java&range=5m",
            // Not all samples have times here, which a notice says.
            "?timeline=seconds&range=5m&frames=app",
            "?view=both&match=comm=java",
            "?base=before&view=both&match=comm=java&range=2m",
        ] {
            visit(&mut browser, &format!("{}/{view}", server.url));
            check(&mut browser, &axe, &format!("{view} {window}"), &mut wrong);
        }
        browser.evaluate("document.querySelectorAll('.notice > summary').forEach((it) => it.click())");
        check(&mut browser, &axe, &format!("opened notices {window}"), &mut wrong);
        visit(&mut browser, &format!("{}/?match=comm=java&sandwich={METHOD}", server.url));
        browser.wait_for("document.querySelector('.sandwich').checkVisibility()");
        check(&mut browser, &axe, &format!("callers and callees {window}"), &mut wrong);
        for button in ["Compare", "Add filter", "Custom"] {
            visit(&mut browser, &server.url);
            // Narrow windows don't show the words of all of them.
            browser.evaluate(&format!(
                "[...document.querySelectorAll('button')].find((b) => b.textContent.trim() === '{button}').click()"
            ));
            check(&mut browser, &axe, &format!("{button} {window}"), &mut wrong);
        }
        browser.open(&format!("{}/?range=7x&match=comm=nobody", server.url));
        browser.wait_for("!document.querySelector('.empty').hidden");
        check(&mut browser, &axe, &format!("nothing to show {window}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(browser.complaints, [""; 0]);
}
