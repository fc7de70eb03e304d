//! Comparison of profilers by the names that they give generated code. A program generates
//! functions A and B in turn at one address, and is recorded by jvmprof, by perf, and by
//! profile-bee where that is installed.
//!
//! A is only called by `run_a` and B only by `run_b`, so that each stack shows which one ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use super::{LoadProcess, RecordSummary};
use crate::files;
use crate::paths;
use crate::run::{command_line, run, stdout_text};
use crate::setup::packages::on_path;

/// Samples a second: several of each turn.
const FREQUENCY: &str = "997";
/// The program's arguments: where it writes its names, how many milliseconds A and B run in each
/// turn, and how many turns there are. Each run takes three seconds.
const RUNS: [[&str; 4]; 3] =
    [["perfmap", "300", "100", "8"], ["perfmap", "30", "10", "75"], ["jitdump", "30", "10", "75"]];
const PROFILE_BEE: &str = "profile-bee";

/// Samples in generated code, by whether the profiler named them rightly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NamingScore {
    right: u64,
    /// Samples in A that were named B, or the other way around.
    wrong: u64,
    unnamed: u64,
    /// Samples whose name the profiler itself marked as perhaps wrong; `None` for profilers without
    /// such a mark.
    ambiguous: Option<u64>,
}

impl NamingScore {
    /// Counts samples by their stacks, root first.
    fn of<'a>(stacks: impl Iterator<Item = (Vec<&'a str>, u64)>) -> Self {
        let mut verdict = Self::default();
        for (frames, count) in stacks {
            let Some(at) = frames.iter().position(|frame| ["run_a", "run_b"].contains(frame)) else {
                continue;
            };
            // `run` calls the generated code, and it calls nothing.
            let [inner @ .., leaf] = &frames[at..] else { continue };
            if inner.last() != Some(&"run") {
                continue;
            }
            match (frames[at], *leaf) {
                ("run_a", "jit_a") | ("run_b", "jit_b") => verdict.right += count,
                (_, "jit_a" | "jit_b") => verdict.wrong += count,
                (_, leaf) if leaf.contains("unknown") || leaf.starts_with("0x") => verdict.unnamed += count,
                _ => {}
            }
        }
        verdict
    }

    fn print(&self, profiler: &str) {
        let ambiguous = self.ambiguous.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let samples = self.right + self.wrong + self.unnamed;
        println!("  {profiler:<22}{samples:>8}{:>8}{:>9}{ambiguous:>11}", self.wrong, self.unnamed);
    }
}

/// Runs all profilers, one after the other, and prints their scores. `profile_bee` names the
/// program, else the one on `PATH` runs.
pub(super) fn compare(jvmprof: &Path, profile_bee: Option<&Path>, folder: &Path) -> anyhow::Result<()> {
    let program = compile(folder)?;
    let profile_bee =
        profile_bee.map(Path::to_owned).or_else(|| on_path(PROFILE_BEE).then(|| PROFILE_BEE.into()));
    for arguments in RUNS {
        let [file, a, b, _] = arguments;
        let traced = Traced::new(&program, arguments, folder);
        let mut verdicts = vec![("jvmprof", by_jvmprof(jvmprof, &traced)?)];
        verdicts.push(("perf script", by_perf(&traced, false)?));
        if file == "jitdump" {
            verdicts.push(("perf inject and script", by_perf(&traced, true)?));
        }
        if let Some(profile_bee) = &profile_bee {
            verdicts.push((PROFILE_BEE, by_profile_bee(profile_bee, &traced)?));
        }
        println!("\n{file}: A for {a} ms and B for {b} ms in turn at one address");
        println!("  {:<22}{:>8}{:>8}{:>9}{:>11}", "", "samples", "wrong", "unnamed", "ambiguous");
        for (profiler, verdict) in verdicts {
            verdict.print(profiler);
        }
    }
    if profile_bee.is_none() {
        println!("\n{PROFILE_BEE} isn't there: `cargo install {PROFILE_BEE}`, or name it by --profile-bee");
    }
    Ok(())
}

fn compile(folder: &Path) -> anyhow::Result<PathBuf> {
    let program = folder.join("alternate");
    let source = paths::workspace().join("jvmprof-daemon/tests/jit/programs/alternate.c");
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-O1",
        "-static",
        "-fno-omit-frame-pointer",
        "-fno-inline",
        "-fno-optimize-sibling-calls",
        "-o",
    ]);
    run(gcc.arg(&program).arg(source)).context("compiling the program (Debian: gcc and libc6-dev)")?;
    Ok(program)
}

/// The program as each profiler runs it.
#[derive(Debug)]
struct Traced<'a> {
    command: Vec<String>,
    folder: &'a Path,
}

impl<'a> Traced<'a> {
    fn new(program: &Path, arguments: [&str; 4], folder: &'a Path) -> Self {
        // Its pid is in the names of the files that it leaves behind.
        let script = r#"echo $$ > "$0"; exec "$@" > /dev/null"#;
        let pid = folder.join("pid").display().to_string();
        let command = ["sh", "-c", script, &pid, &program.display().to_string()].map(str::to_owned);
        Self { command: command.into_iter().chain(arguments.map(str::to_owned)).collect(), folder }
    }

    /// Runs a profiler that starts the program, and returns its standard output.
    fn run(&self, profiler: &mut Command) -> anyhow::Result<Vec<u8>> {
        profiler.arg("--").args(&self.command).stdin(Stdio::null()).stderr(Stdio::inherit());
        let line = command_line(profiler);
        eprintln!("$ {line}");
        let done = profiler.output().with_context(|| format!("starting `{line}`"))?;
        if !done.status.success() {
            bail!("`{line}` failed: {}", done.status);
        }
        Ok(done.stdout)
    }

    /// Starts the program with many more turns than any recording lasts.
    fn start_for_long(&self) -> anyhow::Result<LoadProcess> {
        let [program, arguments @ .., _turns] = &self.command[..] else {
            bail!("starting the program: its command is empty")
        };
        LoadProcess::start(Command::new(program).args(arguments).arg("1000000"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Removes the files that the program wrote in `/tmp`, and those that `perf inject` made from
    /// them.
    fn clean_up(&self) -> anyhow::Result<()> {
        let file = self.file("pid");
        let pid = files::read_text(&file)?;
        let pid = pid.trim();
        let names = [format!("perf-{pid}.map"), format!("jit-{pid}.dump")];
        let made = format!("jitted-{pid}-");
        for entry in fs::read_dir("/tmp").context("reading /tmp")?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if names.iter().any(|it| *it == name) || name.starts_with(&made) {
                let path = entry.path();
                fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        Ok(())
    }
}

fn by_jvmprof(jvmprof: &Path, traced: &Traced<'_>) -> anyhow::Result<NamingScore> {
    let stacks = traced.file("jvmprof.folded");
    let mut command = Command::new(jvmprof);
    let json = traced.run(command.args(["record", "--json", "-F", FREQUENCY, "-o"]).arg(&stacks))?;
    traced.clean_up()?;
    let summary: RecordSummary =
        serde_json::from_slice(&json).context("parsing the summary of `jvmprof record`")?;
    let ambiguous = summary.losses.get("ambiguous_jit_frames").copied().unwrap_or(0);
    Ok(NamingScore { ambiguous: Some(ambiguous), ..of_folded(&stacks)? })
}

/// Attaches to a program that runs on: profile-bee resolves names when it ends, and a program that
/// it has started itself is gone by then.
fn by_profile_bee(profile_bee: &Path, traced: &Traced<'_>) -> anyhow::Result<NamingScore> {
    let stacks = traced.file("profile-bee.folded");
    let load = traced.start_for_long()?;
    let mut command = Command::new(profile_bee);
    command.args(["--frequency", FREQUENCY, "--time", "3000", "--pid", &load.pid().to_string(), "--output"]);
    // It prints its log on standard output, too.
    stdout_text(command.arg(&stacks))?;
    drop(load);
    traced.clean_up()?;
    of_folded(&stacks)
}

/// Records with perf. `is_injected`: the jitdump's code is made part of the recording first, as its
/// documentation asks for.
fn by_perf(traced: &Traced<'_>, is_injected: bool) -> anyhow::Result<NamingScore> {
    let (recorded, injected) = (traced.file("perf.data"), traced.file("perf.jit.data"));
    let mut record = Command::new("perf");
    // Without build ids: perf 6.1 is ended by a check of its own when it collects them on kernel
    // 6.18.
    record.args(["record", "--quiet", "--no-buildid", "-k", "mono", "-F", FREQUENCY]);
    traced.run(record.args(["--call-graph", "fp", "-o"]).arg(&recorded))?;
    let mut data = &recorded;
    if is_injected {
        run(Command::new("perf").args(["inject", "--jit", "-i"]).arg(&recorded).arg("-o").arg(&injected))?;
        data = &injected;
    }
    let script = stdout_text(Command::new("perf").args(["script", "-F", "ip,sym", "-i"]).arg(data))?;
    traced.clean_up()?;
    Ok(of_script(&script))
}

fn of_folded(path: &Path) -> anyhow::Result<NamingScore> {
    let text = files::read_text(path)?;
    let stacks = text.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((stack.split(';').collect(), count.parse().ok()?))
    });
    Ok(NamingScore::of(stacks))
}

/// Scores the output of `perf script`: a block a sample, with one line a frame, the leaf first.
fn of_script(script: &str) -> NamingScore {
    let blocks = script.split("\n\n");
    NamingScore::of(blocks.map(|block| {
        let frames = block.lines().rev().filter_map(|line| Some(line.trim().split_once(' ')?.1));
        (frames.collect(), 1)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_judged_by_who_called() {
        let script = "\n\t 8b jit_b\n\t 16 run\n\t 1d run_a\n\t 1e main\n\n\
                      \n\t 8b jit_b\n\t 16 run\n\t 1d run_b\n\t 1e main\n\n\
                      \n\t 8b [unknown]\n\t 16 run\n\t 1d run_b\n\t 1e main\n\n\
                      \n\t 8b clock_gettime\n\t 16 now\n\t 1d run_b\n\t 1e main\n";
        let expected = NamingScore { right: 1, wrong: 1, unnamed: 1, ambiguous: None };
        assert_eq!(of_script(script), expected);
    }
}
