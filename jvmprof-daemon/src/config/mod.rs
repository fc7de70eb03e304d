//! Configuration: the command line goes before the environment, the environment before a TOML file,
//! the file before the default.
//!
//! clap's definition of the command is the only declaration of an option. Its long flag is the key
//! in the file, `JVMPROF_` and the flag in upper case is its environment variable, and its value
//! parser checks the values of all three. What the environment and the file assign becomes the
//! default of the flag, so that one parse applies the precedence ([`ConfigSchema::load`]).
//!
//! - `option`: the options of a command, and the check of a value
//! - `file`, `environment`: the values that each of them assigns, and what is wrong with them
//! - `load`: precedence, options that exclude each other, and the resulting [`Settings`]
//! - `example`: the commented file with all keys
//! - [`relabel`]: relabelling rules as Prometheus has them

mod environment;
mod error;
mod example;
mod file;
mod load;
mod option;
pub mod relabel;
mod settings;
mod suggestion;
#[cfg(test)]
mod tests;
mod toml_value;

pub use error::{ConfigError, SettingLocation, SettingProblem, SettingsError};
pub use load::{ConfigSchema, SettingsScope};
pub use settings::{Setting, SettingSource, Settings};
