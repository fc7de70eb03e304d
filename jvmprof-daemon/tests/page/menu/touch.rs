//! Fingers on the flame graph: a tap, and one that rests.

use super::{frame, page};
use crate::browser::Browser;
use crate::record::at;
use crate::{picture, visit};

const TAPPED: &str = "document.querySelector('.tip.tapped:not([hidden])')";
const MENU: &str = "document.querySelector('.frame-menu')";

fn button(name: &str) -> String {
    format!("[...{TAPPED}.querySelectorAll('button')].find((it) => it.innerText === '{name}')")
}

#[test]
#[ignore = "needs Chromium"]
fn a_tap_shows_a_frames_details_with_zoom_and_menu_and_a_finger_that_rests_opens_the_menu() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(420, 900);
    browser.emulate_touch();
    visit(&mut browser, &page(&folder));
    let to_graph = "document.querySelector('.flame-scroller').scrollIntoView({ block: 'center' })";
    browser.evaluate(to_graph);
    let [outer, inner] = ["start_thread", "thread_native_entry"];
    let is_tapped =
        |name: &str| format!("{TAPPED}?.querySelector('.tip-name').textContent.endsWith('{name}') ?? false");
    // The details stand below the frame.
    for name in [inner, outer] {
        browser.tap(&at(&frame(name)));
        browser.wait_for(&is_tapped(name));
        assert_eq!(browser.evaluate("jvmprof.view.state.zoom"), "", "a tap alone doesn't zoom");
    }
    let details = browser.evaluate(&format!("{TAPPED}.innerText"));
    for part in [outer, "Native", "Samples", "Self"] {
        assert!(details.as_str().unwrap().contains(part), "{part} in {details}");
    }
    let is_whole = format!(
        "(({{ left, right, bottom }}) => left >= 0 && right <= innerWidth && bottom <= innerHeight)({TAPPED}.getBoundingClientRect())"
    );
    assert_eq!(browser.evaluate(&is_whole), true);
    picture(&mut browser, "touch-details");

    browser.tap(&button("Zoom to it"));
    browser.wait_for(&format!("jvmprof.view.zoomedNode?.fn.name === '{outer}' && !{TAPPED}"));
    let zoom = browser.evaluate("jvmprof.view.state.zoom");
    browser.tap(&at(&frame(inner)));
    browser.wait_for(&is_tapped(inner));
    browser.tap(&button("Menu"));
    browser.wait_for(&format!("{MENU}?.ariaLabel === '{inner}' && !{TAPPED}"));
    picture(&mut browser, "touch-menu");
    browser.evaluate("scrollTo(0, 0)");
    browser.tap("document.querySelector('.brand')");
    browser.wait_for(&format!("!{MENU}"));

    browser.evaluate(to_graph);
    browser.rest(&at(&frame(inner)), &format!("{MENU}?.ariaLabel === '{inner}'"));
    assert_eq!(browser.evaluate(&format!("Boolean({TAPPED})")), false, "it isn't a tap as well");
    assert_eq!(browser.evaluate("jvmprof.view.state.zoom"), zoom);
    assert_eq!(browser.complaints, [""; 0]);
}
