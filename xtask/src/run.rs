//! Running other programs. Commands are shown, and errors name the command that failed.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::files;

/// Formats the command as a person would type it, without its environment.
pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns a command of cargo with the environment of a shell. What the cargo that has started this
/// program says of its package makes build scripts that read that run again, such as ring's: all
/// that is above ring would be built anew after each cargo command that a person types.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in env::vars_os().filter(|(name, _)| is_of_package(name)) {
        cargo.env_remove(name);
    }
    cargo
}

fn is_of_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|begin| name.starts_with(begin))
}

/// Shows the command, runs it with this process's output, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs the command and captures its output; fails unless it succeeds.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Output> {
    let line = command_line(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}: {}", output.status, stderr.trim());
    }
    Ok(output)
}

/// Returns the standard output of the command, without the blanks at its ends; fails unless the
/// command succeeds.
pub(crate) fn stdout_text(command: &mut Command) -> anyhow::Result<String> {
    let output = output(command)?;
    let text = String::from_utf8(output.stdout)
        .with_context(|| format!("reading the output of `{}` as UTF-8", command_line(command)))?;
    Ok(text.trim().to_owned())
}

/// Fails unless this process is root's; `why` says what needs that.
pub(crate) fn require_root(why: &str) -> anyhow::Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "{why}: run it as root");
    Ok(())
}

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail if it has ended already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child process whose output goes to a log. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct LoggedProcess {
    child: KillOnDrop,
    log: PathBuf,
}

impl LoggedProcess {
    /// Shows the command and starts it. What it writes is appended to the log.
    pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let line = command_line(command);
        eprintln!("$ {line} &");
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("opening {} twice", log.display()))?;
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().with_context(|| format!("starting `{line}`"))?;
        Ok(Self { child: KillOnDrop(child), log: log.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Fails if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.0.try_wait().context("waiting for a process")? {
            Some(status) => {
                bail!("a process has ended by itself: {status}; {} has the reason", self.log.display())
            }
            None => Ok(()),
        }
    }

    /// Returns the log.
    pub(crate) fn written(&self) -> anyhow::Result<String> {
        files::read_text(&self.log)
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid()).context("a pid is out of range")?);
        kill(pid, signal).with_context(|| format!("sending {signal}"))
    }

    /// Sends a signal, and waits for the end: by SIGTERM it has to end in good order.
    pub(crate) fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.signal(signal)?;
        let status = self.child.0.wait().context("waiting for a process")?;
        if signal == Signal::SIGTERM && !status.success() {
            bail!("a process has ended with {status}; {} has the reason", self.log.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_so_that_they_can_be_pasted() {
        let mut command = Command::new("echo");
        command.args(["a b", "it's", "--x=1", ""]);
        assert_eq!(command_line(&command), r"echo 'a b' 'it'\''s' --x=1 ''");
    }

    #[test]
    fn cargo_knows_nothing_of_the_package_of_this_program() {
        let cargo = cargo();
        let removed = |name: &str| cargo.get_envs().any(|(it, value)| it == name && value.is_none());
        assert!(env::var_os("CARGO_PKG_NAME").is_none() || removed("CARGO_PKG_NAME"));
        assert!(is_of_package(OsStr::new("CARGO_MANIFEST_DIR")));
        assert!(!removed("CARGO_HOME") && !is_of_package(OsStr::new("CARGO_HOME")));
    }

    #[test]
    fn a_failing_command_is_named_with_its_errors() {
        let error = stdout_text(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3: no"), "{text}");
    }
}
