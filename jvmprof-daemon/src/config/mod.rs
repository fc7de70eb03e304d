//! Configuration: the command line overrides the environment, the environment overrides a TOML
//! file, the file overrides the default.
//!
//! clap's definition of the command is the only declaration of an option. Its long flag is the key
//! in the file, `JVMPROF_` and the flag in upper case is its environment variable, and its value
//! parser checks the values of all three. Values of the file and the environment become the flag's
//! default, so that one parse applies the precedence ([`ConfigSchema::load`]).
//!
//! - `option`: the options of a command, and the check of a value
//! - `file`, `environment`: the values that each of them assigns, and their problems
//! - `load`: precedence, options that exclude each other, and the resulting [`Settings`]
//! - `example`: the commented file with all keys
//! - [`relabel`]: relabelling rules of Prometheus

mod environment;
mod error;
mod example;
mod file;
mod option;
mod precedence;
pub mod relabel;
mod settings;
mod suggestion;
#[cfg(test)]
mod tests;
mod toml_value;

pub use error::{ConfigError, SettingLocation, SettingProblem, SettingsError};
pub use precedence::{ConfigSchema, SettingsScope};
pub use settings::{Setting, SettingSource, Settings};
