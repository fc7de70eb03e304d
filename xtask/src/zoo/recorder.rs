//! `jvmprof record` on a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::run::shown;

/// How long a program runs before a recording by its pid begins: long enough for compiled code to
/// be there.
const BEFORE: Duration = Duration::from_secs(1);

/// The part of `jvmprof record --json` that is needed here.
#[derive(Debug, Deserialize)]
struct Summary {
    losses: BTreeMap<String, u64>,
}

/// How to record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorder<'a> {
    pub(super) jvmprof: &'a Path,
    pub(super) frequency: u32,
    /// By the pid of a program that runs already, instead of from its first instruction on.
    pub(super) attach: bool,
}

impl Recorder<'_> {
    /// Records a program, given by the words of its command, to its end; returns what the recording
    /// says that it lost. `None`: this JDK can't run the program.
    ///
    /// # Errors
    /// The recording fails, or the program does.
    pub(super) fn record(
        &self,
        words: &[OsString],
        profile: &Path,
    ) -> anyhow::Result<Option<BTreeMap<String, u64>>> {
        let (summary, said) =
            if self.attach { self.beside(words, profile)? } else { self.around(words, profile)? };
        if said.lines().any(|line| line.starts_with("not here: ")) {
            return Ok(None);
        }
        // The last thing that a program says.
        if !said.lines().any(|line| line.starts_with("done ")) {
            bail!("the program {words:?} failed: {}", said.trim());
        }
        let json = summary.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
        let summary: Summary = serde_json::from_str(json)
            .with_context(|| format!("reading what the recording said: {summary}"))?;
        Ok(Some(summary.losses))
    }

    /// The recording starts the program. Returns what the recording and the program said.
    fn around(&self, words: &[OsString], profile: &Path) -> anyhow::Result<(String, String)> {
        let mut record = self.command(profile);
        let output = succeed(record.arg("--").args(words))?;
        let summary = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = format!("{summary}{}", String::from_utf8_lossy(&output.stderr));
        Ok((summary, said))
    }

    /// The recording begins when the program runs, and ends with it.
    fn beside(&self, words: &[OsString], profile: &Path) -> anyhow::Result<(String, String)> {
        let Some((program, arguments)) = words.split_first() else {
            bail!("there is no program");
        };
        let mut program = Command::new(program);
        program.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let line = shown(&program);
        let child = program.spawn().with_context(|| format!("starting `{line}`"))?;
        let mut child = Killed(child);
        sleep(BEFORE);
        let ended = child.0.try_wait().with_context(|| format!("waiting for `{line}`"))?.is_some();
        let summary = if ended {
            String::new()
        } else {
            let output = succeed(self.command(profile).arg("--pid").arg(child.0.id().to_string()))?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let mut said = String::new();
        if let Some(mut stdout) = child.0.stdout.take() {
            stdout.read_to_string(&mut said).with_context(|| format!("reading the output of `{line}`"))?;
        }
        Ok((summary, said))
    }

    fn command(&self, profile: &Path) -> Command {
        let mut record = Command::new(self.jvmprof);
        record
            .args(["record", "--json", "--frequency", &self.frequency.to_string(), "--output"])
            .arg(profile);
        record
    }
}

/// A program that doesn't outlive a recording that failed.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail if it has ended already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn succeed(command: &mut Command) -> anyhow::Result<Output> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}: {}", output.status, said.trim());
    }
    Ok(output)
}
