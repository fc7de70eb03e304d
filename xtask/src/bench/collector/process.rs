//! The collector, and daemons that push to it: children with logs, and what the kernel has counted
//! of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::files;
use crate::run::{KillOnDrop, command_line};

/// Clock ticks of `/proc/PID/stat` a second: the same on each x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// A child that is killed when this value is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: KillOnDrop,
    log: PathBuf,
}

/// The resources that a process has taken so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    pub(super) peak_mib: f64,
}

impl Process {
    /// Starts a command; what it writes goes to a file.
    pub(super) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let line = command_line(command);
        eprintln!("$ {line} &");
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("opening {} twice", log.display()))?;
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().with_context(|| format!("starting `{line}`"))?;
        Ok(Self { child: KillOnDrop(child), log: log.to_owned() })
    }

    /// # Errors
    /// It has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.0.try_wait().context("waiting for a process")? {
            Some(status) => bail!("a process has ended: {status}; {} has the reason", self.log.display()),
            None => Ok(()),
        }
    }

    /// Returns what it has written so far.
    pub(super) fn written(&self) -> anyhow::Result<String> {
        files::read_text(&self.log)
    }

    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        let read =
            |file: &str| files::read_text(&PathBuf::from(format!("/proc/{}/{file}", self.child.0.id())));
        usage_of(&read("stat")?, &read("status")?).context("parsing what the kernel says of the collector")
    }

    /// Ends it in good order, and returns all that it has written.
    pub(super) fn end(&mut self) -> anyhow::Result<String> {
        let pid = Pid::from_raw(i32::try_from(self.child.0.id()).context("a pid is out of range")?);
        kill(pid, Signal::SIGTERM).context("sending SIGTERM")?;
        let status = self.child.0.wait().context("waiting for a process")?;
        if !status.success() {
            bail!("a process has ended with {status}; {} has the reason", self.log.display());
        }
        self.written()
    }
}

/// Parses `/proc/PID/stat` and `/proc/PID/status`.
fn usage_of(stat: &str, status: &str) -> Option<Usage> {
    // The name before it may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u32>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u32 = peak.split_whitespace().next()?.parse().ok()?;
    Some(Usage {
        cpu_seconds: (f64::from(user) + f64::from(system)) / TICKS_PER_SECOND,
        peak_mib: f64::from(kib) / 1024.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_of_a_process_with_an_odd_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 5 0 1 2 3";
        let usage = usage_of(stat, "Name:\ta) b\nVmHWM:\t    2048 kB\n");
        assert_eq!(usage, Some(Usage { cpu_seconds: 2.0, peak_mib: 2.0 }));
        assert_eq!(usage_of(stat, "Name:\ta) b\n"), None);
    }
}
