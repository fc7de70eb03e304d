//! Recordings of programs by `jvmprof record`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::run::{KillOnDrop, command_line, output};

/// Time that a program runs before a recording by its pid begins: long enough for compiled code to
/// be there.
const BEFORE: Duration = Duration::from_secs(1);

/// The part of `jvmprof record --json` that the zoo needs.
#[derive(Debug, Deserialize)]
struct RecordedLosses {
    losses: BTreeMap<String, u64>,
}

/// The event that a recording is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RecordedEvent {
    #[default]
    Cpu,
    Alloc,
    Offcpu,
}

impl RecordedEvent {
    /// Returns the options for many of its stacks, without classes of objects.
    fn options(self) -> &'static str {
        match self {
            Self::Cpu => "--event cpu",
            Self::Alloc => "--event alloc --alloc-class off --alloc-interval 16KiB --alloc-max-events 10000",
            Self::Offcpu => "--event offcpu --offcpu-min 0s --offcpu-interval 1us --offcpu-max-events 10000",
        }
    }
}

/// Options of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorder<'a> {
    pub(super) jvmprof: &'a Path,
    pub(super) frequency: u32,
    pub(super) event: RecordedEvent,
    /// True for a recording by the pid of a running program, false for one from the program's first
    /// instruction on.
    pub(super) attach: bool,
}

impl Recorder<'_> {
    /// Records a program, given by the words of its command, to its end. Returns the losses that
    /// the recording reports, or `None` if this JDK can't run the program.
    ///
    /// # Errors
    /// The recording fails, or the program does.
    pub(super) fn record(
        &self,
        words: &[OsString],
        profile: &Path,
    ) -> anyhow::Result<Option<BTreeMap<String, u64>>> {
        let (summary, output) =
            if self.attach { self.beside(words, profile)? } else { self.around(words, profile)? };
        if output.lines().any(|line| line.starts_with("not here: ")) {
            return Ok(None);
        }
        // The last line of a program's output.
        if !output.lines().any(|line| line.starts_with("done ")) {
            bail!("the program {words:?} failed: {}", output.trim());
        }
        let json = summary.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
        let summary: RecordedLosses = serde_json::from_str(json)
            .with_context(|| format!("parsing the summary of `jvmprof record`: {summary}"))?;
        Ok(Some(summary.losses))
    }

    /// Records a program that the recording starts. Returns the recording's and the program's
    /// output.
    fn around(&self, words: &[OsString], profile: &Path) -> anyhow::Result<(String, String)> {
        let mut record = self.command(profile);
        let output = output(record.arg("--").args(words))?;
        let summary = String::from_utf8_lossy(&output.stdout).into_owned();
        let printed = format!("{summary}{}", String::from_utf8_lossy(&output.stderr));
        Ok((summary, printed))
    }

    /// Starts a program, then records it by its pid until it ends. Returns the recording's and the
    /// program's output.
    fn beside(&self, words: &[OsString], profile: &Path) -> anyhow::Result<(String, String)> {
        let Some((program, arguments)) = words.split_first() else {
            bail!("recording a program: its command is empty");
        };
        let mut program = Command::new(program);
        program.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let line = command_line(&program);
        let child = program.spawn().with_context(|| format!("starting `{line}`"))?;
        let mut child = KillOnDrop(child);
        sleep(BEFORE);
        let ended = child.0.try_wait().with_context(|| format!("waiting for `{line}`"))?.is_some();
        let summary = if ended {
            String::new()
        } else {
            let output = output(self.command(profile).arg("--pid").arg(child.0.id().to_string()))?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let mut printed = String::new();
        if let Some(mut stdout) = child.0.stdout.take() {
            stdout.read_to_string(&mut printed).with_context(|| format!("reading the output of `{line}`"))?;
        }
        Ok((summary, printed))
    }

    fn command(&self, profile: &Path) -> Command {
        let mut record = Command::new(self.jvmprof);
        record
            .args(["record", "--json", "--frequency", &self.frequency.to_string(), "--output"])
            .arg(profile)
            .args(self.event.options().split(' '));
        record
    }
}
