//! Recordings of events beside CPU time: allocation, waits.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::model::{Batch, Frame, FrameKind, Line, Sample, SampleLabels, Series};

use crate::browser::Browser;
use crate::data::{Numbers, Shape, window};
use crate::record::write_all;
use crate::server::{Server, open, push};
use crate::widths::{assert_all_is_reachable, windows};
use crate::{IDLE, picture, visit};

fn frame(kind: FrameKind, name: &str) -> Arc<Frame> {
    Arc::new(Frame { kind, address: None, mapping: None, lines: vec![Line::named(name)] })
}

/// A stack that stands for three events.
pub(crate) fn sampled(event: EventType, start: SystemTime) -> Batch {
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

/// The time of two threads of a pool, of which one waits for a task and the other one for a lock.
fn waits(event: EventType, start: SystemTime) -> Batch {
    let condition = "java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject";
    let get_task = "java.util.concurrent.ThreadPoolExecutor.getTask";
    let lock = "java.util.concurrent.locks.ReentrantLock$NonfairSync";
    let samples = [
        (format!("[wait: park, idle: {condition}]"), get_task, 90),
        (format!("[wait: park: {lock}]"), "com.acme.shop.Order.total", 10),
    ];
    let samples = samples.map(|(leaf, caller, seconds)| {
        let run = frame(FrameKind::Java, "java.lang.Thread.run");
        let frames = [frame(FrameKind::Marker, &leaf), frame(FrameKind::Java, caller), run];
        Sample::of_events(frames.into(), seconds, seconds * 1_000_000_000)
    });
    let series = Series { samples: samples.into(), ..sampled(event, start).series.remove(0) };
    Batch { series: vec![series], ..sampled(event, start) }
}

const SECONDS: &str = "jvmprof.view.tree.value / 1e9";
const CHIPS: &str =
    "[...document.querySelectorAll('.edits .chip-text')].map((it) => it.textContent).join(', ')";

#[test]
#[ignore = "needs Chromium"]
fn idle_waits_are_hidden_until_they_are_asked_for_which_the_address_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let before = SystemTime::now() - Duration::from_secs(60);
    let batches = [EventType::OffCpu, EventType::Wall].map(|event| waits(event, before));
    let recorded = write_all(&batches, &folder.path().join("x.html"));
    let store = open(&folder.path().join("store"));
    push(&store, &batches[0]);
    let server = Server::start(store, ReadLimits::default());
    let mut browser = Browser::start(1440, 900);
    let has = |seconds: u32| format!("globalThis.jvmprof?.view?.tree && {SECONDS} === {seconds} && {IDLE}");
    let has_idle = "jvmprof.view.flame.root.descendants().some((d) => d.data.name.endsWith('.getTask'))";
    let chip = "document.querySelector('.edits [data-of=idle]')";
    for (page, url) in [
        ("off_cpu", recorded.clone()),
        ("wall", format!("{recorded}#type=wall")),
        ("collector", format!("{}/?type=off_cpu:off_cpu", server.url)),
    ] {
        browser.open("about:blank");
        browser.open(&url);
        browser.wait_for(&has(10));
        assert_eq!(browser.evaluate(CHIPS), "Without 90.0 s idle (90.0 %)", "{page}");
        assert_eq!(browser.evaluate(has_idle), false, "{page}");
        browser.point(chip, true);
        browser.wait_for(&has(100));
        assert_eq!(browser.evaluate(CHIPS), "With 90.0 s idle (90.0 %)", "{page}");
        assert_eq!(browser.evaluate(has_idle), true, "{page}");
        let url_with_idle = browser.evaluate("location.href");
        let url_with_idle = url_with_idle.as_str().unwrap();
        assert!(url_with_idle.contains("edit=idle%3Ashown"), "{page}: {url_with_idle}");
        browser.open("about:blank");
        browser.open(url_with_idle);
        browser.wait_for(&has(100));
        browser.press("u");
        browser.wait_for(&has(10));
        browser.evaluate("history.back()");
        browser.wait_for(&has(100));
        // By keys, again and again.
        browser.evaluate(&format!("({chip}).focus()"));
        for seconds in [10, 100, 10] {
            browser.press("Enter");
            browser.wait_for(&has(seconds));
            assert_eq!(browser.evaluate(&format!("document.activeElement === {chip}")), true, "{page}");
        }
        for (width, scheme) in windows() {
            browser.resize(width, 900);
            browser.prefer(scheme);
            assert_all_is_reachable(&mut browser, width, page);
            picture(&mut browser, &format!("idle-{page}-{width}-{scheme}"));
        }
        browser.resize(1440, 900);
    }
    assert_eq!(browser.complaints, [""; 0]);
}
