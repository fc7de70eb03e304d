//! `cargo xtask test`: everything that has to hold on a commit, setup included.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;
use std::{fs, io};

use anyhow::{Context as _, bail};

use crate::run::{output, run, shown};
use crate::{build, ebpf, jdk, kernels, packages, paths, python, soak, test_packages, tools, zoo};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Trust that the machine has what the tests need
    #[arg(long)]
    no_setup: bool,
}

/// Tests that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

type Step<'a> = (&'a str, Box<dyn Fn() -> anyhow::Result<()> + 'a>);

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if output(Command::new("id").arg("-u"))? != "0" {
        bail!("the tests load kernel programs and read other processes: run them as root");
    }
    let (jdks, python, packages) = if args.no_setup {
        (jdk::found(), python::found().unwrap_or_default(), test_packages::folder())
    } else {
        packages::install(packages::FOR_TESTS)?;
        (jdk::ensure()?, python::ensure()?, test_packages::ensure()?)
    };
    let list = jdk::list(&jdks);
    eprintln!("{}={list}", jdk::TEST_JDKS);
    eprintln!("{}={}", python::TEST_PYTHON, python.display());
    eprintln!("{}={}", test_packages::TEST_PACKAGES, packages.display());

    let mut failures: Vec<String> = Vec::new();
    let mut step = |name: &str, work: &dyn Fn() -> anyhow::Result<()>| {
        eprintln!("\n== {name}");
        let started = Instant::now();
        if let Err(error) = work() {
            eprintln!("error: {error:#}");
            failures.push(format!("{name}: {error:#}"));
        }
        eprintln!("== {name}: {:.0} s", started.elapsed().as_secs_f64());
    };
    let checks: [Step<'_>; 4] = [
        ("rustfmt", Box::new(rustfmt)),
        ("clippy", Box::new(clippy)),
        ("cargo deny", Box::new(deny)),
        ("kernel programs are current", Box::new(ebpf::check)),
    ];
    for (name, work) in &checks {
        step(name, work);
    }
    let total = Cell::new(Count::default());
    let tests: [Step<'_>; 5] = [
        ("node --test", Box::new(|| node_tests(&total))),
        ("cargo test", Box::new(|| cargo_tests(&total, &list, &python, &packages))),
        ("stacks of the zoo's programs", Box::new(|| zoo_smoke(&jdks))),
        ("a short soak", Box::new(soak::short)),
        ("kernel 6.12", Box::new(|| kernels::check(&[kernels::Line::V6_12], None))),
    ];
    for (name, work) in &tests {
        step(name, work);
    }

    let mut count = total.get();
    // A check that failed, or a test binary that died, is no test: it must not close with "0
    // failed" all the same.
    if count.failed == 0 {
        count.failed = failures.len() as u64;
    }
    for failure in &failures {
        eprintln!("failed: {failure}");
    }
    // CI reads this line as the run's result, so nothing comes after it.
    println!("{} passed, {} failed", count.passed, count.failed);
    io::stdout().flush().context("writing to standard output")?;
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn rustfmt() -> anyhow::Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&["fmt", "--check"]).current_dir(paths::ebpf_crate()))
}

fn clippy() -> anyhow::Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    ebpf::clippy()
}

/// Licences, bans and sources always; advisories where their database can be had.
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

/// Tests written for node: `*.test.mjs` of the daemon's page.
fn node_tests(total: &Cell<Count>) -> anyhow::Result<()> {
    let mut files = Vec::new();
    find_node_tests(&paths::workspace().join("jvmprof-daemon"), &mut files)?;
    if files.is_empty() {
        eprintln!("there are none");
        return Ok(());
    }
    files.sort();
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap"]).args(&files).current_dir(paths::workspace());
    counted(&mut node, total, node_line)
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

/// In the dev profile: it builds in half the time of a release, and overflows and debug assertions
/// fail tests.
fn cargo_tests(total: &Cell<Count>, jdks: &str, python: &Path, packages: &Path) -> anyhow::Result<()> {
    let mut tests = cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--", "--include-ignored"]);
    // These make fixtures, and judge files that are named to them.
    tests.args(["--skip", "record_jvms", "--skip", "rows_of_other_files"]);
    tests.env(jdk::TEST_JDKS, jdks).env(python::TEST_PYTHON, python);
    tests.env(test_packages::TEST_PACKAGES, packages);
    counted(&mut tests, total, cargo_line)
}

/// An unoptimized daemon can't keep up with it.
fn zoo_smoke(jdks: &[jdk::Jdk]) -> anyhow::Result<()> {
    let needed: Vec<jdk::Jdk> =
        jdks.iter().filter(|jdk| jdk::NEEDED.contains(&jdk.feature)).cloned().collect();
    zoo::smoke(&needed, &build::fast()?)
}

/// Runs a test runner, passes its standard output on, and adds up the results that `read` finds in
/// its lines.
fn counted(
    command: &mut Command,
    total: &Cell<Count>,
    read: fn(&str) -> Option<Count>,
) -> anyhow::Result<()> {
    let line = shown(command);
    eprintln!("$ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{line}`"))?;
    let mut sum = total.get();
    let stdout = child.stdout.take().context("the runner's output isn't there")?;
    for text in BufReader::new(stdout).split(b'\n') {
        let text = text.with_context(|| format!("reading the output of `{line}`"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        if let Some(result) = read(&text) {
            sum.passed += result.passed;
            sum.failed += result.failed;
        }
    }
    total.set(sum);
    let status = child.wait().with_context(|| format!("waiting for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; ...`
fn cargo_line(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Count { passed: number(" passed")?, failed: number(" failed")? })
}

/// `# pass 3` and `# fail 0` of node's TAP summary.
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
    fn results_of_node_are_read() {
        assert_eq!(node_line("# pass 7"), Some(Count { passed: 7, failed: 0 }));
        assert_eq!(node_line("# fail 2"), Some(Count { passed: 0, failed: 2 }));
        assert_eq!(node_line("# Subtest: passes 3"), None);
    }
}
