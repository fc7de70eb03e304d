//! Choice of the frames that are shown, and callers and callees of one function.

use std::time::{Duration, SystemTime};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::menu::{choose, frame, open_menu};
use crate::record::write;
use crate::widths::{WIDTHS, assert_all_is_reachable};
use crate::{picture, visit};

fn page(folder: &tempfile::TempDir) -> String {
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    write(&batch, &folder.path().join("x.html"))
}

const KINDS: &str =
    "[...new Set(jvmprof.view.flame.drawnBoxes().map((g) => g.data.fn.kind))].sort().join(' ')";

#[test]
#[ignore = "needs Chromium"]
fn the_java_view_leaves_out_all_other_code_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    assert_eq!(browser.evaluate(KINDS), "java kernel label marker native root stub");
    let total = browser.evaluate("jvmprof.view.tree.value");
    browser.press("j");
    browser.wait_for("location.hash.includes('frames=java')");
    let said = browser.evaluate("document.querySelector('.notices').innerText");
    assert!(said.as_str().unwrap().contains("counted to the nearest Java caller"), "{said}");
    assert_eq!(browser.evaluate("jvmprof.view.tree.value"), total, "no sample is left out");
    // What is native here is postgres, which has no Java caller.
    assert_eq!(browser.evaluate(KINDS), "java label marker native root");
    let native = "jvmprof.view.flame.drawnBoxes().map((g) => g.data.fn).filter((fn) => fn.kind === 'native').map((fn) => fn.name).join()";
    assert_eq!(browser.evaluate(native), "[no Java caller]");
    picture(&mut browser, "frames-java");
    browser.press("j");
    browser.wait_for("document.querySelector('.notices').textContent.includes('within the JDK')");
    browser.press("2");
    let table = browser
        .evaluate("[...document.querySelectorAll('.function-name')].map((it) => it.textContent).join(' ')");
    let table = table.as_str().unwrap();
    assert!(table.contains("java.util.*") && !table.contains("java.util.HashMap"), "{table}");
    picture(&mut browser, "frames-application");
    browser.press("j");
    browser.wait_for("!location.hash.includes('frames=')");
    assert_eq!(browser.complaints, [""; 0]);
}

const POOL: &str = "com.zaxxer.hikari.pool.HikariPool.getConnection";

/// True while the callers and callees of this function are shown.
fn has_title(name: &str) -> String {
    format!("document.querySelector('.sandwich-title').innerText.startsWith('{name}')")
}

/// Chooses a function as in the table, and shows its callers and callees.
fn show_callers_and_callees(browser: &mut Browser) {
    browser.evaluate(&format!(
        "jvmprof.view.chooseFunction(jvmprof.view.functions.find((fn) => fn.name === '{POOL}'))"
    ));
    browser.press("s");
    browser.wait_for("document.querySelectorAll('.sandwich-part canvas').length === 2");
}

#[test]
#[ignore = "needs Chromium"]
fn callers_and_callees_of_a_chosen_function_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    browser.press("s");
    assert_eq!(browser.evaluate("document.querySelector('.sandwich').checkVisibility()"), false);
    show_callers_and_callees(&mut browser);
    browser.wait_for(&has_title(POOL));
    let values =
        browser.evaluate("Object.values(jvmprof.view.sandwich.flames).map((flame) => flame.tree.value)");
    assert_eq!(values[0], values[1], "callers and callees have the same samples");
    let share = browser.evaluate("document.querySelector('.matched').textContent");
    let title = browser.evaluate("document.querySelector('.sandwich-title').innerText");
    let share = share.as_str().unwrap().trim_end_matches(" matched").to_owned();
    assert!(title.as_str().unwrap().ends_with(&share), "{title} and {share}: what a search finds");
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("sandwich="));
    picture(&mut browser, "frames-sandwich");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('.sandwich').checkVisibility()");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn callers_and_callees_stand_beside_the_table_where_there_is_no_graph() {
    let folder = tempfile::tempdir().unwrap();
    let url = page(&folder);
    let mut browser = Browser::start(1440, 900);
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#view=table"));
        show_callers_and_callees(&mut browser);
        let wide = "[...document.querySelectorAll('.sandwich-part canvas')].every((it) => it.checkVisibility() && it.clientWidth > 150)";
        browser.wait_for(wide);
        let is_seen = "document.querySelector('.sandwich').getBoundingClientRect().bottom < innerHeight + 1";
        browser.wait_for(is_seen);
        assert_eq!(browser.evaluate("document.querySelector('.top').checkVisibility()"), true);
        picture(&mut browser, &format!("frames-sandwich-table-{width}"));
        assert_all_is_reachable(&mut browser, width, "the table with callers and callees");
        browser.press("Escape");
        browser.wait_for("!document.querySelector('.sandwich').checkVisibility()");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

/// The graph of callees, and the heaviest of them that calls nothing.
const CALLEES: &str = "jvmprof.view.sandwich.flames.callees";
const CALLEE: &str =
    "jvmprof.view.sandwich.flames.callees.root.children.find((d) => !d.data.children.length)";

#[test]
#[ignore = "needs Chromium"]
fn keys_and_the_menu_act_on_callers_and_callees() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &page(&folder));
    browser.press("f");
    show_callers_and_callees(&mut browser);
    browser.wait_for("document.activeElement.ariaLabel.startsWith('Callers.')");
    browser.press("f");
    browser.wait_for("document.activeElement.ariaLabel.startsWith('Callees.')");
    let is_said =
        |name: &str| format!("document.querySelector('.status').textContent.startsWith('{name} ·')");
    browser.press("ArrowDown");
    browser.wait_for(&is_said(POOL));
    let callee = browser.evaluate(&format!("({CALLEES}.setCursor({CALLEE}), {CALLEES}.cursor.data.name)"));
    let callee = callee.as_str().unwrap();
    browser.wait_for(&is_said(callee));

    browser.press("m");
    browser.wait_for("document.activeElement.getAttribute('role') === 'menuitem'");
    assert_eq!(browser.evaluate("document.querySelector('.frame-menu').ariaLabel"), callee);
    picture(&mut browser, "frames-sandwich-menu");
    choose(&mut browser, "Hide");
    browser.wait_for("location.hash.includes('edit=hide')");
    browser.wait_for(&format!("!{CALLEES}.root.children.some((d) => d.data.name === '{callee}')"));
    browser.press("u");
    browser.wait_for(&format!("{CALLEES}.root.children.some((d) => d.data.name === '{callee}')"));

    // On to the callee's own, and by the mouse back to the caller's.
    browser.evaluate(&format!("({CALLEES}.holder.focus(), {CALLEES}.setCursor({CALLEE}), 0)"));
    browser.press("s");
    browser.wait_for(&has_title(callee));
    assert_eq!(browser.evaluate("jvmprof.view.state.sandwich"), callee);
    // The browser's way back leads to the function before, one by one, and forward again.
    browser.evaluate("history.back()");
    browser.wait_for(&has_title(POOL));
    browser.evaluate("history.forward()");
    browser.wait_for(&has_title(callee));
    browser.evaluate(&format!(
        "(() => {{ const {{ callers }} = jvmprof.view.sandwich.flames; const d = callers.root.children.find((d) => d.data.name === '{POOL}'); \
         const place = callers.place(d); callers.holder.dispatchEvent(new MouseEvent('contextmenu', {{ bubbles: true, cancelable: true, \
         clientX: place.x + place.width / 2, clientY: place.y + 9 }})) }})()"
    ));
    browser.wait_for("document.activeElement.getAttribute('role') === 'menuitem'");
    choose(&mut browser, "Zoom to it");
    let zoomed = "jvmprof.view.sandwich.flames.callers.zoomed?.data.name ?? ''";
    assert_eq!(browser.evaluate(zoomed), POOL);
    assert_eq!(browser.evaluate("jvmprof.view.state.zoom"), "", "the whole graph isn't zoomed");
    browser.point("document.querySelector('.brand')", false);
    browser.press("s");
    browser.wait_for("!document.querySelector('.sandwich').checkVisibility()");
    browser.wait_for("document.activeElement === jvmprof.view.flame.holder");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn the_address_keeps_zooms_among_callers_and_callees_of_a_function() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{}#sandwich={POOL}", page(&folder)));
    let zooms =
        "Object.values(jvmprof.view.sandwich.flames).map((flame) => flame.zoomed?.data.name ?? '').join()";
    assert_eq!(browser.evaluate(zooms), ",");
    let callee = browser.evaluate(&format!("({CALLEES}.zoomTo({CALLEE}), {CALLEES}.zoomed.data.name)"));
    let callee = callee.as_str().unwrap();
    assert_eq!(browser.evaluate("location.hash.includes('szoom=-')"), true);
    let caller = browser.evaluate(
        "(({ callers }) => (callers.zoomTo(callers.root.children[0]), callers.zoomed.data.name))(jvmprof.view.sandwich.flames)",
    );
    let caller = caller.as_str().unwrap();
    let both = format!("{caller},{callee}");
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(browser.evaluate(zooms), both);
    // Other colours draw it anew.
    browser.press("c");
    browser.wait_for("location.hash.includes('colour=')");
    assert_eq!(browser.evaluate(zooms), both);
    browser.evaluate(&format!("({CALLEES}.holder.focus(), 0)"));
    browser.press("Escape");
    browser.wait_for(&format!("{zooms} === '{caller},'"));
    assert_eq!(browser.evaluate("/szoom=[0-9a-f]{16}-(&|$)/.test(location.hash)"), true);
    // Another function's have none, until one goes back.
    browser.evaluate(&format!("({CALLEES}.setCursor({CALLEE}), 0)"));
    browser.press("s");
    browser.wait_for(&has_title(callee));
    assert_eq!(browser.evaluate("location.hash.includes('szoom=')"), false);
    assert_eq!(browser.evaluate(zooms), ",");
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{} && {zooms} === '{caller},'", has_title(POOL)));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_package_of_the_jdk_is_expanded_in_the_applications_view() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{}#frames=app", page(&folder)));
    let total = browser.evaluate("jvmprof.view.tree.value");
    let has_method = format!("Boolean({})", frame("java.util.HashMap.getNode"));
    assert_eq!(browser.evaluate(&has_method), false);
    open_menu(&mut browser, "java.util.*");
    choose(&mut browser, "Expand");
    browser.wait_for(&has_method);
    let has_package = format!("Boolean({})", frame("java.util.*"));
    assert_eq!(browser.evaluate(&has_package), false);
    assert_eq!(browser.evaluate("jvmprof.view.tree.value"), total, "no sample is left out");
    let others = format!("Boolean({})", frame("java.lang.*"));
    assert_eq!(browser.evaluate(&others), true, "other packages stay as they were");
    let chips = "document.querySelector('.edits').innerText";
    assert!(browser.evaluate(chips).as_str().unwrap().contains("java.util.* expanded"));
    picture(&mut browser, "frames-expanded");
    // In other views it does nothing, and has no chip that could be taken back.
    browser.press("j");
    browser.wait_for("document.querySelector('.edits').hidden");
    browser.press("u");
    browser.press("j");
    browser.press("j");
    browser.wait_for("location.hash.includes('frames=app')");
    assert_eq!(browser.evaluate(&has_method), true);
    assert!(browser.evaluate(chips).as_str().unwrap().contains("java.util.* expanded"));
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    visit(&mut browser, url.as_str().unwrap());
    assert_eq!(browser.evaluate(&has_method), true, "the address keeps it");
    browser.press("u");
    browser.wait_for(&has_package);
    assert_eq!(browser.evaluate(&has_method), false);
    assert_eq!(browser.complaints, [""; 0]);
}
