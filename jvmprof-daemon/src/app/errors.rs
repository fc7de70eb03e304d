//! Errors that the commands end with, and how they are printed.

/// Exit code for a command line that can't be carried out as it is (`EX_USAGE` of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// A command line that parsed but asks for something that can't be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// Lines of an error with the verifier's log that are worth reading.
const MAX_LINES: usize = 12;

/// Returns an error's text with those of all its causes, each said once.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
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
