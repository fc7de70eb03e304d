//! Errors of a configuration, with the place that each of them is at.

use std::fmt;
use std::path::PathBuf;

/// The command line and the configuration don't lead to settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line can't be parsed, or asks for help or the version, which are no errors.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    Configuration(#[from] SettingsError),
    /// Each setting is valid by itself, together they can't work.
    #[error("{0}")]
    Contradiction(String),
}

/// All problems of a configuration that can't be used, not just the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct SettingsError {
    /// At least one, in the order of the file, then of the environment.
    pub problems: Vec<SettingProblem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    pub location: SettingLocation,
    /// The problem, and what would be right.
    pub text: String,
}

/// The place where a setting is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingLocation {
    /// A place in the file: line and column count from 1, the column in characters.
    File {
        path: PathBuf,
        line: usize,
        column: usize,
    },
    /// The file as a whole.
    WholeFile(PathBuf),
    Variable(String),
}

impl fmt::Display for SettingLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::WholeFile(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

fn lines(problems: &[SettingProblem]) -> String {
    let line = |problem: &SettingProblem| format!("{}: {}", problem.location, problem.text);
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}
