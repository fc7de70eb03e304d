//! The page that the collector serves.

use std::time::Duration;

use jvmprof_daemon::export::collector::ReadLimits;

use crate::browser::Browser;
use crate::data::Shape;
use crate::picture;
use crate::server::{Server, fill, open};

const DRAWN: &str = "document.querySelectorAll('g.frame').length > 50";
const IDLE: &str = "!document.body.classList.contains('loading')";

#[test]
#[ignore = "needs Chromium"]
fn the_page_shows_what_was_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill(&store, Duration::from_secs(600), Shape::Program, 300);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1280, 800);
    for (width, height) in [(1280, 800), (1920, 1080)] {
        for scheme in ["light", "dark"] {
            browser.resize(width, height);
            browser.prefer(scheme);
            browser.open(&server.url);
            browser.wait_for(DRAWN);
            browser.wait_for(IDLE);
            picture(&mut browser, &format!("collector-{width}-{scheme}"));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}
