//! Settings: from the command line, the environment and the file to arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use super::args::Cli;
use crate::config::{ConfigError, Resolved, Resolver, Scope, with_variables, without_variables};

/// The daemon's flags are settings.
pub(super) const SCOPE: Scope = Scope {
    subcommand: "daemon",
    command_line_only: &["config", "check-config", "example-config"],
    file_flag: "config",
};

/// A command line that was understood, completed by the environment and the file.
#[derive(Debug)]
pub struct Loaded {
    pub cli: Cli,
    pub resolved: Resolved,
}

/// Why it wasn't.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Also asking for help or the version, which are no errors.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// Each flag is right by itself, together they can't work.
    #[error("{0}")]
    Together(String),
}

/// The command line with the variables of its flags.
pub fn command() -> clap::Command {
    with_variables(Cli::command(), &SCOPE)
}

/// Reads this process's command line and environment and the file that they name.
///
/// # Errors
/// One of them isn't right, or all that is asked for is help.
pub fn load() -> Result<Loaded, LoadError> {
    load_from(std::env::args_os().collect(), &std::env::vars_os().collect())
}

/// The same of any command line and environment.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    argv: Vec<OsString>,
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Loaded, LoadError> {
    let resolved = Resolver::new(command(), SCOPE).resolve(argv, environment)?;
    // The resolver has looked at variables already. Help is to tell them.
    let parse = |command: clap::Command| command.try_get_matches_from(&resolved.argv);
    let matches = parse(without_variables(command(), &resolved))
        .or_else(|error| if error.use_stderr() { Err(error) } else { parse(command()) });
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        let text = error.to_string();
        let told = resolved.with_places(&text);
        let is_more = error.use_stderr() && told.len() > text.len();
        if is_more { LoadError::Together(told) } else { LoadError::CommandLine(error) }
    })?;
    Ok(Loaded { cli, resolved })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::app::args::Command;
    use crate::config::example;

    fn load(line: &str) -> Result<Loaded, LoadError> {
        load_from(line.split(' ').map(OsString::from).collect(), &BTreeMap::new())
    }

    fn deployed() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/jvmprof.toml")
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_deployed_example_is_current() {
        let deployed = std::fs::read_to_string(deployed()).expect("deploy/jvmprof.toml is there");
        assert_eq!(
            deployed,
            example(Cli::command(), &SCOPE),
            "`jvmprof daemon --example-config > deploy/jvmprof.toml` brings it up to date"
        );
    }

    #[test]
    fn the_deployed_example_says_the_defaults() {
        let text = std::fs::read_to_string(deployed()).expect("deploy/jvmprof.toml is there");
        let settings: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')))
            .map(|line| format!("{line}\n"))
            .collect();
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(file.path(), &settings).expect("written");
        let said = load(&format!("jvmprof daemon --config {}", file.path().display())).expect("it is valid");
        let defaults = load("jvmprof daemon").expect("it is valid");
        assert_eq!(said.resolved.settings.len(), settings.lines().count());
        for (name, setting) in &said.resolved.settings {
            assert_eq!(setting.values, defaults.resolved.settings[name].values, "{name}");
        }
        let arguments = |loaded: Loaded| {
            let mut cli = loaded.cli;
            if let Command::Daemon(args) = &mut cli.command {
                args.config.config = None;
            }
            format!("{cli:?}")
        };
        assert_eq!(arguments(said), arguments(defaults));
    }
}
