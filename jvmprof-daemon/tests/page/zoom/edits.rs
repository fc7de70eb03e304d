//! Fetches of edits, and of callers and callees, in a tree that is cut.

use super::*;
use crate::data::kernel_for_line;

/// A method with three samples, which the tree has no room for.
const METHOD: &str = "com.acme.shop.basket.Basket.price";

const TOTAL: &str = "jvmprof.view.tree.value";

fn served(folder: &tempfile::TempDir) -> Server {
    let store = open(folder.path());
    let start = SystemTime::now() - Duration::from_secs(60);
    let mut batch = window(start, Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    batch.series[0].samples.push(kernel_for_line(METHOD, 57, 3));
    push(&store, &batch);
    Server::start(store, ReadLimits { nodes: 1_500, ..ReadLimits::default() })
}

/// Whether the graph has a frame of this function.
fn is_drawn(name: &str) -> String {
    format!("jvmprof.view.nodes.some((node) => node.name === '{name}')")
}

/// What the table says of a function: its name, its hottest line and the line's share.
fn row(name: &str) -> String {
    format!(
        "([...document.querySelectorAll('.top tbody td.name')].map((it) => it.innerText).find((text) => text.includes('{name}')) ?? '')"
    )
}

/// Changes how the profile is looked at, and returns what an expression is at once.
fn change(browser: &mut Browser, changes: &str, then: &str) -> serde_json::Value {
    browser.evaluate(&format!("(jvmprof.view.change({changes}), {then})"))
}

#[test]
#[ignore = "needs Chromium"]
fn a_method_below_what_was_pruned_is_focused_and_hidden_and_lines_stay_in_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    assert_eq!(browser.evaluate(&is_drawn(METHOD)), false);

    let at_once = change(&mut browser, &format!("{{ edits: ['only:{METHOD}'] }}"), TOTAL);
    assert_eq!(at_once, 0, "the drawn frames have none of it");
    browser.wait_for(&format!("{TOTAL} === 3"));
    browser.wait_for(IDLE);
    assert_eq!(browser.evaluate(&is_drawn(METHOD)), true);
    let line = browser.evaluate(&row("Basket.price"));
    assert!(line.as_str().unwrap().contains("Basket.java:57 100 %"), "{line}");
    picture(&mut browser, "edits-focus-below-pruned");
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    browser.open(url.as_str().unwrap());
    browser.wait_for(&format!("globalThis.jvmprof?.view?.tree && {TOTAL} === 3"));
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {all}"));

    let at_once = change(&mut browser, &format!("{{ edits: ['hide:{METHOD}'] }}"), TOTAL);
    assert_eq!(at_once, all, "what is pruned isn't known");
    browser.wait_for(&format!("{TOTAL} === {}", all - 3));
    browser.wait_for(IDLE);
    assert_eq!(browser.evaluate(&row("Basket.price")), "");
    // What is below a frame is that of what the edit leaves.
    browser.evaluate(
        "(globalThis.first = fetch, globalThis.fetch = (...of) => (globalThis.asked = of[0], first(...of)), 0)",
    );
    browser.evaluate(&format!("jvmprof.view.flame.zoomTo({INNER})"));
    browser.wait_for("globalThis.asked?.includes('under=')");
    browser.wait_for(IDLE);
    let asked = browser.evaluate("decodeURIComponent(asked)");
    assert!(asked.as_str().unwrap().contains(&format!("edit=hide:{METHOD}")), "{asked}");
    assert_eq!(browser.evaluate(TOTAL), all - 3);
    browser.press("u");
    assert_eq!(browser.evaluate(TOTAL), all);
    browser.press("Escape");
    browser.wait_for("!location.search.includes('zoom=')");

    // Of a method that keeps a part of its samples.
    let order = "com.acme.shop.order.OrderService.total";
    let lines = format!("jvmprof.view.table.rows.find((row) => row.name === '{order}').lines.length");
    let at_once = change(&mut browser, "{ edits: ['hide:com.acme.shop.cart.CartService.merge'] }", &lines);
    assert_eq!(at_once, 0, "the tree doesn't know them");
    browser.wait_for(&format!("{lines} > 0"));
    browser.wait_for(IDLE);
    let line = browser.evaluate(&row("OrderService.total"));
    assert!(line.as_str().unwrap().contains("OrderService.java:4"), "{line}");
    assert!(browser.evaluate(TOTAL).as_u64().unwrap() < all);
    picture(&mut browser, "edits-lines");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn callers_and_callees_are_those_of_all_stacks_with_the_function() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let all = browser.evaluate(TOTAL);
    let title = "document.querySelector('.sandwich-title').innerText";
    let at_once = change(&mut browser, &format!("{{ sandwich: '{METHOD}' }}"), title);
    assert!(at_once.as_str().unwrap().ends_with("no samples here · without what is pruned"), "{at_once}");
    browser.wait_for(&format!("!{title}.includes('pruned')"));
    browser.wait_for(IDLE);
    let totals =
        browser.evaluate("Object.values(jvmprof.view.sandwich.flames).map((flame) => flame.tree.value)");
    assert_eq!(totals, serde_json::json!([3, 3]));
    let names = |which: &str| {
        format!("jvmprof.view.sandwich.flames.{which}.root.descendants().map((d) => d.data.name)")
    };
    let callers = browser.evaluate(&names("callers"));
    assert!(callers.as_array().unwrap().contains(&"java.lang.Thread.run".into()), "{callers}");
    assert_eq!(browser.evaluate(&names("callees")), serde_json::json!([METHOD, "clear_page_erms"]));
    assert_eq!(browser.evaluate(TOTAL), all, "the graph stays as it was");
    picture(&mut browser, "edits-callers-below-pruned");
    // The same of what an edit leaves.
    change(&mut browser, "{ edits: ['hide:clear_page_erms'] }", "0");
    browser.wait_for(&format!("{title}.endsWith('no samples here')"));
    browser.press("u");
    browser.wait_for(&format!("{title}.includes('3, ')"));
    browser.press("Escape");
    browser.wait_for("!document.querySelector('.sandwich').checkVisibility()");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn where_nothing_can_be_fetched_the_page_says_so_and_shows_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    browser.evaluate(
        "(globalThis.first = fetch, globalThis.asked = 0, globalThis.fetch = (url, ...of) => /edit=|through=/.test(url) ? \
         (asked++, Promise.resolve(new Response(JSON.stringify({ error: 'choose a shorter range' }), { status: 413 }))) : first(url, ...of), 0)",
    );
    let said = "document.querySelector('.notices').innerText";
    let is_said = format!("/couldn't be fetched.*choose a shorter range/.test({said})");
    change(&mut browser, "{ edits: ['hide:com.acme.shop.order.OrderService.total'] }", "0");
    browser.wait_for(&is_said);
    browser.wait_for(IDLE);
    let drawn = browser.evaluate(TOTAL).as_u64().unwrap();
    assert!(0 < drawn && drawn < all, "{drawn} of {all}");
    change(&mut browser, "{ fold: true }", "0");
    assert_eq!(browser.evaluate("asked"), 1, "once");
    assert_eq!(browser.evaluate(&is_said), true);
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {all} && !{is_said}"));
    change(&mut browser, &format!("{{ sandwich: '{METHOD}' }}"), "0");
    browser.wait_for(&is_said);
    browser.press("Escape");
    browser.wait_for(&format!("!{is_said}"));
    assert_eq!(browser.complaints, [""; 0]);
}
