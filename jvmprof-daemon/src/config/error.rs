//! Errors of a configuration, with their locations.

use std::fmt;
use std::path::PathBuf;

/// Error of loading settings from command line and configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line can't be parsed, or requests help or the version, which are no errors.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    Configuration(#[from] SettingsError),
    /// Settings that are valid by themselves exclude each other.
    #[error("{0}")]
    Contradiction(String),
}

/// All problems of an invalid configuration, not just the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct SettingsError {
    /// Problems in the order of the file, then of the environment; at least one.
    pub problems: Vec<SettingProblem>,
}

/// A problem with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    pub location: SettingLocation,
    /// Text of the problem, with the valid alternatives.
    pub text: String,
}

/// The location of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingLocation {
    /// A position in the file: line and column count from 1, the column in characters.
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
