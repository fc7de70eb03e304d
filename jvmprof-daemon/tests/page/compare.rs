//! Two profiles beside each other: two files, two times, two sets of labels.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::diff_page::{compare, write_diff_page};
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, Sample};
use jvmprof_daemon::profile::pprof::for_file;
use jvmprof_daemon::profile::recording_page::RecordingTitle;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, kernel_for_line, window};
use crate::server::{Server, millis, open, push};
use crate::widths::{WIDTHS, assert_all_is_reachable, windows};
use crate::{IDLE, count_clicks, picture, visit};

const WINDOW: Duration = Duration::from_secs(10);

fn usual(start: SystemTime, seed: u64) -> Batch {
    window(start, WINDOW, 4_000, Shape::Program, &mut Numbers::new(seed))
}

/// The regression in a load.
struct Regression {
    /// The function in which its samples end.
    leaf: String,
    /// The Java method that they are attributed to.
    java: String,
}

/// The same load and something new.
fn with_regression(start: SystemTime) -> (Batch, Regression) {
    let mut batch = usual(start, 2);
    let stack = &batch.series[0].samples[3].frames;
    let name = |frame: &Frame| frame.lines[0].name.to_string();
    let java = stack.iter().find(|frame| frame.kind == FrameKind::Java).unwrap();
    let grown = Regression { leaf: name(&stack[0]), java: name(java) };
    let more = Sample::of_events(stack.clone(), 800, 800 * 10_101_010);
    batch.series[0].samples.push(more);
    (batch, grown)
}

fn write(before: &Batch, after: &Batch, path: &Path) -> String {
    let compared = compare(&for_file(before), &for_file(after)).unwrap();
    let title = RecordingTitle { title: "a.pb.gz → b.pb.gz".to_owned(), host: String::new() };
    let mut out = BufWriter::new(File::create(path).unwrap());
    write_diff_page(compared, &title, [1_690_000_000_000, 1_700_000_000_000], &mut out).unwrap();
    format!("file://{}", path.display())
}

/// The function whose own samples grew most.
const MOST_GROWN: &str =
    "(() => { jvmprof.view.change({ sort: 'self' }); return jvmprof.view.table.sorted[0].name })()";

const HUE: &str = "((d) => /^hsl\\((\\d+) (\\d+)%/.exec(jvmprof.view.flame.fill(d)))";

/// Numbers of the table that don't fit into their column.
const CUT: &str = "[...document.querySelectorAll('td.change :is(.number, .percent)')].filter((it) => it.checkVisibility() && \
it.scrollWidth > it.clientWidth).map((it) => it.textContent)";

/// Checks that the head says from when to when each side is, and that nothing of that is cut.
fn assert_has_both_times(browser: &mut Browser, sides: &str, width: u32) {
    let texts = format!(
        "[...document.querySelectorAll('{sides}')].filter((it) => it.checkVisibility()).map((it) => it.innerText)"
    );
    let texts: Vec<String> = serde_json::from_value(browser.evaluate(&texts)).unwrap();
    let is_side = |text: &String, name: &str| {
        text.starts_with(name) && text.contains(" – ") && text.matches(':').count() >= 4
    };
    assert!(texts.len() == 2 && is_side(&texts[0], "before ") && is_side(&texts[1], "after "), "{texts:?}");
    let cut = format!(
        "[...document.querySelectorAll('{sides}')].filter((it) => {{ const [own, above] = [it, it.parentElement].map((of) => of.getBoundingClientRect()); \
         return own.right > above.right + 0.5 || own.bottom > above.bottom + 0.5 || own.right > innerWidth }}).length"
    );
    assert_eq!(browser.evaluate(&cut), 0, "{texts:?} at {width}");
}

#[test]
#[ignore = "needs Chromium"]
fn a_page_of_two_files_shows_what_changed_by_more_than_chance() {
    let folder = tempfile::tempdir().unwrap();
    let (after, Regression { leaf: grown, .. }) = with_regression(SystemTime::now());
    let url = write(&usual(SystemTime::now(), 1), &after, &folder.path().join("d.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}#view=both"));
    assert_eq!(browser.evaluate(MOST_GROWN), grown);
    let notice = browser.evaluate("document.querySelector('.notices').textContent");
    assert!(notice.as_str().unwrap().contains("two-proportion z-test"), "{notice}");
    let cell = browser.evaluate("document.querySelector('.top tbody td.samples').className");
    assert_eq!(cell, "samples change more-than");
    let sides = browser.evaluate("document.querySelector('.top tbody td.change .percent').textContent");
    assert!(sides.as_str().unwrap().contains('→'), "{sides}: before and after");
    browser.evaluate("document.querySelector('.top button.opener').focus()");
    browser.press("Enter");
    browser.wait_for("Boolean(document.querySelector('.top tr.detail'))");
    let verdicts = browser.evaluate("document.querySelector('.top tr.detail').innerText");
    for part in ["Self: ", "Total: ", " → ", " standard errors"] {
        assert!(verdicts.as_str().unwrap().contains(part), "{part} in {verdicts}");
    }
    let chance = "[...document.querySelectorAll('td.noise')].every((it) => /may be chance|no difference/.test(it.textContent))";
    assert_eq!(browser.evaluate(chance), true);
    picture(&mut browser, "compare-files-open");
    let red = format!(
        "jvmprof.view.flame.root.descendants().filter((d) => d.data.name === '{grown}').map({HUE}).some((it) => it[1] === '4')"
    );
    assert_eq!(browser.evaluate(&red), true, "it is red");
    let noise = format!(
        "jvmprof.view.flame.root.descendants().filter((d) => Number({HUE}(d)[2]) < 10).length / jvmprof.view.flame.root.descendants().length"
    );
    assert!(browser.evaluate(&noise).as_f64().unwrap() > 0.5, "most of it is the same load");
    let share = browser.evaluate("document.querySelector('.top tbody .number').textContent");
    browser.press("n");
    browser.wait_for("location.hash.includes('by=time')");
    let time = browser.evaluate("document.querySelector('.top tbody .number').textContent");
    assert!(share.as_str().unwrap().ends_with('%'), "{share}");
    assert!(!time.as_str().unwrap().contains("CPUs"), "one line: the unit is in the head: {time}");
    let heads = browser
        .evaluate("[...document.querySelectorAll('.top th')].map((it) => it.innerText.trim()).join('; ')");
    assert!(heads.as_str().unwrap().contains("Total, CPUs"), "{heads}");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        for view in ["both", "both&by=time", "flame"] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#view={view}"));
            assert_all_is_reachable(&mut browser, width, "two files");
            assert_has_both_times(&mut browser, "#header .subtitle > span", width);
            assert_eq!(browser.evaluate(CUT), serde_json::json!([]), "numbers at {width}");
            picture(&mut browser, &format!("compare-files-{view}-{width}-{scheme}"));
        }
    }
    let tip = browser.evaluate("(jvmprof.view.flame.showTip(jvmprof.view.flame.root.children[0], 30, 30), document.querySelector('.tip').innerText)");
    for part in ["Change", "→", "standard errors"] {
        assert!(tip.as_str().unwrap().contains(part) || part == "standard errors", "{part} in {tip}");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn what_is_said_of_a_comparison_is_a_line_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    let (after, _) = with_regression(SystemTime::now());
    let url = write(&usual(SystemTime::now(), 1), &after, &folder.path().join("d.html"));
    let mut browser = Browser::start(1440, 500);
    let summary = "document.querySelector('.notices summary')";
    let rest = "document.querySelector('.notices details > p')";
    let is_open = &format!("{rest}.checkVisibility()");
    for width in WIDTHS {
        browser.resize(width, 500);
        browser.open("about:blank");
        visit(&mut browser, &url);
        let heights = "[...document.querySelectorAll('.notices .notice')].map((it) => it.offsetHeight)";
        let heights: Vec<u32> = serde_json::from_value(browser.evaluate(heights)).unwrap();
        assert!(!heights.is_empty() && heights.iter().all(|height| *height < 40), "{heights:?} at {width}");
        assert_eq!(browser.evaluate(is_open), false);
        // By keys; what is opened stays so when it says something else, and keeps the focus.
        browser.evaluate(&format!("{summary}.focus()"));
        browser.press("Enter");
        browser.wait_for(&format!("{is_open} && {rest}.innerText.includes('two-proportion z-test')"));
        browser.press("n");
        browser.wait_for(&format!("{is_open} && {rest}.innerText.includes('z-test of two rates')"));
        assert_eq!(browser.evaluate(&format!("document.activeElement === {summary}")), true);
        assert_all_is_reachable(&mut browser, width, "an opened line");
        picture(&mut browser, &format!("compare-files-said-{width}"));
        browser.press("Enter");
        browser.wait_for(&format!("!{is_open}"));
        browser.evaluate(&format!("({summary}.scrollIntoView({{ block: 'center' }}), 0)"));
        browser.point(summary, true);
        browser.wait_for(is_open);
    }
    assert_eq!(browser.complaints, [""; 0]);
}

/// Points at the button with this text, which may be hidden where it is narrow, and clicks.
fn click_button(browser: &mut Browser, buttons: &str, text: &str) {
    let button = format!(
        "[...document.querySelectorAll('{buttons}')].find((it) => it.textContent.trim().startsWith('{text}'))"
    );
    browser.wait_for(&format!("Boolean({button})"));
    browser.point(&button, true);
}

#[test]
#[ignore = "needs Chromium"]
fn the_line_that_costs_most_and_what_changed_since_yesterday_are_at_most_three_clicks_away() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let now = SystemTime::now() - Duration::from_secs(60);
    for (start, seed, new) in [(now - Duration::from_secs(24 * 3_600), 1, 0), (now, 2, 600)] {
        let mut batch = window(start, WINDOW, 2_000, Shape::Program, &mut Numbers::new(seed));
        let samples = &mut batch.series[0].samples;
        samples.push(kernel_for_line("com.acme.shop.basket.Basket.price", 57, 900));
        if new > 0 {
            samples.push(kernel_for_line("com.acme.shop.depot.Depot.count", 23, new));
        }
        push(&store, &batch);
    }
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    let first = "document.querySelector('.top tbody td.name')";
    let is_first = |function: &str, line: &str| {
        format!(
            "{first}.checkVisibility() && {first}.innerText.includes('{function}') && {first}.innerText.includes('{line}')"
        )
    };
    for width in [1440, 1280, 800] {
        browser.resize(width, 900);
        visit(&mut browser, &server.url);
        count_clicks(&mut browser);
        // Beside the graph there is room for the table, which is a click away without.
        let is_there = browser.evaluate(&format!("{first}.checkVisibility()")).as_bool().unwrap();
        assert_eq!(is_there, width > 1_000, "at {width}");
        if is_there {
            click_button(&mut browser, ".legend button", "Application");
        } else {
            click_button(&mut browser, ".segments button", "Table");
        }
        browser.wait_for(&is_first("Basket.price", "Basket.java:57 100 %"));
        click_button(&mut browser, "header button", "Compare");
        click_button(&mut browser, ".menu-row", "A day before");
        browser.wait_for("Boolean(jvmprof.view.comparison)");
        browser.wait_for(IDLE);
        browser.wait_for(&is_first("Depot.count", "Depot.java:23 100 %"));
        assert!(browser.evaluate("clicks").as_u64().unwrap() <= 3, "at {width}");
        picture(&mut browser, &format!("compare-three-clicks-{width}"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_collector_compares_with_yesterday_and_with_other_labels() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let now = SystemTime::now() - Duration::from_secs(60);
    let (after, Regression { java: grown, .. }) = with_regression(now);
    push(&store, &usual(now - Duration::from_secs(24 * 3_600), 1));
    push(&store, &after);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &server.url);
    // What changed since yesterday is the table's first row, two clicks from the bare address.
    count_clicks(&mut browser);
    browser.point(
        "[...document.querySelectorAll('button')].find((b) => b.innerText.trim() === 'Compare')",
        true,
    );
    browser.wait_for("Boolean([...document.querySelectorAll('.menu-row')].find((b) => b.innerText.startsWith('A day before')))");
    browser.point(
        "[...document.querySelectorAll('.menu-row')].find((b) => b.innerText.startsWith('A day before'))",
        true,
    );
    browser.wait_for("Boolean(jvmprof.view.comparison)");
    browser.wait_for(IDLE);
    assert!(browser.evaluate("location.search").as_str().unwrap().contains("base=1d"));
    assert_eq!(browser.evaluate("document.querySelector('.top .function-name').textContent"), grown);
    let change = browser.evaluate("document.querySelectorAll('.top tbody td.samples')[1].className");
    assert_eq!(change, "samples change more-than", "by more than chance");
    assert_eq!(browser.evaluate("clicks"), 2);
    let url = browser.evaluate("location.href");
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        visit(&mut browser, url.as_str().unwrap());
        browser.wait_for("Boolean(jvmprof.view.comparison)");
        assert_all_is_reachable(&mut browser, width, "compared");
        assert_has_both_times(&mut browser, "#base .side-time", width);
        picture(&mut browser, &format!("compare-collector-{width}-{scheme}"));
    }
    // Other labels at the same time.
    visit(&mut browser, &format!("{}/?base=same&match=comm=java&base_match=comm=postgres", server.url));
    browser.wait_for("jvmprof.view.comparison?.sides.map((side) => side.total).join(' ').endsWith(' ' + jvmprof.view.data.total)");
    assert_eq!(browser.evaluate("jvmprof.view.data.base"), 200);
    assert_eq!(browser.evaluate("document.querySelector('#base .chip-text').innerText"), "comm = postgres");
    browser.evaluate("document.querySelector('#base > .button').click()");
    browser.wait_for("!jvmprof.view.comparison");
    assert!(!browser.evaluate("location.search").as_str().unwrap().contains("base"));
    assert_eq!(browser.complaints, [""; 0]);
}

/// Of 20 s with as many samples as 10 s have later.
#[test]
#[ignore = "needs Chromium"]
fn the_collector_compares_by_share_or_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let now = SystemTime::now() - Duration::from_secs(60);
    for (ago, samples) in [(2, 2_000), (1, 2_000), (0, 4_000)] {
        push(&store, &window(now - WINDOW * ago, WINDOW, samples, Shape::Program, &mut Numbers::new(1)));
    }
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    let from = millis(now);
    let range = format!("from={from}&to={}&base={}-{from}", from + 10_000, from - 20_000);
    visit(&mut browser, &format!("{}/?{range}&view=table", server.url));
    let total = "[...document.querySelectorAll('.top tbody tr:not(.detail)')].find((row) => \
                 row.querySelector('.function-name').textContent === 'java.lang.Thread.run')\
                 .querySelector('td.change:last-child .percent').textContent.replaceAll('\\u00a0', ' ')";
    let heads = "[...document.querySelectorAll('.top th')].map((it) => it.innerText.trim()).join('; ')";
    let has_unit = |browser: &mut Browser| browser.evaluate(heads).as_str().unwrap().contains("Total, CPUs");
    // 4,160 of 4,370 samples on both sides.
    assert_eq!(browser.evaluate(total), "95.2 % → 95.2 %");
    assert!(!has_unit(&mut browser));
    browser.press("n");
    browser.wait_for("location.search.includes('by=time')");
    // 10.1 ms each, in 20 s and in 10 s.
    assert_eq!(browser.evaluate(total), "2.101 → 4.202");
    assert!(has_unit(&mut browser));
    let class = "[...document.querySelectorAll('.top tbody td.change')].map((it) => it.className)";
    let classes: Vec<String> = serde_json::from_value(browser.evaluate(class)).unwrap();
    assert!(classes.iter().any(|class| class.ends_with("more-than")), "{classes:?}");
    picture(&mut browser, "compare-collector-by-time");
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(browser.evaluate(total), "2.101 → 4.202", "the address says it");
    browser.press("n");
    browser.wait_for("!location.search.includes('by=time')");
    assert_eq!(browser.evaluate(total), "95.2 % → 95.2 %");
    assert_eq!(browser.complaints, [""; 0]);
}
