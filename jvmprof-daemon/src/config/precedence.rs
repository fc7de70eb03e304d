//! Loading: the values of the command line, the environment and the file, by their precedence.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{self, Resettable};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::environment::{self, Environment};
use super::error::{ConfigError, SettingsError};
use super::option::{ConfigOption, variable_of, with_optional_value};
use super::settings::{Setting, SettingSource, Settings};
use super::{example, file};

/// The flags of a command that are settings.
#[derive(Clone, Copy, Debug)]
pub struct SettingsScope {
    /// The subcommand whose flags, together with the global ones, are settings.
    pub subcommand: &'static str,
    /// The flag that names the file. It has a variable and no key.
    pub file_flag: &'static str,
    /// Flags of the subcommand that only make sense on the command line.
    pub command_line_only: &'static [&'static str],
}

/// A command whose flags are settings.
#[derive(Debug)]
pub struct ConfigSchema {
    /// The command with the variables of the flags, for help.
    documented: Command,
    /// The command without them: to clap, an empty variable is a value.
    parser: Command,
    scope: SettingsScope,
    /// Options in the order of their definition, global ones last.
    options: Vec<ConfigOption>,
}

impl ConfigSchema {
    pub fn new(command: Command, scope: SettingsScope) -> Self {
        let documented = command.mut_subcommand(scope.subcommand, |subcommand| {
            subcommand.mut_args(|arg| match arg.get_long().map(variable_of) {
                Some(variable) if !is_command_line_only(&arg, &scope) => {
                    with_optional_value(arg).env(variable)
                }
                _ => with_optional_value(arg),
            })
        });
        let subcommand = documented.find_subcommand(scope.subcommand).into_iter();
        let options = subcommand
            .flat_map(Command::get_arguments)
            .filter(|arg| !is_command_line_only(arg, &scope) && arg.get_long() != Some(scope.file_flag))
            .chain(documented.get_arguments().filter(|arg| arg.is_global_set()))
            .filter_map(ConfigOption::new)
            .collect();
        let reset = |arg: Arg| arg.env(Resettable::<builder::OsStr>::Reset);
        let parser =
            documented.clone().mut_args(reset).mut_subcommands(move |subcommand| subcommand.mut_args(reset));
        Self { documented, parser, scope, options }
    }

    /// Returns the command as help shows it, with the variables of its flags.
    pub fn documented(&self) -> &Command {
        &self.documented
    }

    /// Returns the commented file with each key and its default.
    pub fn example(&self) -> String {
        example::example(&self.options)
    }

    /// Parses a command line (with the program's name); values of the environment and the file are
    /// the defaults of its flags. Other subcommands have the variables of global flags alone.
    ///
    /// # Errors
    /// The command line can't be parsed or requests help; the file can't be read; it or the
    /// environment has invalid names or values, or options that exclude each other.
    pub fn load(
        &self,
        argv: &[OsString],
        environment: &Environment,
    ) -> Result<(ArgMatches, Settings), ConfigError> {
        let flags = self.parser.clone().try_get_matches_from(argv).or_else(|error| {
            // Help shows the variables.
            if error.use_stderr() { Err(error) } else { self.documented.clone().try_get_matches_from(argv) }
        })?;
        let Some((subcommand, given)) = flags.subcommand() else { return Ok((flags, Settings::default())) };
        let is_configured = subcommand == self.scope.subcommand;
        let options = self.options.iter().filter(|option| is_configured || option.arg.is_global_set());
        let (by_flag, others): (Vec<_>, Vec<_>) = options.partition(|option| is_given(option, given));

        let mut settings = Settings::default();
        let mut problems = Vec::new();
        if is_configured {
            let variable = variable_of(self.scope.file_flag);
            settings.file = self.file(given, environment, &variable);
            settings.misspelt_variables =
                environment::misspelt_variables(environment, &self.options, &variable);
        }
        if let Some(path) = &settings.file {
            settings.by_name = file::read(path, &self.options, &mut problems);
        }
        settings.by_name.extend(environment::read(environment, &others, &mut problems));
        if !problems.is_empty() {
            return Err(SettingsError { problems }.into());
        }
        settings.by_name.extend(by_flag.iter().map(|option| (option.name.clone(), of_flag(option, given))));
        self.drop_overridden(&mut settings)?;

        let with_default = |arg: Arg| match arg.get_long().and_then(|name| settings.by_name.get(name)) {
            Some(setting) if setting.location.is_some() => arg.default_values(setting.values.clone()),
            _ => arg,
        };
        let parser = self.parser.clone().mut_args(with_default);
        let parser = parser.mut_subcommand(subcommand, |command| command.mut_args(with_default));
        let matches = parser.try_get_matches_from(argv)?;
        for option in others {
            settings.by_name.entry(option.name.clone()).or_insert_with(|| of_default(option));
        }
        Ok((matches, settings))
    }

    fn file(&self, given: &ArgMatches, environment: &Environment, variable: &str) -> Option<PathBuf> {
        let id = self.scope.file_flag.replace('-', "_");
        let flag = given.get_raw(&id).and_then(Iterator::last);
        flag.or_else(|| environment::variable(environment, variable)).map(PathBuf::from)
    }

    /// Removes the one with the lower precedence of two settings that exclude each other; in one
    /// place they are an error. The parser itself compares those of the command line.
    fn drop_overridden(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        let Some(command) = self.parser.find_subcommand(self.scope.subcommand) else { return Ok(()) };
        for option in self.options.iter().filter(|option| !option.arg.is_global_set()) {
            for other in command.get_arg_conflicts_with(&option.arg) {
                let Some(other) = self.options.iter().find(|it| it.arg.get_id() == other.get_id()) else {
                    continue;
                };
                let [Some(one), Some(two)] = [option, other].map(|option| settings.source(option)) else {
                    continue;
                };
                if one == two {
                    let message = format!("--{} cannot be used with --{}", option.name, other.name);
                    return Err(ConfigError::Contradiction(settings.with_locations(&message)));
                }
                let overridden = if one < two { &option.name } else { &other.name };
                settings.by_name.remove(overridden);
            }
        }
        Ok(())
    }
}

impl Settings {
    /// Returns the source of an option that has another value than its default: a switch that is
    /// off on purpose excludes no other option.
    fn source(&self, option: &ConfigOption) -> Option<SettingSource> {
        let setting = self.by_name.get(&option.name)?;
        (setting.values != option.default_values()).then_some(setting.source)
    }
}

fn is_command_line_only(arg: &Arg, scope: &SettingsScope) -> bool {
    arg.get_long().is_some_and(|name| scope.command_line_only.contains(&name))
}

fn is_given(option: &ConfigOption, given: &ArgMatches) -> bool {
    given.value_source(option.arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

fn of_flag(option: &ConfigOption, given: &ArgMatches) -> Setting {
    let raw = given.get_raw(option.arg.get_id().as_str()).into_iter().flatten();
    Setting {
        source: SettingSource::CommandLine,
        values: raw.map(|value| value.to_string_lossy().into_owned()).collect(),
        is_secret: option.is_secret(),
        location: None,
    }
}

fn of_default(option: &ConfigOption) -> Setting {
    Setting {
        source: SettingSource::Default,
        values: option.default_values(),
        is_secret: option.is_secret(),
        location: None,
    }
}
