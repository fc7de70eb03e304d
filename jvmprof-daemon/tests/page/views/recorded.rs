//! The views of a recorded page, and of the page of two recordings.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::diff_page::{compare, write_diff_page};
use jvmprof_daemon::profile::pprof::for_file;
use jvmprof_daemon::profile::recording_page::{PauseLane, PauseMark, RecordingTitle};

use super::{LOADED, METHOD, View, check_all, opened_parts};
use crate::browser::Browser;
use crate::data::{Numbers, Shape, busy_jvm, window};
use crate::events::sampled;
use crate::record::write_with_pauses;

/// Writes the page of CPU time and allocation, with kinds of threads and pauses, and returns its
/// address.
fn write_recording(path: &Path) -> String {
    let now = SystemTime::now();
    let cpu = busy_jvm(now, Duration::from_secs(20), 600, &mut Numbers::new(1));
    let mark = |begin_ms: f64, stopped_ms: f64| PauseMark {
        begin_ms,
        to_safepoint_ms: 10.0,
        stopped_ms,
        what: "G1CollectFull (System.gc())".to_owned(),
    };
    let lane = PauseLane {
        jvm: "Shop (4242)".to_owned(),
        followed_from_ms: 0.0,
        followed_ms: 20_000.0,
        followed_spans_ms: Vec::new(),
        pauses: 2,
        stopped_ms: 600.0,
        to_safepoint_ms: 20.0,
        marks: vec![mark(5_000.0, 500.0), mark(15_000.0, 100.0)],
    };
    write_with_pauses(&[cpu, sampled(EventType::Allocation, now)], &[lane], path)
}

/// Writes the page of two recordings and returns its address.
fn write_diff(path: &Path) -> String {
    let [before, after] = [1, 2].map(|seed| {
        let mut numbers = Numbers::new(seed);
        for_file(&window(SystemTime::now(), Duration::from_secs(10), 400, Shape::Program, &mut numbers))
    });
    let title = RecordingTitle { title: "a.pb.gz → b.pb.gz".to_owned(), host: String::new() };
    let mut file = File::create(path).unwrap();
    let starts_ms = [1_690_000_000_000, 1_700_000_000_000];
    write_diff_page(compare(&before, &after).unwrap(), &title, starts_ms, &mut file).unwrap();
    format!("file://{}", path.display())
}

#[test]
#[ignore = "needs Chromium"]
fn all_views_of_a_recorded_page_are_accessible_and_within_reach() {
    let folder = tempfile::tempdir().unwrap();
    let url = write_recording(&folder.path().join("x.html"));
    let views = [
        View::new("record-flame", "#view=flame").shown_when(
            "document.querySelector('.pauses').checkVisibility() && \
             document.querySelectorAll('header select.tool option').length === 4 && \
             document.querySelector('.thread-button').checkVisibility()",
        ),
        View::new("record-both", "#view=both"),
        View::new("record-part", "#view=table&edit=hide:java.lang.String.hashCode&part=1000-5000")
            .shown_when("document.querySelectorAll('.edits .chip-remove').length === 2"),
        View::new("record-java", "#view=both&frames=java&colour=package"),
        View::new("record-search", "#view=both&q=kind:kernel&colour=how")
            .shown_when("document.querySelector('.matched').textContent.endsWith('% matched')"),
        View::new("record-wrong-search", "#view=both&q=/(/")
            .shown_when("document.querySelector('.matched').textContent === 'no valid expression'"),
        View::new("record-kernel", "#view=flame&edit=activity:kernel"),
        View::new("record-threads", "#view=both&group=thread_kind")
            .shown_when("jvmprof.view.tree.children.some(({ name }) => name === 'gc')"),
        View::new("record-gc", "#view=flame&edit=thread:gc")
            .opened_when(LOADED)
            .shown_when("document.querySelector('.thread-button[aria-pressed=true]').checkVisibility()"),
        View::new("record-allocation", "#view=both&type=alloc_space")
            .opened_when(LOADED)
            .shown_when("document.querySelector('.figures').innerText.includes('allocated')"),
        View::new("record-sandwich", format!("#view=both&sandwich={METHOD}"))
            .shown_when("document.querySelectorAll('.sandwich-part canvas').length === 2"),
        View::new("record-table-sandwich", format!("#view=table&sandwich={METHOD}"))
            .shown_when("document.querySelectorAll('.sandwich-part canvas').length === 2"),
        View::new("record-nothing", "#view=both&edit=only:nobody")
            .opened_when("globalThis.jvmprof?.view?.tree?.value === 0"),
    ];
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &url, &views);
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn what_opens_in_a_recorded_page_is_accessible_and_within_reach() {
    let folder = tempfile::tempdir().unwrap();
    let url = write_recording(&folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &url, &opened_parts("record", "#view=both"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn all_views_of_two_recordings_are_accessible_and_within_reach() {
    let folder = tempfile::tempdir().unwrap();
    let url = write_diff(&folder.path().join("d.html"));
    let views = [
        View::new("diff-flame", "#view=flame"),
        View::new("diff-table", "#view=table&by=time"),
        View::new("diff-sandwich", format!("#view=both&sandwich={METHOD}"))
            .shown_when("document.querySelectorAll('.sandwich-part canvas').length === 2"),
        View::new("diff-opened", "#view=both")
            .after(
                "document.querySelectorAll('details.notice').forEach((it) => (it.open = true)), \
                 document.querySelector('.top tr.detail') ?? document.querySelector('button.opener').click()",
            )
            .shown_when(
                "Boolean(document.querySelector('details.notice[open]') && document.querySelector('.top tr.detail'))",
            ),
    ];
    let mut browser = Browser::start(1440, 900);
    check_all(&mut browser, &url, &views);
    assert_eq!(browser.complaints, [""; 0]);
}
