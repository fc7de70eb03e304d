//! The end of what `record` records, and what a command's end means for its own exit code.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::EndReason;

/// Longest time for the command to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The number that shells add to that of the signal that ended a command.
const SIGNAL_EXIT: i32 = 128;

/// The end of the command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// By itself, or by another's signal.
    Own(ExitStatus),
    /// With the recording.
    OnRequest,
    /// Not at all.
    StillRuns(u32),
}

impl CommandEnd {
    /// The exit code of a recording of this command.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Own(status) => code(*status).into(),
            Self::OnRequest | Self::StillRuns(_) => ExitCode::SUCCESS,
        }
    }

    /// A message, unless the command succeeded or ended as it was asked to.
    pub(super) fn failure(&self, program: &str) -> Option<String> {
        match self {
            Self::Own(status) if status.success() => None,
            Self::Own(status) => Some(format!("{program} ended with {status}")),
            Self::OnRequest => None,
            Self::StillRuns(pid) => {
                Some(format!("{program} was asked to end and still runs as process {pid}"))
            }
        }
    }
}

/// Returns a status as shells have it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(SIGNAL_EXIT + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Ends the command if it still runs.
pub(super) async fn end_command(child: &mut Child, reason: &EndReason) -> CommandEnd {
    if let Ok(Some(status)) = child.try_wait() {
        // Ctrl-C reaches the command, too.
        let is_own = matches!(reason, EndReason::Target) || status.signal().is_none();
        return if is_own { CommandEnd::Own(status) } else { CommandEnd::OnRequest };
    }
    if let Ok(pid) = i32::try_from(child.id()) {
        // It may end in this moment; then there is nothing to do.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return CommandEnd::OnRequest;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    CommandEnd::StillRuns(child.id())
}

/// Returns true if the command has ended, or all of these processes have.
pub(super) fn have_ended(child: Option<&mut Child>, pids: &[u32]) -> bool {
    match child {
        Some(child) => !matches!(child.try_wait(), Ok(None)),
        None => !pids.is_empty() && pids.iter().all(|pid| !is_running(*pid)),
    }
}

/// Returns true if a process exists and isn't a zombie.
fn is_running(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name before the state may hold anything, also parentheses.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_shells() {
        for (raw, expected) in [(0, 0), (7 << 8, 7), (9, 137), (11 | 128, 139)] {
            assert_eq!(code(ExitStatus::from_raw(raw)), expected, "{raw:#x}");
        }
        let own = CommandEnd::Own(ExitStatus::from_raw(3 << 8));
        assert_eq!(own.failure("make").as_deref(), Some("make ended with exit status: 3"));
        assert_eq!(
            (CommandEnd::OnRequest.failure("make"), CommandEnd::OnRequest.exit_code()),
            (None, ExitCode::SUCCESS)
        );
    }
}
