//! One folder for a daemon that writes, a collector and `jvmprof ui`; a pprof file in the browser's
//! page. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{BUSY, collector, daemon, field, free_address, stored};
use crate::support::{KilledChild, Workload, compile, jvmprof, record_json, scratch, signal};

/// `jvmprof ui` of something, and the address that it prints.
fn ui(source: &str) -> (KilledChild, String) {
    let child = jvmprof().args(["ui", source]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = KilledChild(child.unwrap());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("http://127.0.0.1:"), "{line:?}");
    (child, line.trim().to_owned())
}

fn get(url: &str) -> String {
    let output = Command::new("curl").args(["-sS", url]).output().expect("the tests need curl");
    assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Samples that a page's data has in the time of its address, or of all time.
fn samples_shown(address: &str) -> u64 {
    let (base, query) = address.split_once('?').unwrap_or((address, ""));
    let base = base.trim_end_matches('/');
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let query =
        if query.is_empty() { format!("from={}&to={now}", now - 3_600_000) } else { query.to_owned() };
    let text = get(&format!("{base}/api/labels?{query}"));
    let labels: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let names =
        labels.as_array().unwrap_or_else(|| panic!("{text}")).iter().find(|it| it["name"] == "__name__");
    let values = names.map(|label| label["values"].as_array().unwrap().iter());
    values.into_iter().flatten().map(|value| value["samples"].as_u64().unwrap()).sum()
}

fn await_true(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn writing_daemon(store: &Path, log: &Path) -> KilledChild {
    let child = jvmprof()
        .args(["--log-level", "info", "daemon", "--push-interval", "1s", "--local-store-directory"])
        .arg(store)
        .stderr(fs::File::create(log).unwrap())
        .env("NO_COLOR", "1")
        .spawn();
    KilledChild(child.unwrap())
}

#[test]
fn a_daemons_folder_is_shown_by_a_collector_and_by_ui_while_it_is_written() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (store, log) = (dir.path().join("store"), dir.path().join("log"));
    // Whoever comes first: the collector that only shows keeps the daemon from nothing.
    let (first, first_address) = collector(&store);
    let mut writing = writing_daemon(&store, &log);
    await_true("the collector shows what the daemon writes", || samples_shown(&first_address) > 100);
    drop(first);
    let (_second, second_address) = collector(&store);
    let (_ui, ui_address) = ui(store.to_str().unwrap());
    let before = samples_shown(&second_address);
    assert!(before > 100 && samples_shown(&ui_address) >= before, "{before}");
    await_true("the collector picks up what comes", || samples_shown(&second_address) > before + 100);
    await_true("so does the page of ui", || samples_shown(&ui_address) > before + 100);

    // A push there is refused and stays with whoever pushed it.
    let is_refused = |log: &str| log.contains("its profiles are shown here and no others are taken");
    let (pushed, success) = daemon(&["--remote-store-address", &second_address], is_refused);
    assert!(success, "{pushed}");
    assert_eq!((field(&pushed, "delivered"), field(&pushed, "lost")), (0, 0), "{pushed}");
    assert_eq!(field(&pushed, "spooled"), field(&pushed, "samples"), "{pushed}");

    signal(writing.id(), "TERM");
    assert!(writing.wait().unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(stored(&store), field(&log, "delivered"), "{log}");
}

#[test]
fn a_second_daemon_on_the_same_folder_is_refused_by_name() {
    let dir = scratch();
    let store = dir.path().join("store");
    let first = writing_daemon(&store, &dir.path().join("log"));
    await_true("the first daemon has the folder", || {
        store.join("series").is_dir() && store.join("lock").is_file()
    });
    let mut second = jvmprof();
    let second = second.args(["daemon", "--local-store-directory"]).arg(&store).output().unwrap();
    drop(first);
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(
        stderr.contains(store.to_str().unwrap()) && stderr.contains("--local-store-directory"),
        "{stderr}"
    );
}

/// A server that answers one request with these bytes.
fn serve_once(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    format!("http://{address}/debug/pprof/profile?seconds=1")
}

#[test]
fn ui_shows_a_recording_gzipped_or_not_from_a_file_or_a_url() {
    let dir = scratch();
    let busy = compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]);
    let recording = dir.path().join("x.pb.gz");
    let out = recording.to_str().unwrap();
    let summary = record_json(&["-d", "2s", "-o", out, "--", busy.to_str().unwrap()]);
    let samples = summary["samples"].as_u64().unwrap();
    assert!(samples > 0, "{summary}");
    let unpacked = Command::new("gzip").args(["-dc", out]).output().unwrap().stdout;
    let plain = dir.path().join("x.pb");
    fs::write(&plain, unpacked).unwrap();
    let url = serve_once(fs::read(&recording).unwrap());
    for source in [out, plain.to_str().unwrap(), &url] {
        let (_ui, address) = ui(source);
        assert_eq!(samples_shown(&address), samples, "{source}");
        let (base, query) = address.split_once('?').unwrap();
        assert!(get(&format!("{base}api/flamegraph?{query}")).contains("spin"), "{source}");
        assert!(get(base).contains("<!doctype html>"), "{source}");
    }
}

#[test]
fn ui_refuses_what_it_can_not_show_by_name() {
    let dir = scratch();
    let page = dir.path().join("x.html");
    fs::write(&page, "<!DOCTYPE html>").unwrap();
    let text = dir.path().join("x.folded");
    fs::write(&text, "main;work 7\n").unwrap();
    let nobody = format!("http://{}/x", free_address());
    for (source, code, message) in [
        (dir.path().to_str().unwrap(), 1, "holds no profiles"),
        ("/no/such/file", 1, "cannot read /no/such/file"),
        (text.to_str().unwrap(), 1, "neither a store's folder nor a pprof file"),
        (page.to_str().unwrap(), 64, "open it in a browser"),
        (&nobody, 1, "cannot fetch http://127.0.0.1"),
    ] {
        let output = jvmprof().args(["ui", source]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{source}: {stderr}");
        assert!(stderr.contains(message), "{source}: {stderr}");
    }
}

#[test]
fn a_backend_without_tls_is_told_with_what_to_write() {
    let dir = scratch();
    let _load = Workload::start(&compile(dir.path(), "busy", BUSY, &["-O1", "-fno-omit-frame-pointer"]), &[]);
    let (_collector, address) = collector(&dir.path().join("store"));
    let bare = address.trim_start_matches("http://");
    let is_said = |log: &str| log.contains("the server doesn't speak TLS: write the address as http://");
    let (log, success) = daemon(&["--remote-store-address", bare], is_said);
    assert!(success, "{log}");
}
