//! Helpers that the tests of the command line share. A program that a test needs and that isn't
//! there fails the test by name.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod keys;
pub(crate) mod left;
pub(crate) mod nginx;
pub(crate) mod one_cpu;
pub(crate) mod processes;
pub(crate) mod recording;
#[path = "thread_context/mod.rs"]
pub(crate) mod thread_context;
pub(crate) mod waits;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// A load in a JVM: recursion of so many calls (0: two methods that call each other) for so many
/// milliseconds (none: for ever).
pub(crate) const LOAD: &str = r#"
public class Load {
    static volatile long sink;
    static int hash(byte[] data) { int h = 7; for (byte b : data) h = h * 31 + b; return h; }
    static void outer(byte[] data) { for (int i = 0; i < 100; i++) sink += hash(data); }
    static int descend(int n) {
        if (n == 0) { long s = 0; for (int i = 0; i < 200000; i++) s += i * i; sink = s; return 1; }
        return descend(n - 1) + 1;
    }
    public static void main(String[] args) {
        int depth = Integer.parseInt(args[0]);
        long until = args.length > 1 ? System.nanoTime() + Long.parseLong(args[1]) * 1000000 : Long.MAX_VALUE;
        byte[] data = new byte[100_000];
        while (System.nanoTime() < until) if (depth > 0) descend(depth); else outer(data);
    }
}
"#;

/// Options of the JVM of a JDK's tool: it ends before C2 and several threads of a collector are
/// worth what they cost.
pub(crate) const SHORT_LIVED_JVM: [&str; 2] = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"];

/// Compiled by a JDK that has a compiler, for the oldest that is tested.
pub(crate) fn compile_java(dir: &Path, class: &str, source: &str) -> PathBuf {
    compile_java_for(8, dir, class, source)
}

/// As [`compile_java`], for JDKs from this release on.
pub(crate) fn compile_java_for(release: u32, dir: &Path, class: &str, source: &str) -> PathBuf {
    compile_java_with(release, dir, class, source, "")
}

/// As [`compile_java_for`], with these jars, separated by colons.
pub(crate) fn compile_java_with(
    release: u32,
    dir: &Path,
    class: &str,
    source: &str,
    class_path: &str,
) -> PathBuf {
    let program: JavaProgram = (release, source.to_owned(), class_path.to_owned());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let files = Arc::clone(compiled.entry(program).or_default());
    drop(compiled);
    for (name, bytes) in files.get_or_init(|| class_files(release, class, source, class_path)) {
        fs::write(dir.join(name), bytes).expect("the folder is writable");
    }
    dir.to_owned()
}

/// A program: the release that it is compiled for, its source, and the class path.
type JavaProgram = (u32, String, String);
/// Class files by their names.
type ClassFiles = BTreeMap<OsString, Vec<u8>>;

/// What this process has compiled: tests have programs in common.
static COMPILED: Mutex<BTreeMap<JavaProgram, Arc<OnceLock<ClassFiles>>>> = Mutex::new(BTreeMap::new());

fn class_files(release: u32, class: &str, source: &str, class_path: &str) -> ClassFiles {
    let dir = scratch();
    let file = dir.path().join(format!("{class}.java"));
    fs::write(&file, source).expect("written");
    let new_enough = jdks().into_iter().filter(|(feature, _)| *feature >= release);
    let javac = new_enough.map(|(_, home)| home.join("bin/javac")).find(|javac| javac.is_file());
    let mut javac = Command::new(javac.expect("one of the JDKs needs a javac"));
    javac.args(SHORT_LIVED_JVM).args(["-nowarn", "--release", &release.to_string(), "-d"]).arg(dir.path());
    if !class_path.is_empty() {
        javac.args(["-cp", class_path]);
    }
    assert!(javac.arg(file).status().expect("javac runs").success());
    let files = fs::read_dir(dir.path()).expect("it is readable");
    let files = files.map(|entry| entry.expect("it is readable").path());
    let classes = files.filter(|file| file.extension().is_some_and(|ending| ending == "class"));
    let read = |file: PathBuf| {
        (file.file_name().expect("a name").to_owned(), fs::read(&file).expect("it is readable"))
    };
    classes.map(read).collect()
}

pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// The binary under test.
pub(crate) fn jvmprof() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jvmprof"));
    command.stdin(Stdio::null());
    command
}

/// Runs `jvmprof record --json` and gives its summary.
pub(crate) fn record_json(args: &[&str]) -> Value {
    let output = jvmprof().args(["record", "--json"]).args(args).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    // A command's own output may stand before it.
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().last().unwrap_or_else(|| panic!("{args:?} printed nothing: {stderr}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Compiles a C program.
pub(crate) fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (code, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&code, source).expect("the folder is writable");
    let mut gcc = Command::new("gcc");
    gcc.args(flags).arg("-fno-optimize-sibling-calls").arg("-o").arg(&program).arg(&code);
    assert!(gcc.status().expect("the tests need gcc").success(), "gcc failed");
    program
}

/// The folder of what go has compiled, for all tests: in one of its own each would compile Go's
/// library first.
pub(crate) fn go_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache")
}

/// A program that runs until it is dropped; what it left for profilers in `/tmp` goes with it.
pub(crate) struct Workload(Child);

/// A process that is killed when it is dropped, by a test that fails too.
pub(crate) struct KilledChild(pub(crate) Child);

impl Deref for KilledChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KilledChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KilledChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Workload {
    pub(crate) fn start(program: &Path, args: &[&str]) -> Self {
        let child = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{}: {error}", program.display())))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        left::remove_left(self.0.id());
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(sent.expect("kill is there").success());
}

pub(crate) fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
}

/// Status and body of what a daemon answers at its socket.
pub(crate) fn http_get(socket: &Path, path: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Returns whether a server of this host has a file.
pub(crate) fn has_file(port: u16, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = write!(stream, "GET {path} HTTP/1.0\r\n\r\n");
    let mut status = String::new();
    let _ = BufReader::new(stream).read_line(&mut status);
    status.contains(" 200 ")
}

/// The values of a page of metrics by series, as `name{label="value"}`.
pub(crate) fn series(metrics: &str) -> BTreeMap<String, f64> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// Samples by leaf function, as `go tool pprof` reads the file.
pub(crate) fn go_pprof_top(file: &Path) -> BTreeMap<String, u64> {
    go_pprof(file, &[])
}

/// The same at another granularity: `-lines`.
pub(crate) fn go_pprof(file: &Path, granularity: &[&str]) -> BTreeMap<String, u64> {
    let output = Command::new("go")
        .args(["tool", "pprof", "-sample_index=samples", "-nodefraction=0", "-nodecount=100000", "-top"])
        .args(granularity)
        .arg(file)
        .output()
        .expect("the tests need go");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = text.lines().skip_while(|line| !line.trim_start().starts_with("flat")).skip(1);
    let mut top = BTreeMap::new();
    for row in rows {
        // flat flat% sum% cum cum% name
        let mut words = row.split_whitespace();
        let flat: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{row}"));
        let name: Vec<&str> = words.skip(4).collect();
        if flat > 0 {
            top.insert(name.join(" "), flat);
        }
    }
    top
}

/// The program of Parca, for tests of Parca itself. `cargo xtask test` leaves them out by their
/// names where it isn't there (`xtask/src/test/large_servers.rs`), and says so.
pub(crate) fn parca_program() -> String {
    std::env::var("JVMPROF_TEST_PARCA").expect(
        "JVMPROF_TEST_PARCA names Parca's program: run `cargo xtask test --servers`, which builds it, or \
         leave this test out by `--skip`",
    )
}

/// The JDKs to test: `JVMPROF_TEST_JDKS=17=/path:25=/path`, as `cargo xtask test` sets it.
pub(crate) fn jdks() -> Vec<(u32, PathBuf)> {
    let list = std::env::var("JVMPROF_TEST_JDKS")
        .expect("JVMPROF_TEST_JDKS names the JDKs to test: run `cargo xtask test`");
    let jdks: Vec<(u32, PathBuf)> = list
        .split(':')
        .filter_map(|item| item.split_once('='))
        .map(|(feature, home)| (feature.parse().expect("a feature version"), PathBuf::from(home)))
        .collect();
    for needed in [17, 25] {
        assert!(jdks.iter().any(|(feature, _)| *feature == needed), "no JDK {needed} in {list}");
    }
    jdks
}
