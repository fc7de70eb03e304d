//! The table of functions: columns, lines, how methods ran.

use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::model::Sample;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, busy_jvm, kernel_for_line, own_of_line, window};
use crate::record::write;
use crate::server::{Server, open, push};
use crate::widths::windows;
use crate::{count_clicks, picture, visit};

/// The column that the table is sorted by, and the order.
const SORTED: &str = "(() => { const th = document.querySelector('.top th:is([aria-sort=ascending], [aria-sort=descending])'); \
return `${th.className} ${th.ariaSort}` })()";

/// The table's first row whose function has this name.
fn row(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.top tbody tr:not(.detail)')].find((row) => row.querySelector('.function-name').textContent === '{name}')"
    )
}

#[test]
#[ignore = "needs Chromium"]
fn rows_open_to_lines_and_to_how_methods_ran() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    let order = row("com.acme.shop.order.OrderService.total");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#view=table&q=OrderService"));
        browser.wait_for("document.querySelectorAll('.top tbody tr').length === 1");
        let where_it_is = browser.evaluate(&format!("{order}.querySelector('.where').textContent"));
        let where_it_is = where_it_is.as_str().unwrap();
        assert!(where_it_is.starts_with("OrderService.java:4") && where_it_is.contains('%'), "{where_it_is}");
        browser.evaluate(&format!("{order}.querySelector('button.opener').focus()"));
        browser.press("Enter");
        browser.wait_for("document.querySelectorAll('.top tr.detail').length > 3");
        assert_eq!(
            browser.evaluate("document.activeElement.getAttribute('aria-expanded')"),
            "true",
            "the focus stays where it was"
        );
        let details = browser.evaluate("document.querySelector('.top tbody').innerText");
        let details = details.as_str().unwrap();
        for part in
            ["OrderService.java:40", "Ran: ", "C2 ", "interpreted ", "line of the next call or safepoint"]
        {
            assert!(details.contains(part), "{part} in {details}");
        }
        picture(&mut browser, &format!("table-lines-{width}-{scheme}"));
        browser.press("Enter");
        browser.wait_for("!document.querySelector('.top tr.detail')");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_package_is_cut_to_some_characters_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}#view=table"));
    // A character takes some 7 pixels, of which one alone would look like a part of the class.
    let packages =
        "[...document.querySelectorAll('.function-name span:first-child')].filter((it) => it.textContent)";
    let cut = format!("{packages}.filter((it) => it.clientWidth > 0 && it.clientWidth < 16).length");
    let mut left_out = 0;
    for width in (360..=480).step_by(10) {
        browser.resize(width, 900);
        assert_eq!(browser.evaluate(&cut), 0, "{width}");
        let none = format!("{packages}.filter((it) => it.clientWidth === 0).length");
        left_out += browser.evaluate(&none).as_u64().unwrap();
    }
    assert!(left_out > 0, "names are longer than there is room");
    browser.resize(1440, 900);
    let whole = format!("{packages}.every((it) => it.scrollWidth <= it.clientWidth + 1)");
    assert_eq!(browser.evaluate(&whole), true, "nothing is cut where there is room");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_line_of_the_application_that_costs_most_is_a_click_from_the_bare_address() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let start = SystemTime::now() - Duration::from_secs(60);
    let mut batch = window(start, Duration::from_secs(10), 2_000, Shape::Program, &mut Numbers::new(1));
    batch.series[0].samples.push(kernel_for_line("com.acme.shop.basket.Basket.price", 57, 900));
    push(&store, &batch);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    count_clicks(&mut browser);
    browser.point(
        "[...document.querySelectorAll('.legend button')].find((it) => it.innerText.trim() === 'Application')",
        true,
    );
    browser.wait_for("document.querySelector('.search input').value === 'kind:application'");
    assert_eq!(browser.evaluate(SORTED), "attributed descending");
    let first = browser.evaluate("document.querySelector('.top tbody tr td.name').innerText");
    let first = first.as_str().unwrap();
    assert!(first.contains("Basket.price") && first.contains("Basket.java:57 100 %"), "{first}");
    assert_eq!(browser.evaluate("clicks"), 1);
    picture(&mut browser, "table-costliest-line");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_address_keeps_what_the_table_is_sorted_by() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}#view=table"));
    assert_eq!(browser.evaluate("location.hash.includes('sort=')"), false);
    let first = "document.querySelector('.top .function-name').textContent";
    for (column, expected, sort) in [
        ("total", "total descending", "total"),
        ("total", "total ascending", "-total"),
        ("name", "name ascending", "name"),
        ("name", "name descending", "-name"),
        ("self", "self descending", "self"),
        ("attributed", "attributed descending", "attributed"),
        ("attributed", "attributed ascending", "-attributed"),
    ] {
        browser.point(&format!("document.querySelector('.top th.{column} button')"), true);
        browser.wait_for(&format!("{SORTED} === '{expected}'"));
        let at_top = browser.evaluate(first);
        let reopened = browser.evaluate("location.href");
        assert_eq!(browser.evaluate("new URLSearchParams(location.hash.slice(1)).get('sort')"), sort);
        browser.open("about:blank");
        visit(&mut browser, reopened.as_str().unwrap());
        assert_eq!(browser.evaluate(SORTED), expected);
        assert_eq!(browser.evaluate(first), at_top);
    }
    // Where own samples have the others' already, they stand for these; the choice stays.
    browser.press("j");
    browser.wait_for(&format!("{SORTED} === 'self ascending'"));
    assert_eq!(browser.evaluate("location.hash.includes('sort=-attributed')"), true);
    browser.press("j");
    browser.press("j");
    browser.wait_for(&format!("{SORTED} === 'attributed ascending'"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn time_of_the_jvm_and_the_kernel_stands_beside_a_methods_own() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}#view=table"));
    let columns =
        "[...document.querySelectorAll('.top th')].filter((th) => !th.hidden).map((th) => th.textContent)";
    assert_eq!(browser.evaluate(columns), serde_json::json!(["Function", "Self", "+ JVM, kernel", "Total"]));
    let sums = "['self', 'attributed'].map((column) => jvmprof.view.table.rows.reduce((sum, row) => sum + row[column], 0))";
    let sums = browser.evaluate(sums);
    assert_eq!(sums[0], sums[1], "each sample is somebody's");
    assert_eq!(browser.evaluate(SORTED), "attributed descending");
    let kinds = browser.evaluate("jvmprof.view.table.sorted.slice(0, 10).map(({ fn }) => fn.kind).join(' ')");
    assert!(!kinds.as_str().unwrap().contains("kernel"), "{kinds}");
    browser.press("j");
    browser.wait_for("document.querySelector('.top th.attributed').hidden");
    browser.evaluate("document.querySelector('button.opener').click()");
    browser.wait_for("document.querySelector('.top tr.detail')?.textContent.includes('.java:')");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn rows_have_the_lines_of_what_is_left_of_their_samples() {
    let folder = tempfile::tempdir().unwrap();
    let mut batch = busy_jvm(SystemTime::now(), Duration::from_secs(20), 2_000, &mut Numbers::new(1));
    let price = "com.acme.shop.basket.Basket.price";
    let at = |ms: i32, sample: Sample| Sample { times: vec![ms; sample.events as usize], ..sample };
    batch.series[0].samples.extend([
        at(500, kernel_for_line(price, 57, 300)),
        at(15_000, kernel_for_line(price, 58, 40)),
        at(15_000, own_of_line(price, 60, 100)),
    ]);
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    let hottest = |line: &str| format!("{}?.querySelector('.where').textContent === '{line}'", row(price));
    let open = |browser: &mut Browser, hash: &str| {
        browser.open("about:blank");
        visit(browser, &format!("{url}#view=table&q=Basket{hash}"));
    };
    open(&mut browser, "");
    browser.wait_for(&hottest("Basket.java:57 68.2 %"));
    let activity = |key: &str| format!("document.querySelector('[data-edit=\"activity:{key}\"]')");
    browser.point(&activity("application"), true);
    browser.wait_for(&hottest("Basket.java:60 100 %"));
    picture(&mut browser, "table-lines-application");
    browser.point(&activity("kernel"), true);
    browser.wait_for(&hottest("Basket.java:57 88.2 %"));
    browser.evaluate("document.querySelector('button.opener').click()");
    let listed =
        "[...document.querySelectorAll('.top .detail .line')].map((it) => it.textContent).join('; ')";
    assert_eq!(browser.evaluate(listed), "Basket.java:57 88.2 %; Basket.java:58 11.8 %");
    open(&mut browser, "&edit=hide:clear_page_erms");
    browser.wait_for(&hottest("Basket.java:60 100 %"));
    // In a part of the recording, too; there the total of a line isn't known.
    open(&mut browser, "&edit=activity:kernel&part=10000-20000");
    browser.wait_for(&hottest("Basket.java:58 100 %"));
    browser.evaluate("document.querySelector('.top th.total button').click()");
    browser.evaluate("document.querySelector('button.opener').click()");
    assert_eq!(browser.evaluate(listed), "Basket.java:58 100 %");
    assert_eq!(browser.complaints, [""; 0]);
}
