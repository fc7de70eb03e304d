//! Debug files from Debian's own debuginfod, and from servers that mean no good.
//!
//! Needs root, gcc, binutils and debuginfod (of elfutils), and fails where they are missing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jvmprof_daemon::native::byte_source::RegularFile;
use jvmprof_daemon::native::debuginfod::{Debuginfod, DebuginfodCounts, DebuginfodOptions, FetchState};
use jvmprof_daemon::native::elf::ElfFile;
use jvmprof_daemon::types::BuildId;
use url::Url;

const PROGRAM: &str = r#"
#include <stdlib.h>
volatile unsigned long sink;
static inline __attribute__((always_inline)) void inlined_there(unsigned long i) { sink += i * i; }
__attribute__((noipa)) static void burn_in_secret(unsigned long n) {
    for (unsigned long i = 0; i < n; i++) inlined_there(i);
}
__attribute__((noipa)) static void caller_in_secret(unsigned long n) { burn_in_secret(n); sink++; }
int main(int argc, char **argv) {
    for (unsigned long i = 0; i < strtoul(argv[1], 0, 10); i++) caller_in_secret(1000000);
    return 0;
}
"#;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.unwrap_or_else(|e| panic!("this test runs {program}: {e}")).success());
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn build_id(path: &Path) -> BuildId {
    let file = File::open(path).expect("there");
    let elf = ElfFile::parse(RegularFile::new(&file).expect("regular")).expect("an ELF file");
    elf.build_id().expect("a build id")
}

/// A stripped program; its debug file is in the folder `served`.
fn stripped(scratch: &Path) -> PathBuf {
    let flags = ["-g", "-O2", "-Wl,--build-id=sha1"];
    // Each run of the tests has a build id of its own, so that nothing is known of it.
    let code = format!("{PROGRAM}\nconst char *place = \"{}\";\n", scratch.display());
    let program = crate::support::compile(scratch, "secret", &code, &flags);
    let served = scratch.join("served");
    fs::create_dir_all(&served).expect("made");
    run("objcopy", &["--only-keep-debug", text(&program), text(&served.join("secret.debug"))]);
    run("strip", &[text(&program)]);
    program
}

fn start_debuginfod(scratch: &Path, port: u16) -> crate::support::KilledChild {
    let served = scratch.join("served");
    let child = Command::new("debuginfod")
        .args(["-F", "-d", ":memory:", "-p", &port.to_string(), "-t", "1", text(&served)])
        .env("HOME", scratch)
        .env_remove("DEBUGINFOD_URLS")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test runs debuginfod, of Debian's package of that name");
    crate::support::KilledChild(child)
}

/// `urls`: in the variable that gdb and others read.
fn folded(scratch: &Path, program: &Path, urls: &str, flags: &[&str]) -> String {
    let out = scratch.join("out.folded");
    let mut record = crate::support::jvmprof();
    record.args(["record", "-F", "499", "-o", text(&out)]).args(flags).args(["--", text(program), "1500"]);
    let output = record.env("DEBUGINFOD_URLS", urls).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(out).expect("written")
}

#[test]
fn a_stripped_program_gets_its_names_from_debuginfod_and_keeps_them_without_it() {
    let scratch = crate::support::scratch();
    let program = stripped(scratch.path());
    let port = free_port();
    let (url, cache) = (format!("http://127.0.0.1:{port}"), scratch.path().join("cache"));
    let flags = ["--debuginfod-url", &url, "--debuginfod-cache", text(&cache)];
    let before = folded(scratch.path(), &program, "", &flags);
    assert!(!before.contains("in_secret") && before.contains("secret+0x"), "nobody serves yet: {before}");
    let id = build_id(&program);
    let server = start_debuginfod(scratch.path(), port);
    wait_until(Duration::from_secs(60), || {
        crate::support::has_file(port, &format!("/buildid/{id}/debuginfo"))
    });
    let unasked = folded(scratch.path(), &program, "", &flags[2..]);
    assert!(!unasked.contains("in_secret") && !cache.join(format!("{id}.debug")).exists(), "{unasked}");
    let named = folded(scratch.path(), &program, "", &flags);
    assert!(named.contains("caller_in_secret;burn_in_secret") && !named.contains("secret+0x"), "{named}");
    assert!(!named.contains("inlined_there"), "lines weren't asked for");
    assert!(cache.join(format!("{id}.debug")).is_file());
    drop(server);
    let kept = folded(scratch.path(), &program, &url, &[&flags[2..], &["--native-lines"]].concat());
    assert!(
        kept.contains("caller_in_secret;burn_in_secret;inlined_there") && !kept.contains("secret+0x"),
        "from the disk: {kept}"
    );
}

fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !done() {
        assert!(Instant::now() < end, "not in {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that gives the same answer to everything.
fn answering(answer: impl Fn(&mut TcpStream) + Send + 'static) -> (Url, Arc<AtomicUsize>) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", socket.local_addr().expect("bound"));
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    std::thread::spawn(move || {
        for mut stream in socket.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            counter.fetch_add(1, Ordering::Relaxed);
            answer(&mut stream);
        }
    });
    (Url::parse(&url).expect("a URL"), requests)
}

fn settled(options: DebuginfodOptions, id: BuildId) -> (Debuginfod, DebuginfodCounts) {
    let client = Debuginfod::start(options).expect("started");
    assert_eq!(client.request(id), FetchState::Pending);
    wait_until(Duration::from_secs(60), || client.is_idle());
    let counts = client.counts();
    (client, counts)
}

fn reply(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

#[test]
fn what_servers_send_is_kept_only_if_it_is_what_was_asked_for() {
    let scratch = crate::support::scratch();
    let program = stripped(scratch.path());
    let debug = fs::read(scratch.path().join("served/secret.debug")).expect("read");
    let (id, other) = (build_id(&program), BuildId::new(&[7; 20]).expect("20 bytes"));
    type Answer = Box<dyn Fn(&mut TcpStream) + Send>;
    let whole = debug.clone();
    let cases: Vec<(&str, BuildId, Answer, DebuginfodCounts)> = vec![
        (
            "good",
            id,
            Box::new(move |stream| reply(stream, "200 OK", &whole)),
            DebuginfodCounts { fetched: 1, fetched_bytes: debug.len() as u64, ..DebuginfodCounts::default() },
        ),
        (
            "of another build",
            other,
            Box::new({
                let debug = debug.clone();
                move |stream| reply(stream, "200 OK", &debug)
            }),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "a page of a portal",
            id,
            Box::new(|stream| reply(stream, "200 OK", b"<html>please log in</html>")),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "missing",
            id,
            Box::new(|stream| reply(stream, "404 Not Found", b"")),
            DebuginfodCounts { missing: 1, ..DebuginfodCounts::default() },
        ),
        (
            "broken",
            id,
            Box::new(|stream| reply(stream, "500 Oh No", b"")),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "endless",
            id,
            Box::new(|stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                while stream.write_all(&[0x7f; 65_536]).is_ok() {}
            }),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "claiming",
            id,
            Box::new(|stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n");
            }),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "cut short",
            id,
            Box::new({
                let debug = debug.clone();
                move |stream| {
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", debug.len());
                    let _ = stream.write_all(&debug[..debug.len() / 2]);
                }
            }),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
        (
            "silent",
            id,
            Box::new(|_| std::thread::sleep(Duration::from_secs(60))),
            DebuginfodCounts { failed: 1, ..DebuginfodCounts::default() },
        ),
    ];
    for (name, id, answer, expected) in cases {
        let (url, requests) = answering(answer);
        let directory = scratch.path().join(name);
        let options = DebuginfodOptions {
            limit_bytes: 4 << 20,
            timeout: Duration::from_secs(3),
            ..DebuginfodOptions::new(vec![url], directory.clone())
        };
        let (client, counts) = settled(options, id);
        assert_eq!(counts, DebuginfodCounts { requested: 1, ..expected }, "{name}");

        assert_eq!(requests.load(Ordering::Relaxed), 1, "{name}");
        let arrived = if expected.fetched == 1 { vec![id] } else { Vec::new() };
        assert_eq!(client.take_fetched(), arrived, "{name}");
        assert_eq!(client.request(id), FetchState::Unavailable, "{name}: not again so soon");
        assert_eq!(fs::read_dir(directory).expect("there").count(), arrived.len(), "{name}");
    }
}

#[test]
fn the_next_server_is_asked_where_one_fails() {
    let scratch = crate::support::scratch();
    let program = stripped(scratch.path());
    let debug = fs::read(scratch.path().join("served/secret.debug")).expect("read");
    let (missing, _) = answering(|stream| reply(stream, "404 Not Found", b""));
    let (broken, _) = answering(|stream| reply(stream, "503 Busy", b""));
    let (good, _) = answering(move |stream| reply(stream, "200 OK", &debug));
    let cache = scratch.path().join("cache");
    let options = DebuginfodOptions::new(vec![missing, broken, good], cache);
    let (_, counts) = settled(options, build_id(&program));
    assert_eq!((counts.fetched, counts.failed, counts.missing), (1, 0, 0));
}

#[test]
fn a_server_that_stops_in_the_middle_is_given_up_long_before_a_slow_one() {
    let scratch = crate::support::scratch();
    let (url, requests) = answering(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789");
        std::thread::sleep(Duration::from_secs(300));
    });
    let options = DebuginfodOptions {
        timeout: Duration::from_secs(3600),
        stall_timeout: Duration::from_millis(500),
        ..DebuginfodOptions::new(vec![url], scratch.path().join("cache"))
    };
    let (_, counts) = settled(options, BuildId::new(&[7; 20]).expect("20 bytes"));
    assert_eq!((counts.requested, counts.failed, requests.load(Ordering::Relaxed)), (1, 1, 1));
}

#[test]
fn a_file_that_had_to_leave_is_fetched_again() {
    let scratch = crate::support::scratch();
    let program = stripped(scratch.path());
    let debug = fs::read(scratch.path().join("served/secret.debug")).expect("read");
    let (url, requests) = answering(move |stream| reply(stream, "200 OK", &debug));
    let (id, cache) = (build_id(&program), scratch.path().join("cache"));
    // A tenth of it for what is gone.
    let retry_after = Duration::from_secs(100);
    let options = DebuginfodOptions { retry_after, ..DebuginfodOptions::new(vec![url], cache.clone()) };
    let (client, _) = settled(options, id);
    assert_eq!(client.take_fetched(), [id]);
    fs::remove_file(cache.join(format!("{id}.debug"))).expect("there");
    wait_until(Duration::from_secs(60), || client.request(id) == FetchState::Pending);
    wait_until(Duration::from_secs(60), || client.is_idle());
    assert_eq!((client.counts().fetched, requests.load(Ordering::Relaxed)), (2, 2));
    assert!(cache.join(format!("{id}.debug")).is_file());
}
