//! `cargo xtask test`: all checks and tests of a commit, setup included.

mod failures;
mod large_servers;
mod node;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use self::failures::{Failure, FailureReader};
use crate::ebpf;
use crate::kernels;
use crate::paths;
use crate::run::{command_line, require_root, run, stdout_text};
use crate::setup::build;
use crate::setup::installed_jdks;
use crate::setup::packages;
use crate::setup::python;
use crate::setup::servers;
use crate::setup::test_packages;
use crate::setup::tools;
use crate::soak;
use crate::{allocation, zoo};

#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Skip the installation of what the tests need
    #[arg(long)]
    no_setup: bool,
    /// Run only rustfmt, clippy, unit tests and the unwinder's snapshots: needs neither root nor
    /// setup
    #[arg(long)]
    quick: bool,
    /// Build Parca and Pyroscope from their Go modules, and push to them too: some eight minutes
    /// more on two CPUs, once
    #[arg(long, env = "JVMPROF_TEST_SERVERS")]
    servers: bool,
}

/// Tests that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

/// What is known of a suite's tests.
#[derive(Debug, Default)]
struct Tests {
    count: Count,
    failures: Vec<Failure>,
    /// Of the failures those that passed when they ran again.
    passed_alone: Vec<Failure>,
}

impl Tests {
    /// Takes the result of the failures' second run instead of that of their first one.
    fn add_second_run(&mut self, again: &Self) {
        let failed_again = |failure: &Failure| again.failures.iter().any(|other| other.name == failure.name);
        let (failed, passed) = self.failures.drain(..).partition(failed_again);
        (self.failures, self.passed_alone) = (failed, passed);
        self.count.passed += again.count.passed;
        self.count.failed = again.count.failed;
    }
}

/// Programs of this machine that tests use.
#[derive(Debug)]
struct Setup {
    jdks: Vec<installed_jdks::InstalledJdk>,
    python: PathBuf,
    packages: PathBuf,
}

impl Setup {
    fn found() -> Self {
        let python = python::found().unwrap_or_default();
        Self { jdks: installed_jdks::found(), python, packages: test_packages::folder() }
    }

    /// Installs what is missing.
    fn ensure(large_servers: bool) -> anyhow::Result<Self> {
        packages::install(packages::FOR_TESTS)?;
        let (jdks, python) = (installed_jdks::ensure()?, python::ensure()?);
        let packages = test_packages::ensure()?;
        servers::OTEL_COLLECTOR.ensure()?;
        for server in servers::LARGE.iter().filter(|_| large_servers) {
            // Not all that they consist of is served everywhere. The run says what it left out.
            if let Err(error) = server.ensure() {
                eprintln!("error: {error:#}");
            }
        }
        Ok(Self { jdks, python, packages })
    }

    /// Returns the environment variables through which tests get them.
    fn environment(&self) -> Vec<(&'static str, String)> {
        let programs = [
            (installed_jdks::TEST_JDKS, installed_jdks::list(&self.jdks)),
            (python::TEST_PYTHON, self.python.display().to_string()),
            (test_packages::TEST_PACKAGES, self.packages.display().to_string()),
        ];
        let large = servers::LARGE.into_iter().filter(|server| server.path().is_file());
        let servers = [servers::OTEL_COLLECTOR].into_iter().chain(large);
        let servers = servers.map(|server| (server.variable, server.path().display().to_string()));
        programs.into_iter().chain(servers).collect()
    }
}

/// A suite that has run.
#[derive(Debug)]
struct Finished {
    name: String,
    took: Duration,
    tests: Tests,
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Suites {
    finished: Vec<Finished>,
    /// What was left out, and why.
    not_run: Vec<String>,
}

impl Suites {
    /// Runs a suite, which adds its tests; a failure is kept for the end.
    fn run(&mut self, name: &str, work: impl FnOnce(&mut Tests) -> anyhow::Result<()>) {
        eprintln!("\n== {name}");
        let (started, mut tests) = (Instant::now(), Tests::default());
        let error = work(&mut tests).err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            eprintln!("error: {error}");
        }
        let finished = Finished { name: name.to_owned(), took: started.elapsed(), tests, error };
        eprintln!("== {}", finished.line());
        self.finished.push(finished);
    }

    fn check(&mut self, name: &str, work: impl FnOnce() -> anyhow::Result<()>) {
        self.run(name, |_| work());
    }

    /// Prints times and failures, and last the line that CI reads as the run's result.
    fn close(&self) -> anyhow::Result<ExitCode> {
        let took: Duration = self.finished.iter().map(|suite| suite.took).sum();
        eprintln!("\n== {:.1} minutes:", took.as_secs_f64() / 60.0);
        for suite in &self.finished {
            eprintln!("{:>6.0} s  {}", suite.took.as_secs_f64(), suite.line());
        }
        let mut failed = self.finished.iter().map(|suite| suite.tests.count.failed).sum::<u64>();
        for suite in &self.finished {
            if let Some(error) = &suite.error {
                eprintln!("failed: {}: {error}", suite.name);
                // A check that failed, or a test binary that died, counts no test: the run must
                // not close with "0 failed" all the same.
                failed += u64::from(suite.tests.count.failed == 0);
            }
        }
        for suite in &self.finished {
            for Failure { name, printed } in &suite.tests.failures {
                eprintln!("failed: {}: {name}:\n{printed}", suite.name);
            }
            for Failure { name, printed } in &suite.tests.passed_alone {
                eprintln!("failed, and passed when it ran alone: {}: {name}:\n{printed}", suite.name);
            }
        }
        for what in &self.not_run {
            eprintln!("NOT RUN: {what}");
        }
        let passed = self.finished.iter().map(|suite| suite.tests.count.passed).sum::<u64>();
        println!("{passed} passed, {failed} failed");
        io::stdout().flush().context("writing to standard output")?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Finished {
    fn line(&self) -> String {
        let Count { passed, failed } = self.tests.count;
        let outcome = if self.error.is_some() { "FAILED" } else { "ok" };
        let counts =
            if passed + failed > 0 { format!(", {passed} passed, {failed} failed") } else { String::new() };
        format!("{}: {outcome}{counts}", self.name)
    }
}

pub(crate) fn main(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let mut suites = Suites::default();
    if args.quick {
        let setup = Setup::found();
        suites.check("rustfmt", rustfmt);
        suites.check("clippy", clippy);
        suites.run("unit tests", |tests| cargo_tests(tests, &setup, UNIT_TESTS));
        suites
            .run("unwinder", |tests| cargo_tests(tests, &setup, &chosen(&test_binaries("jvmprof-common")?)));
        return suites.close();
    }
    require_root("the tests load kernel programs and read other processes")?;
    // The one waits for the network, the other for the processors.
    let setup = thread::scope(|scope| {
        let setup =
            scope.spawn(|| if args.no_setup { Ok(Setup::found()) } else { Setup::ensure(args.servers) });
        suites.check("rustfmt", rustfmt);
        suites.check("building the tests", || {
            run(&mut cargo(&["test", "--workspace", "--locked", "--no-run"]))
        });
        setup.join().unwrap_or_else(|_| bail!("the setup panicked"))
    })?;
    for (name, value) in setup.environment() {
        eprintln!("{name}={value}");
    }
    suites.check("clippy", clippy);
    suites.check("cargo deny", deny);
    suites.check("kernel programs are current", ebpf::check);
    suites.run("node --test", node::tests);
    suites.run("unit tests", |tests| cargo_tests(tests, &setup, UNIT_TESTS));
    suites.run("documentation tests", |tests| cargo_tests(tests, &setup, &["--doc"]));
    suites.run("unwinder", |tests| cargo_tests(tests, &setup, &chosen(&test_binaries("jvmprof-common")?)));
    // One after another: what they measure mustn't be disturbed.
    for name in test_binaries("jvmprof-daemon")? {
        let left_out = large_servers::tests_without_server(&name);
        let names: Vec<&str> = left_out.iter().map(|(_, test)| *test).collect();
        suites.run(&name, |tests| tests_of_a_running_system(tests, &setup, &name, &names));
        let why = if args.servers { "couldn't be built" } else { "isn't there: `--servers` builds it" };
        let lines = left_out.iter().map(|(server, test)| format!("`--test {name} {test}`: {server} {why}"));
        suites.not_run.extend(lines);
    }
    suites.check("stacks of the zoo's programs", || zoo_smoke(&setup.jdks));
    suites.check("profiles of allocation", || allocation::smoke(&needed_jdks(&setup.jdks), &build::fast()?));
    suites.check("a short soak", soak::short);
    suites.check("kernel 6.12", || kernels::run_suite(&[kernels::Line::V6_12], None));
    suites.close()
}

fn rustfmt() -> anyhow::Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&["fmt", "--check"]).current_dir(paths::ebpf_crate()))
}

fn clippy() -> anyhow::Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    ebpf::clippy()
}

/// Checks licences, bans and sources always; advisories where their database can be fetched.
fn deny() -> anyhow::Result<()> {
    let deny = tools::CARGO_DENY.ensure()?;
    let command = |manifest: &Path, args: &[&str]| {
        let mut command = Command::new(&deny);
        command.arg("--manifest-path").arg(manifest);
        command.arg("--config").arg(paths::workspace().join("deny.toml"));
        command.args(args).stdin(Stdio::null());
        command
    };
    let manifests = [paths::workspace(), paths::ebpf_crate()].map(|folder| folder.join("Cargo.toml"));
    for manifest in &manifests {
        let what = ["check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        run(&mut command(manifest, &what))?;
    }
    if let Err(error) = stdout_text(&mut command(&manifests[0], &["fetch", "db"])) {
        let why = format!("{error:#}");
        let why = why.lines().last().unwrap_or_default();
        eprintln!("advisories NOT checked, their database isn't reached from here: {why}");
        return Ok(());
    }
    for manifest in &manifests {
        run(&mut command(manifest, &["check", "--disable-fetch", "--hide-inclusion-graph", "advisories"]))?;
    }
    Ok(())
}

const UNIT_TESTS: &[&str] = &["--lib", "--bins"];

/// Runs these tests of the workspace.
fn cargo_tests(tests: &mut Tests, setup: &Setup, which: &[&str]) -> anyhow::Result<()> {
    cargo_tests_with(tests, setup, which, &[])
}

/// As [`cargo_tests`], with arguments of the test binaries. Each call names the whole workspace, so
/// that dependencies are built once, with one set of features. In the dev profile: it builds in
/// half the time of a release, and overflows and debug assertions fail tests.
fn cargo_tests_with(
    tests: &mut Tests,
    setup: &Setup,
    which: &[&str],
    arguments: &[&str],
) -> anyhow::Result<()> {
    let mut command = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    command.args(which);
    if which != ["--doc"] {
        command.args(["--", "--include-ignored"]).args(arguments);
    }
    counted(command.envs(setup.environment()), tests, cargo_line)
}

/// More failures than these have a reason other than a busy machine.
const RUN_AGAIN: usize = 3;

/// Runs the tests of one binary, but those that have one of the texts `left_out` in their names.
/// They watch programs while these run, and a machine that stands still for a second, as virtual
/// ones do, can fail one. So the few that fail run again, by themselves: what fails twice has
/// failed, and what passes then is named at the end of the run, with what it said.
fn tests_of_a_running_system(
    tests: &mut Tests,
    setup: &Setup,
    binary: &str,
    left_out: &[&str],
) -> anyhow::Result<()> {
    let which = ["--test", binary];
    // These make fixtures, and evaluate files that are named to them.
    let makers = ["record_jvms", "rows_of_other_files"];
    let skipped: Vec<&str> = makers.iter().chain(left_out).flat_map(|name| ["--skip", name]).collect();
    let result = cargo_tests_with(tests, setup, &which, &skipped);
    let named = u64::try_from(tests.failures.len()).unwrap_or(u64::MAX);
    // A binary that died counts fewer failures than there may have been.
    if result.is_ok() || tests.count.failed != named || !(1..=RUN_AGAIN).contains(&tests.failures.len()) {
        return result;
    }
    let mut again = Tests::default();
    let mut arguments = vec!["--test-threads=1", "--exact"];
    arguments.extend(tests.failures.iter().map(|failure| failure.name.as_str()));
    let second_result = cargo_tests_with(&mut again, setup, &which, &arguments);
    if again.count.passed + again.count.failed != named {
        return result;
    }
    tests.add_second_run(&again);
    second_result
}

fn chosen(binaries: &[String]) -> Vec<&str> {
    binaries.iter().flat_map(|name| ["--test", name]).collect()
}

/// Returns the names of a package's test binaries, as cargo knows them.
fn test_binaries(package: &str) -> anyhow::Result<Vec<String>> {
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

/// Runs the zoo's short check with an optimized daemon: an unoptimized one can't keep up.
fn zoo_smoke(jdks: &[installed_jdks::InstalledJdk]) -> anyhow::Result<()> {
    zoo::smoke(&needed_jdks(jdks), &build::fast()?)
}

fn needed_jdks(jdks: &[installed_jdks::InstalledJdk]) -> Vec<installed_jdks::InstalledJdk> {
    jdks.iter().filter(|jdk| installed_jdks::NEEDED.contains(&jdk.feature)).cloned().collect()
}

/// Runs a test runner, passes its standard output on, and adds up the results that `read` finds in
/// its lines.
fn counted(command: &mut Command, tests: &mut Tests, read: fn(&str) -> Option<Count>) -> anyhow::Result<()> {
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

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
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

    #[test]
    fn the_unwinders_and_the_daemons_tests_are_found() {
        assert!(test_binaries("jvmprof-common").unwrap().contains(&"snapshots".to_owned()));
        assert!(test_binaries("jvmprof-daemon").unwrap().contains(&"hotspot".to_owned()));
        assert!(test_binaries("no-such-package").is_err());
    }

    #[test]
    fn what_fails_twice_has_failed() {
        let failure = |name: &str| Failure { name: name.to_owned(), printed: String::new() };
        let run = |passed, names: &[&str]| Tests {
            count: Count { passed, failed: names.len() as u64 },
            failures: names.iter().map(|name| failure(name)).collect(),
            passed_alone: Vec::new(),
        };
        let mut tests = run(7, &["a", "b"]);
        tests.add_second_run(&run(1, &["b"]));
        assert_eq!(tests.count, Count { passed: 8, failed: 1 });
        assert_eq!((tests.failures, tests.passed_alone), (vec![failure("b")], vec![failure("a")]));
    }
}
