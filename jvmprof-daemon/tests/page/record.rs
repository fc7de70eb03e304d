//! The page of a recorded file.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::profile::html::write_html;
use jvmprof_daemon::profile::model::Batch;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::picture;

fn write(batch: &Batch, path: &Path) -> String {
    let mut file = BufWriter::new(File::create(path).unwrap());
    write_html(batch, "java -jar shop.jar (pid 4242)", &mut file).unwrap();
    format!("file://{}", path.display())
}

const LOOKED_AT: &str = "document.querySelectorAll('g.frame').length > 100";

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_file_is_drawn_searched_and_zoomed() {
    let folder = tempfile::tempdir().unwrap();
    let batch =
        window(SystemTime::now(), Duration::from_secs(10), 20_000, Shape::Program, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1280, 800);
    browser.open(&url);
    browser.wait_for(LOOKED_AT);
    for (width, height) in [(1280, 800), (1920, 1080)] {
        for scheme in ["light", "dark"] {
            browser.resize(width, height);
            browser.prefer(scheme);
            browser.open(&url);
            browser.wait_for(LOOKED_AT);
            picture(&mut browser, &format!("record-{width}-{scheme}"));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}
