//! The pages in a real browser. Needs Chromium, which is why these tests are ignored unless asked
//! for: `cargo test -p jvmprof-daemon --test page -- --include-ignored`.
//!
//! With `JVMPROF_SCREENSHOTS=FOLDER` they leave pictures there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that can't go on fails")]

mod activities;
mod browser;
mod collector;
mod compare;
mod data;
mod events;
mod frames;
mod menu;
mod record;
mod server;
mod table;
mod times;
mod views;
mod widths;
mod zoom;

use std::path::PathBuf;

use browser::Browser;

/// An expression that is true once the flame graph is there.
const DRAWN: &str =
    "(globalThis.jvmprof?.view?.flame.root ? jvmprof.view.flame.drawnBoxes().length : 0) > 50";
/// An expression that is true while nothing is being fetched.
const IDLE: &str = "!document.body.matches('.loading, .fetching')";

/// Opens a page that has a flame graph, and waits for it.
fn visit(browser: &mut Browser, url: &str) {
    browser.open(url);
    browser.wait_for(DRAWN);
    browser.wait_for(IDLE);
}

/// Counts the clicks on the page from now on, in its `clicks`.
fn count_clicks(browser: &mut Browser) {
    browser
        .evaluate("(globalThis.clicks = 0, addEventListener('click', () => clicks++, { capture: true }), 0)");
}

/// The folder for pictures, if any are asked for.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("JVMPROF_SCREENSHOTS").map(PathBuf::from)
}

/// Takes a picture if asked to.
fn picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = pictures() {
        browser.screenshot(&folder.join(format!("{name}.png")));
    }
}
