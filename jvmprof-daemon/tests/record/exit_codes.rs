//! The exit code of `record -- COMMAND` is the command's, and `--json=FILE` is apart from what it
//! prints. Needs root.

use std::fs;
use std::process::{Command, Output};

use crate::support::{jvmprof, scratch};

fn record(args: &[&str]) -> (Output, String) {
    let output = jvmprof().arg("record").args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

#[test]
fn a_commands_status_is_taken_over() {
    for (command, code) in [
        (&["true"][..], 0),
        (&["false"], 1),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
    ] {
        let mut args = vec!["-d", "60s", "--"];
        args.extend(command);
        let (output, stderr) = record(&args);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {stderr}");
    }
}

#[test]
fn a_full_standard_error_loses_neither_the_commands_status_nor_the_files() {
    let dir = scratch();
    let out = dir.path().join("x.folded");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = jvmprof();
    command.args(["record", "-o", out.to_str().unwrap(), "--", "sh", "-c", "exit 3"]);
    assert_eq!(command.stderr(full).status().unwrap().code(), Some(3));
    assert!(out.exists());
}

/// There the kernel programs would profile other processes than those that are named.
#[test]
fn a_container_without_the_hosts_pids_is_refused() {
    for args in [&["record", "-d", "1s", "-p", "1"][..], &["top", "--once"], &["daemon"]] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]);
        let output = command.arg(env!("CARGO_BIN_EXE_jvmprof")).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("pid namespace") && stderr.contains("hostPID: true"), "{args:?}: {stderr}");
    }
}

#[test]
fn a_command_that_can_not_be_started_is_named_and_nothing_is_written() {
    let dir = scratch();
    let out = dir.path().join("x.folded");
    let plain = dir.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    for (command, code) in
        [("/no/such/program", 127), ("no-such-program-at-all", 127), (plain.to_str().unwrap(), 126)]
    {
        let (output, stderr) = record(&["-o", out.to_str().unwrap(), "--", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {stderr}");
        assert!(stderr.contains(&format!("cannot run {command}: ")), "{stderr}");
        assert!(!stderr.contains("samples in"), "nothing was recorded: {stderr}");
        assert!(!out.exists(), "{command}");
    }
}

#[test]
fn a_command_that_the_recordings_end_ends_is_no_failure() {
    let (output, stderr) = record(&["-d", "1s", "--", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
}

#[test]
fn a_summary_in_a_file_is_apart_from_what_the_command_prints() {
    let dir = scratch();
    let file = dir.path().join("summary.json");
    let (output, stderr) = record(&[&format!("--json={}", file.display()), "--", "echo", "of the command"]);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "of the command\n");
    let text = fs::read_to_string(&file).unwrap();
    let summary: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(summary["duration_ms"].is_u64() && summary["samples"].is_u64(), "{summary}");
    assert!(stderr.contains("samples in"), "people read the summary as always: {stderr}");
}
