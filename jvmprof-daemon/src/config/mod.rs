//! Settings: the command line, environment variables and a TOML file, all three derived from one
//! definition of flags.
//!
//! A flag's long name is its key in the file; `JVMPROF_` and the name in upper case is its
//! variable. What the command line doesn't say is looked up in the environment, then in the file,
//! and appended to the command line, so that one parser checks everything and nothing has to be
//! declared twice.

mod document;
mod error;
mod example;
mod keys;
pub mod relabel;
mod resolve;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, Place, Problem};
pub use example::example;
pub use keys::{with_variables, without_variables};
pub use resolve::{Resolved, Resolver, Setting, Source};

/// Which flags are settings.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The subcommand whose flags, together with the global ones, are settings.
    pub subcommand: &'static str,
    /// Its flags that only make sense on the command line.
    pub command_line_only: &'static [&'static str],
    /// The flag that names the file. It has a variable and no key.
    pub file_flag: &'static str,
}
