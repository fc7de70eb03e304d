//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

/// A configuration that can't be used: all that was found, not just the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.problems))]
pub struct ConfigError {
    /// At least one, in the order of the file, then of the environment.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// What, and what would be right.
    pub text: String,
}

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::WholeFile(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
