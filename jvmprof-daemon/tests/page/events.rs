//! A recording of CPU time and allocation.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, Line, Sample, SampleLabels, Series};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write_all;
use crate::{picture, visit};

/// A stack that stands for three events.
pub(crate) fn sampled(event: EventType, start: SystemTime) -> Batch {
    let frame = |kind, name: &str| {
        Arc::new(Frame { kind, address: None, mapping: None, lines: vec![Line::named(name)] })
    };
    let frames = [frame(FrameKind::Class, "byte[]"), frame(FrameKind::Java, "acme.Buffers.grow")];
    let sample = Sample {
        frames: frames.into(),
        labels: SampleLabels::default(),
        events: 3,
        count: 40,
        value: 1 << 20,
        times: Vec::new(),
    };
    Batch {
        event,
        start,
        duration: Duration::from_secs(10),
        period: 512 << 10,
        series: vec![Series {
            labels: [("pid".to_owned(), "4242".to_owned())].into(),
            samples: vec![sample],
        }],
    }
}

#[test]
#[ignore = "needs Chromium"]
fn what_is_counted_is_chosen_among_the_types_of_all_events() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let cpu = window(now, Duration::from_secs(10), 2_000, Shape::Program, &mut Numbers::new(1));
    let url = write_all(&[cpu, sampled(EventType::Allocation, now)], &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let figures = "(document.querySelector('.figures')?.innerText ?? '')";
    browser.wait_for(&format!("{figures}.includes('2,185 samples')"));
    let options = browser.evaluate(
        "[...document.querySelector('header select.tool').options].map((it) => it.value).join(' ')",
    );
    assert_eq!(options, "samples cpu alloc_space alloc_objects");
    let choose = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!("(() => {{ const it = document.querySelector('header select.tool'); it.value = '{name}'; it.dispatchEvent(new Event('change')) }})()"));
    };
    choose(&mut browser, "cpu");
    browser.wait_for(&format!("{figures}.includes('22.1 s of CPU time')"));
    choose(&mut browser, "alloc_space");
    browser.wait_for(&format!("{figures}.includes('1.00 MiB allocated')"));
    browser
        .wait_for("jvmprof.view.flame.root.descendants().some((d) => d.data.name === 'acme.Buffers.grow')");
    picture(&mut browser, "events-allocation");
    choose(&mut browser, "alloc_objects");
    browser.wait_for(&format!("{figures}.includes('40 objects')"));
    let url = browser.evaluate("location.href");
    browser.open("about:blank");
    browser.open(url.as_str().unwrap());
    browser.wait_for(&format!("{figures}.includes('40 objects')"));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn each_type_has_the_name_that_the_collectors_page_has_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let events =
        [EventType::Wall, EventType::OffCpu, EventType::Lock, EventType::LockHolder, EventType::Pause];
    let batches = events.map(|event| sampled(event, now));
    let url = write_all(&batches, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    browser.open(&url);
    browser.wait_for("document.querySelectorAll('header select.tool option').length === 8");
    let names = "[...document.querySelector('header select.tool').options].map((it) => it.text).join(', ')";
    assert_eq!(
        browser.evaluate(names),
        "Wall-clock time, Waiting time, Waiting for locks, Contentions of locks, \
         Delay by lock holder, Caused contentions, \
         Time of pauses, Pauses of JVMs"
    );
    assert_eq!(browser.complaints, [""; 0]);
}
