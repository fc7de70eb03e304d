//! A frame's menu: what it takes out of the profile, and back; colours.

mod table_rows;
mod touch;

use std::time::{Duration, SystemTime};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::widths::{WIDTHS, assert_all_is_reachable, windows};
use crate::{picture, visit};

fn page(folder: &tempfile::TempDir) -> String {
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    write(&batch, &folder.path().join("x.html"))
}

/// The heaviest frame with this name.
pub(crate) fn frame(name: &str) -> String {
    format!("jvmprof.view.flame.drawnBoxes().find((g) => g.data.name.endsWith('{name}'))")
}

/// Opens the menu of a frame by the right mouse button.
pub(crate) fn open_menu(browser: &mut Browser, name: &str) {
    browser.evaluate(&format!(
        "(() => {{ const place = jvmprof.view.flame.place({}); document.querySelector('.flame').dispatchEvent(new MouseEvent('contextmenu', \
         {{ bubbles: true, cancelable: true, clientX: place.x + place.width / 2, clientY: place.y + 9 }})) }})()",
        frame(name)
    ));
    browser.wait_for("document.activeElement.getAttribute('role') === 'menuitem'");
}

/// Chooses what begins with this title in a frame's menu.
pub(crate) fn choose(browser: &mut Browser, title: &str) {
    let item = format!(
        "[...document.querySelectorAll('.frame-menu button')].find((b) => b.innerText.startsWith('{title}'))"
    );
    browser.point(&item, true);
    browser.wait_for("!document.querySelector('.frame-menu')");
}

const TOTAL: &str = "jvmprof.view.tree.value";

#[test]
#[ignore = "needs Chromium"]
fn a_frames_menu_takes_stacks_out_and_undo_brings_them_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let order = browser.evaluate(&format!("{}.data.value", frame("OrderController.place")));
    open_menu(&mut browser, "OrderController.place");
    picture(&mut browser, "menu");
    choose(&mut browser, "Focus");
    browser.wait_for(&format!("{TOTAL} < {all}"));
    assert!(browser.evaluate(TOTAL).as_u64() >= order.as_u64());
    assert!(
        browser
            .evaluate("decodeURIComponent(location.hash)")
            .as_str()
            .unwrap()
            .contains("edit=only:com.acme.shop.order.OrderController.place")
    );
    let focused = browser.evaluate(TOTAL);

    open_menu(&mut browser, "OrderService.total");
    choose(&mut browser, "Hide");
    browser.wait_for(&format!("{TOTAL} < {focused}"));
    assert_eq!(browser.evaluate(&format!("Boolean({})", frame("OrderService.total"))), false);
    assert_eq!(browser.evaluate("document.querySelectorAll('.edits .chip .chip-remove').length"), 2);
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        assert_all_is_reachable(&mut browser, width, "with what was taken out");
        picture(&mut browser, &format!("menu-edits-{width}-{scheme}"));
    }
    browser.resize(1440, 900);
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {focused}"));
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{TOTAL} < {focused}"));
    browser.evaluate("document.querySelector('.edits .chip-remove').click()");
    browser.wait_for("document.querySelectorAll('.edits .chip-remove').length === 1");
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    assert_eq!(browser.evaluate("document.querySelector('.edits').hidden"), true);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn keys_open_the_menu_and_choose_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    browser.press("f");
    browser.evaluate(
        "jvmprof.view.flame.setCursor(jvmprof.view.flame.root.descendants().find((d) => d.data.name.endsWith('DispatcherServlet.doDispatch')))",
    );
    let total = browser.evaluate(TOTAL);
    browser.press("m");
    browser.wait_for("document.activeElement.getAttribute('role') === 'menuitem'");
    browser.press("Escape");
    browser.wait_for("document.activeElement.classList.contains('flame')");
    browser.press("m");
    for _ in 0..4 {
        browser.press("ArrowDown");
    }
    assert!(browser.evaluate("document.activeElement.innerText").as_str().unwrap().starts_with("Merge into"));
    browser.press("Enter");
    browser.wait_for("location.hash.includes('edit=merge')");
    let merged =
        "!jvmprof.view.flame.drawnBoxes().some((g) => g.data.name.endsWith('DispatcherServlet.doDispatch'))";
    assert_eq!(browser.evaluate(merged), true);
    assert_eq!(browser.evaluate(TOTAL), total, "its time is its caller's");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_frames_menu_copies_its_name_and_stack_and_filters_by_its_class_and_package() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    // The browser's own clipboard asks for a permission.
    browser.evaluate("(Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { globalThis.copied = text } } }), 0)");
    let name = "com.acme.shop.order.OrderService.total";
    open_menu(&mut browser, name);
    choose(&mut browser, "Copy name");
    browser.wait_for(&format!("globalThis.copied === '{name}'"));
    let stack = browser.evaluate(&format!(
        "(() => {{ const names = []; for (let d = {}; d.depth > 0; d = d.parent) names.push(d.data.name); return names }})()",
        frame(name)
    ));
    assert!(stack.as_array().unwrap().len() > 30, "{stack}");
    open_menu(&mut browser, name);
    choose(&mut browser, "Copy stack");
    browser.wait_for(&format!("globalThis.copied === {stack}.join('\\n')"));

    let all = browser.evaluate(TOTAL);
    let mut fewer = 0;
    for (what, title) in [
        ("com.acme.shop.order.OrderService.", "Only stacks with class OrderService"),
        ("com.acme.shop.order.", "Only stacks with package com.acme.shop.order"),
    ] {
        let with = browser.evaluate(&format!(
            "jvmprof.matchedSamples(jvmprof.view.tree, {{ matches: (fn) => fn.name.startsWith('{what}') }})"
        ));
        assert!(fewer < with.as_u64().unwrap() && with.as_u64() < all.as_u64(), "{with} of {all}");
        fewer = with.as_u64().unwrap();
        open_menu(&mut browser, name);
        choose(&mut browser, title);
        browser.wait_for(&format!("{TOTAL} === {with}"));
        let address = browser.evaluate("decodeURIComponent(location.hash)");
        assert!(address.as_str().unwrap().contains(&format!("edit=only:{what}*")), "{address}");
        browser.press("u");
        browser.wait_for(&format!("{TOTAL} === {all}"));
    }
    open_menu(&mut browser, name);
    choose(&mut browser, "Merge package com.acme.shop.order");
    browser.wait_for("location.hash.includes('edit=merge')");
    let is_left =
        "jvmprof.view.flame.drawnBoxes().some((g) => g.data.name.startsWith('com.acme.shop.order.'))";
    assert_eq!(browser.evaluate(is_left), false);
    assert_eq!(browser.evaluate(TOTAL), all, "its time is its callers'");
    assert_eq!(browser.complaints, [""; 0]);
}

/// How far the graph's pixels at a frame's corner are from the colour that it is said to have.
const PIXELS_OFF: &str = "((frame) => { const { flame } = jvmprof.view; const canvas = document.querySelector('.flame canvas'); \
const [area, place] = [canvas.getBoundingClientRect(), flame.place(frame)]; const other = document.createElement('canvas').getContext('2d'); \
other.fillStyle = flame.fill(frame); other.fillRect(0, 0, 1, 1); const expected = other.getImageData(0, 0, 1, 1).data; \
const drawn = canvas.getContext('2d').getImageData(Math.round(place.x - area.x) + 2, Math.round(place.y - area.y) + 3, 1, 1).data; \
return Math.max(...[0, 1, 2, 3].map((at) => Math.abs(drawn[at] - expected[at]))) })";

#[test]
#[ignore = "needs Chromium"]
fn colours_are_by_kind_package_or_how_methods_ran() {
    let folder = tempfile::tempdir().unwrap();
    let url = page(&folder);
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let hues = |browser: &mut Browser| {
        let hue = |name: &str| {
            format!("Math.round(/^hsl\\((-?\\d+)/.exec(jvmprof.view.flame.fill({}))[1] / 15)", frame(name))
        };
        let hues = ["OrderController.place", "PriceCalculator.discounts", "java.lang.Thread.run"].map(hue);
        browser.evaluate(&format!("[{}]", hues.join(", ")))
    };
    let legend = "[...document.querySelectorAll('.legend > *')].map((it) => it.innerText).join(', ')";
    let kinds = hues(&mut browser);
    assert!(kinds[0] == kinds[1] && kinds[0] != kinds[2], "application and JDK differ: {kinds}");
    assert!(browser.evaluate(legend).as_str().unwrap().starts_with("Application, JDK, Class"));
    browser.press("c");
    browser.wait_for("location.hash.includes('colour=package')");
    assert_ne!(hues(&mut browser), kinds);
    assert!(browser.evaluate(legend).as_str().unwrap().contains("com.acme.shop"));
    for (width, scheme) in WIDTHS.into_iter().flat_map(|width| [(width, "light"), (width, "dark")]) {
        browser.resize(width, 900);
        browser.prefer(scheme);
        for colour in ["kind", "package", "how"] {
            browser.open("about:blank");
            visit(&mut browser, &format!("{url}#colour={colour}"));
            for name in ["start_thread", "java.lang.Thread.run", "CoyoteAdapter.service"] {
                let off = browser.evaluate(&format!("{PIXELS_OFF}({})", frame(name)));
                assert!(
                    off.as_u64().is_some_and(|off| off <= 1),
                    "{name} by {colour} at {width} in {scheme}: {off}"
                );
            }
            picture(&mut browser, &format!("colour-{colour}-{width}-{scheme}"));
        }
    }
    assert!(browser.evaluate(legend).as_str().unwrap().starts_with("interpreted, C1, C2, inlined"));
    // The callers of a zoomed frame are faded, but for their names.
    let alphas = browser.evaluate(&format!(
        "(() => {{ const {{ prototype }} = CanvasRenderingContext2D; const {{ fillText }} = prototype; const alphas = []; \
         prototype.fillText = function (...of) {{ alphas.push(this.globalAlpha); return fillText.apply(this, of) }}; \
         jvmprof.view.flame.showZoomed({}, true); prototype.fillText = fillText; return alphas }})()",
        frame("CoyoteAdapter.service")
    ));
    let alphas = alphas.as_array().unwrap();
    assert!(alphas.len() > 5 && alphas.iter().all(|alpha| *alpha == 1), "{alphas:?}");
    assert_eq!(browser.complaints, [""; 0]);
}
