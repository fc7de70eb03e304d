//! The menu of a function of the table, and what copies without the browser's clipboard.

use super::{TOTAL, choose, page};
use crate::browser::Browser;
use crate::{picture, visit};

const METHOD: &str = "com.acme.shop.order.OrderService.total";

const IS_OPEN: &str = "document.activeElement.getAttribute('role') === 'menuitem'";

/// The button with the name of a function.
fn button(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.top button.function')].find((it) => it.querySelector('.function-name').textContent === '{name}')"
    )
}

/// Opens the menu of what has the focus, goes from the first entry up to the one with this title,
/// and chooses it.
fn choose_by_keys(browser: &mut Browser, title: &str) {
    browser.press("m");
    browser.wait_for(IS_OPEN);
    let is_there = format!("document.activeElement.innerText === '{title}'");
    let entries = browser.evaluate("document.querySelectorAll('.frame-menu button').length");
    for _ in 0..entries.as_u64().unwrap() {
        browser.press("ArrowUp");
        if browser.evaluate(&is_there) == true {
            break;
        }
    }
    assert_eq!(browser.evaluate(&is_there), true, "{title}");
    browser.press("Enter");
    browser.wait_for("!document.querySelector('.frame-menu')");
}

#[test]
#[ignore = "needs Chromium"]
fn a_function_of_the_table_has_its_menu_by_the_mouse_and_by_keys() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{}#view=table", page(&folder)));
    let all = browser.evaluate(TOTAL);
    let method = button(METHOD);
    browser.evaluate(&format!(
        "(() => {{ const it = {method}, box = it.getBoundingClientRect(); it.dispatchEvent(new MouseEvent('contextmenu', \
         {{ bubbles: true, cancelable: true, clientX: box.left + 9, clientY: box.top + 9 }})) }})()"
    ));
    browser.wait_for(IS_OPEN);
    assert_eq!(browser.evaluate("document.querySelector('.frame-menu').ariaLabel"), METHOD);
    // What needs a place in a graph, or a stack, isn't there.
    let titles = "[...document.querySelectorAll('.frame-menu button')].map((it) => it.innerText)";
    assert_eq!(
        browser.evaluate(titles),
        serde_json::json!([
            "Callers and callees",
            "Focus: only stacks with it",
            "Hide: without stacks with it",
            "Merge into its callers",
            "Only stacks with class OrderService",
            "Only stacks with package com.acme.shop.order",
            "Merge package com.acme.shop.order into callers",
            "Search it",
            "Copy name",
        ])
    );
    picture(&mut browser, "menu-table");
    choose(&mut browser, "Hide");
    browser.wait_for(&format!("{TOTAL} < {all} && !{method}"));
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {all}"));

    browser.evaluate(&format!("({method}.focus(), 0)"));
    browser.press("m");
    browser.wait_for(IS_OPEN);
    browser.press("Escape");
    browser.wait_for(&format!("document.activeElement === {method}"));
    // Rows are made anew, and the focus stays at its function.
    choose_by_keys(&mut browser, "Search it");
    browser.wait_for(&format!("document.querySelector('.search input').value === '\"{METHOD}\"'"));
    assert_eq!(browser.evaluate(&format!("document.activeElement === {method}")), true);
    choose_by_keys(&mut browser, "Callers and callees");
    browser.wait_for(&format!("jvmprof.view.state.sandwich === '{METHOD}'"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn names_are_copied_where_the_browser_gives_the_page_no_clipboard() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    // As without TLS from another machine.
    browser.evaluate(
        "(Object.defineProperty(navigator, 'clipboard', { value: undefined }), \
         document.addEventListener('copy', () => (globalThis.copied = document.activeElement.value)), 0)",
    );
    let name = "org.springframework.web.servlet.DispatcherServlet.doDispatch";
    browser.press("f");
    browser.evaluate(&format!(
        "(jvmprof.view.flame.setCursor(jvmprof.view.flame.root.descendants().find((d) => d.data.name === '{name}')), 0)"
    ));
    choose_by_keys(&mut browser, "Copy name");
    browser.wait_for(&format!("globalThis.copied === '{name}'"));
    browser.wait_for("document.querySelector('.status').textContent === 'Copied.'");
    // The graph has the focus, and its cursor stays.
    assert_eq!(browser.evaluate("document.activeElement === jvmprof.view.flame.holder"), true);
    assert_eq!(browser.evaluate("jvmprof.view.flame.cursor.data.name"), name);
    assert_eq!(browser.evaluate("document.querySelectorAll('textarea').length"), 0);

    browser.evaluate(&format!("({}.focus(), 0)", button(METHOD)));
    choose_by_keys(&mut browser, "Copy name");
    browser.wait_for(&format!("globalThis.copied === '{METHOD}'"));
    assert_eq!(browser.complaints, [""; 0]);
}
