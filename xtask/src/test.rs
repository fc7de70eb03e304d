//! `cargo xtask test`: all checks and tests of a commit, setup included.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::ebpf;
use crate::kernels;
use crate::paths;
use crate::run::{command_line, output, require_root, run};
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
    count: Count,
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Suites {
    finished: Vec<Finished>,
    /// What was left out, and why.
    not_run: Vec<String>,
}

impl Suites {
    /// Runs a suite, which adds its tests to the count; a failure is kept for the end.
    fn run(&mut self, name: &str, work: impl FnOnce(&mut Count) -> anyhow::Result<()>) {
        eprintln!("\n== {name}");
        let (started, mut count) = (Instant::now(), Count::default());
        let error = work(&mut count).err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            eprintln!("error: {error}");
        }
        let finished = Finished { name: name.to_owned(), took: started.elapsed(), count, error };
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
        let mut failed = self.finished.iter().map(|suite| suite.count.failed).sum::<u64>();
        for suite in &self.finished {
            if let Some(error) = &suite.error {
                eprintln!("failed: {}: {error}", suite.name);
                // A check that failed, or a test binary that died, counts no test: the run must
                // not close with "0 failed" all the same.
                failed += u64::from(suite.count.failed == 0);
            }
        }
        for what in &self.not_run {
            eprintln!("NOT RUN: {what}");
        }
        let passed = self.finished.iter().map(|suite| suite.count.passed).sum::<u64>();
        println!("{passed} passed, {failed} failed");
        io::stdout().flush().context("writing to standard output")?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Finished {
    fn line(&self) -> String {
        let Count { passed, failed } = self.count;
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
        suites.run("unit tests", |count| cargo_tests(count, &setup, UNIT_TESTS));
        suites
            .run("unwinder", |count| cargo_tests(count, &setup, &chosen(&test_binaries("jvmprof-common")?)));
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
    suites.run("node --test", node_tests);
    suites.run("unit tests", |count| cargo_tests(count, &setup, UNIT_TESTS));
    suites.run("documentation tests", |count| cargo_tests(count, &setup, &["--doc"]));
    suites.run("unwinder", |count| cargo_tests(count, &setup, &chosen(&test_binaries("jvmprof-common")?)));
    // One after another: what they measure mustn't be disturbed.
    for name in test_binaries("jvmprof-daemon")? {
        let is_missing = |server: &&servers::Server| name == SERVERS && !server.path().is_file();
        let missing = servers::LARGE.iter().filter(is_missing).map(|server| server.name);
        let missing: Vec<&str> = missing.collect();
        suites.run(&name, |count| cargo_tests_without(count, &setup, &["--test", &name], &missing));
        let why = if args.servers { "it couldn't be built" } else { "`--servers` builds it" };
        suites.not_run.extend(missing.iter().map(|server| format!("tests of {server}: {why}")));
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
    if let Err(error) = output(&mut command(&manifests[0], &["fetch", "db"])) {
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

/// Runs the tests written for node: `*.test.mjs` of the daemon's page.
fn node_tests(count: &mut Count) -> anyhow::Result<()> {
    let mut files = Vec::new();
    find_node_tests(&paths::workspace().join("jvmprof-daemon"), &mut files)?;
    if files.is_empty() {
        eprintln!("there are none");
        return Ok(());
    }
    files.sort();
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap"]).args(&files).current_dir(paths::workspace());
    counted(&mut node, count, node_line)
}

fn find_node_tests(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "node_modules" && name != "target" {
                find_node_tests(&path, files)?;
            }
        } else if name.to_string_lossy().ends_with(".test.mjs") {
            files.push(path);
        }
    }
    Ok(())
}

const UNIT_TESTS: &[&str] = &["--lib", "--bins"];
/// The test binary whose modules push to one server each.
const SERVERS: &str = "servers";

/// Runs these tests of the workspace. Each call names the whole workspace, so that dependencies are
/// built once, with one set of features. In the dev profile: it builds in half the time of a
/// release, and overflows and debug assertions fail tests.
fn cargo_tests(count: &mut Count, setup: &Setup, which: &[&str]) -> anyhow::Result<()> {
    cargo_tests_without(count, setup, which, &[])
}

/// As [`cargo_tests`], without the tests that have one of these in their names.
fn cargo_tests_without(
    count: &mut Count,
    setup: &Setup,
    which: &[&str],
    left_out: &[&str],
) -> anyhow::Result<()> {
    let mut tests = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    tests.args(which);
    if which != ["--doc"] {
        tests.args(["--", "--include-ignored"]);
        // These make fixtures, and evaluate files that are named to them.
        let makers = ["record_jvms", "rows_of_other_files"];
        tests.args(makers.iter().chain(left_out).flat_map(|name| ["--skip", name]));
    }
    counted(tests.envs(setup.environment()), count, cargo_line)
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
    let text = output(&mut cargo(&["metadata", "--no-deps", "--format-version=1", "--locked"]))?;
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
fn counted(command: &mut Command, count: &mut Count, read: fn(&str) -> Option<Count>) -> anyhow::Result<()> {
    let line = command_line(command);
    eprintln!("$ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{line}`"))?;
    let stdout = child.stdout.take().context("the runner's output isn't there")?;
    for text in BufReader::new(stdout).split(b'\n') {
        let text = text.with_context(|| format!("reading the output of `{line}`"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        if let Some(result) = read(&text) {
            count.passed += result.passed;
            count.failed += result.failed;
        }
    }
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

/// Parses `# pass 3` and `# fail 0` of node's TAP summary.
fn node_line(line: &str) -> Option<Count> {
    let (what, number) = line.strip_prefix("# ")?.split_once(' ')?;
    let number = number.parse().ok()?;
    match what {
        "pass" => Some(Count { passed: number, failed: 0 }),
        "fail" => Some(Count { passed: 0, failed: number }),
        _ => None,
    }
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
    fn results_of_node_are_read() {
        assert_eq!(node_line("# pass 7"), Some(Count { passed: 7, failed: 0 }));
        assert_eq!(node_line("# fail 2"), Some(Count { passed: 0, failed: 2 }));
        assert_eq!(node_line("# Subtest: passes 3"), None);
    }
}
