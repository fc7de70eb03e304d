//! Settings of the daemon: from command line, environment and file to arguments, and what can be
//! asked of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches};

use super::cli::{Cli, Command, DaemonArgs};
use super::{UsageError, daemon, delivery, upload};
use crate::config::{
    ConfigError, Resolved, Resolver, Scope, Source, example, with_variables, without_variables,
};
use crate::telemetry::log::LogLimit;

/// The daemon's flags are settings.
pub(super) const SCOPE: Scope = Scope {
    subcommand: "daemon",
    command_line_only: &["config", "check-config", "example-config"],
    file_flag: "config",
};

/// Where settings come from, and questions about them.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// TOML file with settings: each flag is a key, and each flag's variable and the flag itself
    /// override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the settings, print those that aren't the default, and end
    #[arg(long)]
    pub check_config: bool,

    /// Print a file with all keys and their defaults, and end
    #[arg(long)]
    pub example_config: bool,
}

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

/// Answers what is asked of the settings, or starts the daemon.
pub(super) fn run_daemon(args: &DaemonArgs, resolved: &Resolved, log: LogLimit) -> anyhow::Result<()> {
    if args.config.example_config {
        std::io::stdout().write_all(example(Cli::command(), &SCOPE).as_bytes())?;
        return Ok(());
    }
    for text in &resolved.suspicious {
        tracing::warn!("{text}");
    }
    if args.config.check_config {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        check(args).map_err(|error| UsageError(resolved.with_places(&error.0)))?;
        drop(entered);
        print(resolved)?;
        return Ok(());
    }
    daemon::run(args, &resolved.settings, log).map_err(|error| match error.downcast::<UsageError>() {
        Ok(UsageError(text)) => UsageError(resolved.with_places(&text)).into(),
        Err(other) => other,
    })
}

/// What [`check`] finds in settings that were read anew, from within the event loop.
///
/// # Errors
/// The first thing found.
pub(super) fn check_loaded(loaded: &Loaded) -> Result<(), LoadError> {
    match &loaded.cli.command {
        Command::Daemon(args) => {
            check(args).map_err(|error| LoadError::Together(loaded.resolved.with_places(&error.0)))
        }
        _ => Ok(()),
    }
}

/// Finds what can't work although each flag by itself is right. Connects to nobody and writes
/// nothing. Must be called inside of a tokio runtime.
///
/// # Errors
/// The first thing found.
fn check(args: &DaemonArgs) -> Result<(), UsageError> {
    delivery::clients(args)?;
    upload::check(&args.upload, &args.remote)
}

/// Prints what isn't the default, secrets hidden.
fn print(resolved: &Resolved) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (name, setting) in resolved.settings.iter().filter(|(_, setting)| setting.source != Source::Default) {
        writeln!(out, "{name} = {setting} ({})", setting.source)?;
    }
    match &resolved.file {
        Some(file) => writeln!(out, "the configuration is valid, {} included", file.display()),
        None => writeln!(out, "the configuration is valid"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
