//! Which frames are shown, and callers and callees of one function.

use std::time::{Duration, SystemTime};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write;
use crate::{picture, visit};

const KINDS: &str =
    "[...new Set(jvmprof.view.flame.drawnBoxes().map((g) => g.data.fn.kind))].sort().join(' ')";

#[test]
#[ignore = "needs Chromium"]
fn the_java_view_leaves_out_all_other_code_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
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
    browser.wait_for("document.querySelector('.notices').innerText.includes('within the JDK')");
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

#[test]
#[ignore = "needs Chromium"]
fn callers_and_callees_of_a_chosen_function_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 3_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    browser.press("s");
    assert_eq!(browser.evaluate("document.querySelector('.sandwich').checkVisibility()"), false);
    browser.evaluate("jvmprof.view.chooseFunction(jvmprof.view.functions.find((fn) => fn.name.endsWith('HikariPool.getConnection')))");
    browser.press("s");
    browser.wait_for("document.querySelectorAll('.sandwich-part canvas').length === 2");
    browser.wait_for("document.querySelector('.sandwich-title').innerText.startsWith('com.zaxxer.hikari.pool.HikariPool.getConnection')");
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
