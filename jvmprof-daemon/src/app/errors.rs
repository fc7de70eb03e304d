//! Errors that the commands end with, how they are printed, and their exit codes.

use std::io;
use std::process::ExitCode;

use crate::own_process::capabilities::{self, Capability};
use crate::own_process::pid_namespace;

/// Exit code for a command line that can't be carried out as it is (`EX_USAGE` of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// A command line that parsed but asks for something that can't be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// A command that `record` can't start.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}: {source}")]
pub(super) struct CommandError {
    pub(super) program: String,
    pub(super) source: io::Error,
}

/// Shells' exit codes for a command that isn't there, or can't be run.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// Returns the exit code of an error.
pub(super) fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<UsageError>() {
        return EXIT_USAGE.into();
    }
    match error.downcast_ref::<CommandError>().map(|error| error.source.kind()) {
        Some(io::ErrorKind::NotFound) => EXIT_NOT_FOUND.into(),
        Some(_) => EXIT_NOT_EXECUTABLE.into(),
        None => ExitCode::FAILURE,
    }
}

/// The reason why there is nothing that this process could profile.
#[derive(Debug, thiserror::Error)]
pub(super) enum CannotProfile {
    #[error(
        "profiling needs {}, which this process hasn't: {} (`jvmprof doctor` lists all that is missing)",
        names(.missing),
        capabilities::advice(&capabilities::missing(&capabilities::PROFILING))
    )]
    Capabilities { missing: Vec<Capability> },
    /// Samples would be taken for those of other processes, which have the same pids here.
    #[error(
        "profiling needs the host's pids, and this process is in a container's own pid namespace: the \
         kernel programs see other pids than this process does; {}",
        pid_namespace::ADVICE
    )]
    PidNamespace,
}

fn names(missing: &[Capability]) -> String {
    missing.iter().map(|it| it.name).collect::<Vec<_>>().join(" and ")
}

/// Checks what the kernel would refuse with less to say, or wouldn't refuse at all.
///
/// # Errors
/// Kernel programs can't be loaded, or attached to perf events of all processes; or the pids that
/// they see aren't those that this process sees. Where `/proc` doesn't say which it sees, as in a
/// container without it, they count as the host's.
pub(super) fn check_can_profile() -> Result<(), CannotProfile> {
    let missing = capabilities::missing(&[capabilities::BPF, capabilities::PERFMON]);
    if !missing.is_empty() {
        return Err(CannotProfile::Capabilities { missing });
    }
    match pid_namespace::is_initial() {
        Ok(false) => Err(CannotProfile::PidNamespace),
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Lines of an error with the verifier's log that are worth reading.
const MAX_LINES: usize = 12;

/// Returns an error's text with those of all its causes, each said once.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for said in anyhow::Chain::new(error).skip(1).map(ToString::to_string) {
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
    }
    text.lines().take(MAX_LINES).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once_also_if_errors_repeat_it() {
        let io = std::io::Error::other("no memory");
        let repeating = anyhow::Error::new(crate::sampler::SamplerError::Thread { source: io });
        let error = repeating.context("cannot sample");
        assert_eq!(
            with_causes(error.as_ref()),
            "cannot sample: starting the thread that reads the rings: no memory"
        );
        let plain = std::fs::read("/nowhere/x").context("cannot read").expect_err("there is no such file");
        assert_eq!(with_causes(plain.as_ref()), "cannot read: No such file or directory (os error 2)");
    }
}
