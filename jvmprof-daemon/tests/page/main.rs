//! The pages in a real browser. Needs Chromium, which is why these tests are ignored unless asked
//! for: `cargo test -p jvmprof-daemon --test page -- --include-ignored`.
//!
//! With `JVMPROF_SCREENSHOTS=FOLDER` they leave pictures there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that can't go on fails")]

mod browser;
mod collector;
mod data;
mod record;
mod server;

use std::path::PathBuf;

use browser::Browser;

/// Takes a picture if asked to.
fn picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("JVMPROF_SCREENSHOTS") {
        browser.screenshot(&PathBuf::from(folder).join(format!("{name}.png")));
    }
}
