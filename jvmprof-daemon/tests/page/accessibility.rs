//! What axe-core says of the pages: roles, names, contrast, in light and dark, in each view.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, pauses, window};
use crate::record::write;
use crate::server::{Server, fill, open, push};
use crate::visit;

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

#[test]
#[ignore = "needs Chromium"]
fn axe_finds_nothing_wrong_with_a_recorded_page() {
    let folder = tempfile::tempdir().unwrap();
    let batch = window(SystemTime::now(), Duration::from_secs(10), 400, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let (axe, mut browser, mut wrong) = (axe(), Browser::start(1440, 900), Vec::new());
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for view in [
            "view=flame",
            "view=flame&edit=activity:kernel",
            "view=both&frames=java&colour=package",
            "view=table&edit=hide:java.lang.String.hashCode&part=1000-5000",
            "q=kind:kernel&view=both&colour=how",
            "sandwich=com.acme.shop.order.OrderService.total",
        ] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#{view}"));
            check(&mut browser, &axe, &format!("{view} in {scheme}"), &mut wrong);
        }
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#view=both"));
        browser.evaluate("document.querySelector('button.opener').click()");
        check(&mut browser, &axe, &format!("an open row in {scheme}"), &mut wrong);
        browser.evaluate("jvmprof.view.menu(jvmprof.view.tree.children[0].children[0], 300, 300)");
        check(&mut browser, &axe, &format!("a frame's menu in {scheme}"), &mut wrong);
        browser.press("Escape");
        browser.press("?");
        browser.wait_for("document.querySelector('dialog').open");
        check(&mut browser, &axe, &format!("the help in {scheme}"), &mut wrong);
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
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for view in [
            "",
            "?timeline=activities",
            "?view=both&match=comm=java",
            "?base=before&view=both&match=comm=java&range=2m",
        ] {
            visit(&mut browser, &format!("{}/{view}", server.url));
            check(&mut browser, &axe, &format!("{view} in {scheme}"), &mut wrong);
        }
        for button in ["Compare", "Add filter", "Custom"] {
            visit(&mut browser, &server.url);
            browser.evaluate(&format!(
                "[...document.querySelectorAll('button')].find((b) => b.innerText.trim() === '{button}').click()"
            ));
            check(&mut browser, &axe, &format!("{button} in {scheme}"), &mut wrong);
        }
        browser.open(&format!("{}/?range=7x&match=comm=nobody", server.url));
        browser.wait_for("!document.querySelector('.empty').hidden");
        check(&mut browser, &axe, &format!("nothing to show in {scheme}"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(browser.complaints, [""; 0]);
}
