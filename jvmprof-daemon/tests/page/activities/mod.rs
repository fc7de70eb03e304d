//! Activities of a JVM's time: the bar above the graph, on both pages.

mod timeline;

use std::time::{Duration, SystemTime};

use jvmprof_daemon::event_type::EventType;
use jvmprof_daemon::export::collector::ReadLimits;
use jvmprof_daemon::profile::model::Batch;

use crate::browser::Browser;
use crate::data::{Numbers, Shape, busy_jvm, window};
use crate::record::{write, write_all};
use crate::server::{Server, fill_busy, open, push};
use crate::widths::{WIDTHS, assert_all_is_reachable, windows};
use crate::{IDLE, picture, visit};

const TOTAL: &str = "jvmprof.view.tree.value";
const BUTTONS: &str = "[...document.querySelectorAll('.activity-button')]";
const ALL: [&str; 9] = [
    "Application",
    "GC",
    "Compilers",
    "VM operations",
    "Class loading",
    "Kernel for Java",
    "Native code",
    "Unknown",
    "Other processes",
];

fn button(name: &str) -> String {
    format!("{BUTTONS}.find((it) => it.innerText.startsWith('{name}'))")
}

/// The percents of the buttons, added.
const SHARES: &str = "[...document.querySelectorAll('.activity-button b')].reduce((sum, it) => sum + parseFloat(it.textContent), 0)";

/// The same of the kinds of threads.
const THREAD_SHARES: &str = "[...document.querySelectorAll('.thread-button b')].reduce((sum, it) => sum + parseFloat(it.textContent), 0)";

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_page_says_where_the_time_goes_and_shows_a_part_alone() {
    let folder = tempfile::tempdir().unwrap();
    let batch = busy_jvm(SystemTime::now(), Duration::from_secs(20), 4_000, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let names = browser.evaluate(&format!("{BUTTONS}.map((it) => it.children[1].textContent)"));
    assert_eq!(names, serde_json::json!(ALL));
    assert!((browser.evaluate(SHARES).as_f64().unwrap() - 100.0).abs() < 0.5);
    let others = format!("parseFloat({}.querySelector('b').textContent)", button("Other processes"));
    let [threads, others] = [THREAD_SHARES, others.as_str()].map(|it| browser.evaluate(it).as_f64().unwrap());
    assert!(others > 1.0, "{others}");
    assert!((threads + others - 100.0).abs() < 0.5, "both rows are shares of the same: {threads}, {others}");

    browser.point(&button("GC"), true);
    browser.wait_for(&format!("{TOTAL} === 720"));
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("edit=activity%3Agc"));
    assert_eq!(browser.evaluate(&format!("({}).getAttribute('aria-pressed')", button("GC"))), "true");
    assert!((browser.evaluate(SHARES).as_f64().unwrap() - 100.0).abs() < 0.5, "shares stay those of all");
    // By keys, and with Shift a second one.
    browser.press("t");
    assert_eq!(browser.evaluate("document.activeElement.innerText.startsWith('Application')"), true);
    browser.evaluate(&format!(
        "({}).dispatchEvent(new MouseEvent('click', {{ bubbles: true, shiftKey: true }}))",
        button("Compilers")
    ));
    browser.wait_for(&format!("{TOTAL} === 1080"));
    let url_of_both = browser.evaluate("location.href");
    browser.open("about:blank");
    browser.open(url_of_both.as_str().unwrap());
    browser.wait_for(&format!("globalThis.jvmprof?.view?.tree && {TOTAL} === 1080"));
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === 720"));
    browser.press("u");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    browser.evaluate("document.querySelector('.activity-part').click()");
    browser.wait_for(&format!("{TOTAL} < {all}"));
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{TOTAL} === {all}"));
    for (width, scheme) in windows() {
        browser.resize(width, 900);
        browser.prefer(scheme);
        for (name, hash) in [("all", ""), ("gc", "#edit=activity:gc")] {
            browser.open("about:blank");
            browser.open(&format!("{url}{hash}"));
            browser.wait_for(&format!("{BUTTONS}.length > 5"));
            assert_all_is_reachable(&mut browser, width, name);
            picture(&mut browser, &format!("activities-{name}-{width}-{scheme}"));
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
}

fn thread_button(kind: &str) -> String {
    format!("document.querySelector('[data-edit=\"thread:{kind}\"]')")
}

/// Chooses what stacks are grouped by.
fn group_by(browser: &mut Browser, group: &str) {
    browser.evaluate(&format!(
        "(() => {{ const by = document.querySelector('[aria-label=\"Group by\"]'); by.value = '{group}'; by.dispatchEvent(new Event('change')) }})()"
    ));
}

#[test]
#[ignore = "needs Chromium"]
fn a_kind_of_threads_is_shown_alone_and_is_a_group_of_the_collector() {
    let folder = tempfile::tempdir().unwrap();
    let batch = busy_jvm(SystemTime::now(), Duration::from_secs(20), 4_000, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let kinds = "[...document.querySelectorAll('.thread-button')].map((it) => it.children[0].textContent)";
    let expected = ["java", "gc", "compiler", "vm", "native", "unknown"];
    assert_eq!(browser.evaluate(kinds), serde_json::json!(expected));
    browser.point(&thread_button("gc"), true);
    browser.wait_for(&format!("{TOTAL} === 720"));
    let load =
        "jvmprof.view.heatmap.stacks.flatMap(({ samples }) => [...samples]).reduce((sum, it) => sum + it, 0)";
    assert_eq!(browser.evaluate(load), 720, "the load is that of these threads");
    assert!(browser.evaluate("location.hash").as_str().unwrap().contains("edit=thread%3Agc"));
    assert_eq!(browser.evaluate(&format!("({}).getAttribute('aria-pressed')", thread_button("gc"))), "true");
    browser.evaluate(&format!(
        "({}).dispatchEvent(new MouseEvent('click', {{ bubbles: true, shiftKey: true }}))",
        thread_button("compiler")
    ));
    browser.wait_for(&format!("{TOTAL} === 1080"));
    // Of what these threads did, a part alone.
    browser.point(&button("Compilers"), true);
    browser.wait_for(&format!("{TOTAL} === 360"));
    for samples in [1080, 720] {
        browser.press("u");
        browser.wait_for(&format!("{TOTAL} === {samples}"));
    }
    picture(&mut browser, "threads-gc");

    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    fill_busy(&store, Duration::from_secs(120), 60);
    let server = Server::start(store, ReadLimits::default());
    visit(&mut browser, &format!("{}/?match=comm=java", server.url));
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    group_by(&mut browser, "thread_kind");
    browser.wait_for("location.search.includes('group=thread_kind')");
    browser.wait_for(IDLE);
    let groups = "jvmprof.view.tree.children.map(({ name }) => name).sort().join(' ')";
    assert_eq!(browser.evaluate(groups), "(no thread_kind) compiler gc java native vm");
    assert_eq!(browser.evaluate(TOTAL), all);
    let of_group = browser.evaluate("jvmprof.view.tree.children.find(({ name }) => name === 'vm').value");
    browser.point(&thread_button("vm"), true);
    browser.wait_for(&format!("{TOTAL} === {of_group}"));
    picture(&mut browser, "threads-groups");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_page_groups_by_kind_of_thread() {
    let folder = tempfile::tempdir().unwrap();
    let batch = busy_jvm(SystemTime::now(), Duration::from_secs(20), 4_000, &mut Numbers::new(1));
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL).as_u64().unwrap();
    let groups = "jvmprof.view.tree.children.map(({ name }) => name).sort().join(' ')";
    let processes = browser.evaluate(groups);
    let title = "document.querySelector('.activity-title').textContent";
    assert_eq!(browser.evaluate(title), "Where the JVMs' time goes");
    group_by(&mut browser, "thread_kind");
    assert_eq!(browser.evaluate("location.hash.includes('group=thread_kind')"), true);
    assert_eq!(browser.evaluate(groups), "(no thread_kind) compiler gc java native vm");
    assert_eq!(browser.evaluate(TOTAL), all);
    assert_eq!(browser.evaluate(title), "Where the threads' time goes");
    picture(&mut browser, "threads-groups-record");
    // A part of the recording, by the times of its samples.
    let of_group = "jvmprof.view.tree.children.find(({ name }) => name === 'gc').value";
    assert_eq!(browser.evaluate(of_group), 720);
    browser.evaluate("(jvmprof.view.change({ part: [0, 10_000] }), 0)");
    let of_part = browser.evaluate(of_group).as_u64().unwrap();
    assert!((1..720).contains(&of_part), "{of_part}");
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{of_group} === 720"));
    browser.evaluate("history.back()");
    browser.wait_for(&format!("{groups} === {processes}"));
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#group=thread_kind"));
        assert_all_is_reachable(&mut browser, width, "groups by kind of thread");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

/// The groups that can be chosen; behind those that can't stands a dash.
const GROUPS: &str = "[...document.querySelector('[aria-label=\"Group by\"]').options]\
.map((it) => it.text + (it.disabled ? ' -' : '')).join(', ')";

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_page_groups_by_program_and_if_chosen_by_process() {
    let folder = tempfile::tempdir().unwrap();
    let (now, length) = (SystemTime::now(), Duration::from_secs(20));
    let mut batch = busy_jvm(now, length, 2_000, &mut Numbers::new(1));
    let mut second = busy_jvm(now, length, 1_000, &mut Numbers::new(2)).series.swap_remove(0);
    second.labels.insert("pid".to_owned(), "4343".to_owned());
    batch.series.push(second);
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let all = browser.evaluate(TOTAL);
    let groups = "jvmprof.view.tree.children.map(({ name }) => name).sort().join(', ')";
    assert_eq!(browser.evaluate(groups), "java, postgres");
    assert_eq!(browser.evaluate(GROUPS), "program, process, kind of thread");
    group_by(&mut browser, "process");
    let processes = "java (4242), java (4343), postgres (977)";
    assert_eq!(browser.evaluate(groups), processes);
    assert_eq!(browser.evaluate("location.hash.includes('group=process')"), true);
    assert_eq!(browser.evaluate(TOTAL), all);
    picture(&mut browser, "processes-groups-record");
    // Of a part of the recording, too.
    let of_second = "jvmprof.view.tree.children.find(({ name }) => name === 'java (4343)').value";
    let whole = browser.evaluate(of_second).as_u64().unwrap();
    browser.evaluate("(jvmprof.view.change({ part: [0, 10_000] }), 0)");
    let of_part = browser.evaluate(of_second).as_u64().unwrap();
    assert!((1..whole).contains(&of_part), "{of_part} of {whole}");
    for width in WIDTHS {
        browser.resize(width, 900);
        browser.open("about:blank");
        visit(&mut browser, &format!("{url}#group=process"));
        assert_eq!(browser.evaluate(groups), processes);
        assert_all_is_reachable(&mut browser, width, "groups by process");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn a_recorded_page_says_that_there_are_too_many_processes_for_groups() {
    let folder = tempfile::tempdir().unwrap();
    let length = Duration::from_secs(10);
    let mut batch = window(SystemTime::now(), length, 100, Shape::Program, &mut Numbers::new(1));
    let first = batch.series.swap_remove(0);
    batch.series = (0..51_u32)
        .map(|pid| {
            let mut series = first.clone();
            series.labels.insert("pid".to_owned(), pid.to_string());
            series
        })
        .collect();
    let url = write(&batch, &folder.path().join("x.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &format!("{url}#group=process"));
    assert_eq!(browser.evaluate(GROUPS), "nothing, process (51 are too many) -, kind of thread");
    let has_groups = "jvmprof.view.functions.some(({ kind }) => kind === 'label')";
    assert_eq!(browser.evaluate(has_groups), false);
    let title = "document.querySelector('.activity-title').textContent";
    assert_eq!(browser.evaluate(title), "Where the JVMs' time goes");
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
#[ignore = "needs Chromium"]
fn without_a_jvm_or_cpu_time_there_is_no_bar() {
    let folder = tempfile::tempdir().unwrap();
    let mut native =
        window(SystemTime::now(), Duration::from_secs(10), 2_000, Shape::Program, &mut Numbers::new(1));
    native.series[0].labels.remove("runtime");
    for sample in &mut native.series[0].samples {
        sample.labels = jvmprof_daemon::profile::model::SampleLabels::default();
    }
    let url = write(&native, &folder.path().join("native.html"));
    let mut browser = Browser::start(1440, 900);
    visit(&mut browser, &url);
    let is_shown = "document.querySelector('.activity-bars').checkVisibility()";
    assert_eq!(browser.evaluate(is_shown), false);
    let cpu = busy_jvm(SystemTime::now(), Duration::from_secs(10), 2_000, &mut Numbers::new(1));
    let mut waits = cpu.clone();
    waits.event = EventType::OffCpu;
    let url = write_all(&[cpu, waits], &folder.path().join("both.html"));
    visit(&mut browser, &url);
    assert_eq!(browser.evaluate(is_shown), true);
    browser.open("about:blank");
    visit(&mut browser, &format!("{url}#type=off_cpu"));
    assert_eq!(browser.evaluate(is_shown), false);
    assert_eq!(browser.complaints, [""; 0]);
}

/// Waits of the threads of a JVM, of which those of its collector take 720 periods of CPU time.
fn waits(event: EventType, start: SystemTime) -> Batch {
    let mut batch = busy_jvm(start, Duration::from_secs(10), 4_000, &mut Numbers::new(1));
    batch.event = event;
    for sample in batch.series.iter_mut().flat_map(|series| &mut series.samples) {
        sample.times.clear();
    }
    batch
}

#[test]
#[ignore = "needs Chromium"]
fn waits_are_shown_of_a_kind_of_threads_alone_on_both_pages() {
    let folder = tempfile::tempdir().unwrap();
    let before = SystemTime::now() - Duration::from_secs(60);
    let batches = [EventType::OffCpu, EventType::Wall, EventType::Lock].map(|event| waits(event, before));
    let recorded = write_all(&batches, &folder.path().join("x.html"));
    let store = open(&folder.path().join("store"));
    push(&store, &batches[0]);
    let server = Server::start(store, ReadLimits::default());
    let collected = format!("{}/?type=off_cpu:off_cpu&match=comm=java", server.url);
    let mut browser = Browser::start(1440, 900);
    let kinds = "[...document.querySelectorAll('.thread-button')].map((it) => it.children[0].textContent)";
    let of_gc = 720 * 10_101_010_u64;
    for (page, url) in [
        ("off_cpu", format!("{recorded}#type=off_cpu&edit=activity:gc")),
        ("wall", format!("{recorded}#type=wall&edit=activity:gc")),
        ("delay", format!("{recorded}#type=delay&edit=activity:gc")),
        ("collector", format!("{collected}&edit=activity:gc")),
    ] {
        browser.open("about:blank");
        visit(&mut browser, &url);
        let all = browser.evaluate(TOTAL).as_u64().unwrap();
        assert!(all > 2 * of_gc, "{page}: what it was taken in is CPU time's alone");
        assert_eq!(browser.evaluate("document.querySelector('.edits').hidden"), true, "{page}");
        let expected = ["java", "gc", "compiler", "vm", "native", "unknown"];
        assert_eq!(browser.evaluate(kinds), serde_json::json!(expected), "{page}");
        let has_bar = "document.querySelector('.activity-bars').checkVisibility()";
        assert_eq!(browser.evaluate(has_bar), false, "{page}");
        browser.press("t");
        assert_eq!(browser.evaluate("document.activeElement.dataset.edit"), "thread:java", "{page}");
        browser.point(&thread_button("gc"), true);
        browser.wait_for(&format!("{TOTAL} === {of_gc}"));
        let chip = "document.querySelector('.edits .chip-text').textContent";
        assert_eq!(browser.evaluate(chip), "Only threads: gc", "{page}");
        let url_of_gc = browser.evaluate("location.href");
        browser.open("about:blank");
        browser.open(url_of_gc.as_str().unwrap());
        browser.wait_for(&format!("globalThis.jvmprof?.view?.tree && {TOTAL} === {of_gc} && {IDLE}"));
        browser.press("u");
        browser.wait_for(&format!("{TOTAL} === {all}"));
        for (width, scheme) in windows() {
            browser.resize(width, 900);
            browser.prefer(scheme);
            assert_all_is_reachable(&mut browser, width, page);
            picture(&mut browser, &format!("threads-{page}-{width}-{scheme}"));
        }
        browser.resize(1440, 900);
    }
    browser.point(&thread_button("gc"), true);
    let note = "document.querySelector('.choices > .notice').innerText";
    browser.wait_for(&format!("{note}.includes('that of all threads')"));
    browser.open("about:blank");
    visit(&mut browser, &format!("{recorded}#type=wall&group=thread_kind"));
    let groups = "jvmprof.view.tree.children.map(({ name }) => name).sort().join(' ')";
    assert_eq!(browser.evaluate(groups), "(no thread_kind) compiler gc java native vm");
    assert_eq!(browser.complaints, [""; 0]);
}
