//! Tests that cargo knows: which ones there are, how they run, and what came of them.

use std::io::{BufRead as _, BufReader};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::failures::FailureReader;
use super::programs::Programs;
use super::suites::{Count, SuiteTests};
use crate::paths;
use crate::run::{self, command_line, run, stdout_text};

/// Those of the library and of this program; the daemon's binary has none.
const UNIT_TESTS: &[&str] = &["--lib", "--bin", "xtask"];

/// The package whose integration tests watch a running system.
const DAEMON: &str = "jvmprof-daemon";

/// The profile that tests are built with. Overflows and debug assertions fail them either way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Profile {
    /// Builds in a fraction of the other's time.
    Dev,
    /// Optimized: a daemon without that takes the processors of what it watches.
    Checked,
}

impl Profile {
    /// Returns `cargo test` in this profile. Each call names the whole workspace, so that
    /// dependencies are built once, with one set of features.
    fn cargo_test(self) -> Command {
        let mut command = cargo(&["test", "--workspace", "--locked"]);
        if matches!(self, Self::Checked) {
            command.args(["--profile", "checked"]);
        }
        command
    }
}

/// Builds the unit tests, and those of the unwinder.
pub(super) fn build_unit_tests() -> anyhow::Result<()> {
    let unwinder = test_binaries("jvmprof-common")?;
    run(Profile::Dev.cargo_test().arg("--no-run").args(UNIT_TESTS).args(test_arguments(&unwinder)))
}

/// Builds the daemon's integration tests, and returns the path of the program that they test.
pub(super) fn build_integration_tests() -> anyhow::Result<PathBuf> {
    run(Profile::Checked.cargo_test().arg("--no-run").args(test_arguments(&test_binaries(DAEMON)?)))?;
    Ok(paths::target().join("checked/jvmprof"))
}

/// Returns the names of the daemon's integration tests.
pub(super) fn integration_tests() -> anyhow::Result<Vec<String>> {
    test_binaries(DAEMON)
}

/// Runs the unit tests.
pub(super) fn unit_tests(tests: &mut SuiteTests, programs: &Programs) -> anyhow::Result<()> {
    cargo_tests_with(tests, programs, Profile::Dev, UNIT_TESTS, &[&test_threads()])
}

/// Runs these tests of the workspace.
pub(super) fn cargo_tests(
    tests: &mut SuiteTests,
    programs: &Programs,
    profile: Profile,
    which: &[&str],
) -> anyhow::Result<()> {
    cargo_tests_with(tests, programs, profile, which, &[])
}

/// As [`cargo_tests`], with arguments of the test binaries.
fn cargo_tests_with(
    tests: &mut SuiteTests,
    programs: &Programs,
    profile: Profile,
    which: &[&str],
    arguments: &[&str],
) -> anyhow::Result<()> {
    let mut command = profile.cargo_test();
    command.arg("--no-fail-fast").args(which);
    if which != ["--doc"] {
        command.args(["--", "--include-ignored"]).args(arguments);
    }
    counted(command.envs(programs.environment()), tests, cargo_line)
}

/// More failures than these have a reason other than a busy machine.
const RUN_AGAIN: usize = 8;

/// Tests that run at a time for each processor. Most wait for the programs that they watch, or, of
/// the unit tests, for answers and for the end of somebody's patience.
const TESTS_PER_CPU: usize = 2;

/// Returns the argument of a test binary for as many.
fn test_threads() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    format!("--test-threads={}", cpus * TESTS_PER_CPU)
}

/// Runs the tests of one binary, but those that have one of the texts `left_out` in their names.
/// They watch programs while these run, and a machine that stands still for a second, as virtual
/// ones do, can fail one. So the few that fail run again, by themselves: what fails twice has
/// failed, and what passes then is named at the end of the run, with what it said.
pub(super) fn tests_of_a_running_system(
    tests: &mut SuiteTests,
    programs: &Programs,
    binary: &str,
    left_out: &[&str],
) -> anyhow::Result<()> {
    let which = ["--test", binary];
    // These make fixtures, and evaluate files that are named to them.
    let makers = ["record_jvms", "rows_of_other_files"];
    let threads = test_threads();
    let skipped = makers.iter().chain(left_out).flat_map(|name| ["--skip", name]);
    let arguments: Vec<&str> = [&*threads].into_iter().chain(skipped).collect();
    let result = cargo_tests_with(tests, programs, Profile::Checked, &which, &arguments);
    let named = u64::try_from(tests.failures.len()).unwrap_or(u64::MAX);
    // A binary that died counts fewer failures than there may have been.
    if result.is_ok() || tests.count.failed != named || !(1..=RUN_AGAIN).contains(&tests.failures.len()) {
        return result;
    }
    let mut again = SuiteTests::default();
    let mut arguments = vec!["--test-threads=1", "--exact"];
    arguments.extend(tests.failures.iter().map(|failure| failure.name.as_str()));
    let second_result = cargo_tests_with(&mut again, programs, Profile::Checked, &which, &arguments);
    if again.count.passed + again.count.failed != named {
        return result;
    }
    tests.add_second_run(&again);
    second_result
}

/// Returns the arguments that name these test binaries.
pub(super) fn test_arguments(binaries: &[String]) -> Vec<&str> {
    binaries.iter().flat_map(|name| ["--test", name]).collect()
}

/// Returns the names of a package's test binaries, as cargo knows them.
pub(super) fn test_binaries(package: &str) -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        kind: Vec<String>,
        name: String,
    }
    let text = stdout_text(&mut cargo(&["metadata", "--no-deps", "--format-version=1", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("reading cargo's metadata")?;
    let targets = metadata.packages.into_iter().filter(|found| found.name == package);
    let tests = targets.flat_map(|package| package.targets).filter(|target| target.kind == ["test"]);
    let names: Vec<String> = tests.map(|target| target.name).collect();
    if names.is_empty() {
        bail!("{package} has no tests");
    }
    Ok(names)
}

/// Runs a test runner, passes its standard output on, and adds up the results that `read` finds in
/// its lines.
pub(super) fn counted(
    command: &mut Command,
    tests: &mut SuiteTests,
    read: fn(&str) -> Option<Count>,
) -> anyhow::Result<()> {
    let line = command_line(command);
    eprintln!("$ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{line}`"))?;
    let stdout = child.stdout.take().context("the runner's output isn't there")?;
    let mut failures = FailureReader::default();
    for text in BufReader::new(stdout).split(b'\n') {
        let text = text.with_context(|| format!("reading the output of `{line}`"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        failures.read(&text);
        if let Some(result) = read(&text) {
            tests.count.passed += result.passed;
            tests.count.failed += result.failed;
        }
    }
    tests.failures.extend(failures.finish());
    let status = child.wait().with_context(|| format!("waiting for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Parses `test result: ok. 12 passed; 0 failed; 0 ignored; ...`.
fn cargo_line(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Count { passed: number(" passed")?, failed: number(" failed")? })
}

pub(super) fn cargo(args: &[&str]) -> Command {
    let mut command = run::cargo();
    command.args(args).current_dir(paths::workspace()).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_test_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(cargo_line(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(cargo_line("test tests::result ... ok"), None);
    }

    /// `UNIT_TESTS` leaves it out.
    #[test]
    fn the_daemons_binary_has_no_tests() {
        let main = paths::workspace().join(DAEMON).join("src/main.rs");
        let text = std::fs::read_to_string(main).unwrap();
        assert!(text.contains("fn main()") && !text.contains("test]") && !text.contains("(test)"));
    }

    #[test]
    fn the_unwinders_and_the_daemons_tests_are_found() {
        assert!(test_binaries("jvmprof-common").unwrap().contains(&"snapshots".to_owned()));
        assert!(test_binaries("jvmprof-daemon").unwrap().contains(&"hotspot".to_owned()));
        assert!(test_binaries("no-such-package").is_err());
    }
}
