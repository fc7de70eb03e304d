//! Running other programs: what is run is shown, and an error says what was run.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// The command as a person would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
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
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Standard output of the command, without the blanks at its ends; fails unless the command
/// succeeds.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed: {}: {}", output.status, said.trim());
    }
    let text =
        String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}` isn't UTF-8"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_so_that_they_can_be_pasted() {
        let mut command = Command::new("echo");
        command.args(["a b", "it's", "--x=1", ""]);
        assert_eq!(shown(&command), r"echo 'a b' 'it'\''s' --x=1 ''");
    }

    #[test]
    fn a_failing_command_is_named_with_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3: no"), "{text}");
    }
}
