//! Running other programs. Commands are shown, and errors name the command that failed.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, bail, ensure};

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
    fn a_failing_command_is_named_with_its_errors() {
        let error = stdout_text(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3: no"), "{text}");
    }
}
