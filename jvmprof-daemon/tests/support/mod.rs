//! What the tests of the command line share. A program that a test needs and that isn't there fails the test by name.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

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

/// A program that runs until it is dropped.
pub(crate) struct Workload(Child);

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
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(sent.expect("kill is there").success());
}

pub(crate) fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
}

/// Samples by leaf function, as `go tool pprof` reads the file.
pub(crate) fn go_pprof_top(file: &Path) -> BTreeMap<String, u64> {
    let output = Command::new("go")
        .args(["tool", "pprof", "-sample_index=samples", "-nodefraction=0", "-nodecount=100000", "-top"])
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
