//! Flags as settings: their names in the file and the environment, and what values they take.

use std::error::Error as _;
use std::ffi::OsString;

use clap::builder::{self, BoolishValueParser, Resettable, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::Scope;
use super::relabel::RuleError;
use super::resolve::Resolved;

/// Before the name of each variable.
pub(super) const PREFIX: &str = "JVMPROF_";
/// Names that are less alike than this aren't suggested (Jaro-Winkler).
const ALIKE: f64 = 0.8;

/// A flag that is a setting.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The flag without its dashes; the key in the file.
    pub(super) name: String,
    pub(super) arg: Arg,
    /// Variables that are looked at, the first that is set and not empty counts.
    pub(super) variables: Vec<String>,
}

/// The variable of a flag: `JVMPROF_PUSH_INTERVAL` of `push-interval`.
pub(super) fn variable_of(flag: &str) -> String {
    format!("{PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// Gives each setting of the subcommand its variable (for `--help`; [`super::Resolver`] reads it),
/// and makes switches take a value, so that `--switch=false` takes back what a file says.
#[must_use]
pub fn with_variables(command: Command, scope: &Scope) -> Command {
    command.mut_subcommand(scope.subcommand, |subcommand| {
        subcommand.mut_args(|arg| {
            let arg = if matches!(arg.get_action(), ArgAction::SetTrue) { switch(arg) } else { arg };
            match arg.get_long().map(ToOwned::to_owned) {
                Some(flag) if flag == scope.file_flag || !scope.command_line_only.contains(&&*flag) => {
                    arg.env(variable_of(&flag))
                }
                _ => arg,
            }
        })
    })
}

/// Keeps the parser from looking at variables by itself, for which an empty one would be a value:
/// at none where the resolver has looked at all of them, else not at empty ones.
#[must_use]
pub fn without_variables(command: Command, resolved: &Resolved) -> Command {
    let has_looked = !resolved.settings.is_empty();
    let reset = move |arg: Arg| {
        let is_set = |arg: &Arg| {
            let value = arg.get_env().and_then(std::env::var_os);
            value.is_some_and(|value| !value.is_empty())
        };
        if !has_looked && is_set(&arg) { arg } else { arg.env(Resettable::<builder::OsStr>::Reset) }
    };
    command.mut_args(reset).mut_subcommands(move |subcommand| subcommand.mut_args(reset))
}

fn switch(arg: Arg) -> Arg {
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .require_equals(true)
        .value_name("BOOL")
        .value_parser(ValueParser::new(BoolishValueParser::new()))
        .default_value("false")
        .default_missing_value("true")
        .hide_default_value(true)
        .hide_possible_values(true)
}

/// Why a value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The reason, and the value unless it is secret.
    pub(super) text: String,
    /// The field of a rule that is wrong.
    pub(super) field: Option<String>,
}

impl Key {
    /// All settings of a command that [`with_variables`] has seen, in the order of their
    /// definition; global flags last.
    pub(super) fn all(command: &Command, scope: &Scope) -> Vec<Self> {
        let own = command.find_subcommand(scope.subcommand).into_iter().flat_map(Command::get_arguments);
        own.chain(command.get_arguments().filter(|arg| arg.is_global_set()))
            .filter_map(|arg| {
                let name = arg.get_long()?;
                let only = name == scope.file_flag || scope.command_line_only.contains(&name);
                (!only).then(|| Self::new(name, arg))
            })
            .collect()
    }

    fn new(name: &str, arg: &Arg) -> Self {
        let mut variables = vec![variable_of(name)];
        let declared = arg.get_env().and_then(|variable| variable.to_str()).map(ToOwned::to_owned);
        variables.extend(declared.filter(|declared| *declared != variables[0]));
        Self { name: name.to_owned(), arg: arg.clone(), variables }
    }

    /// It may be given several times.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Its values have the form NAME=VALUE, which a table can say, too.
    pub(super) fn is_map(&self) -> bool {
        let names = self.arg.get_value_names().unwrap_or_default();
        self.is_list() && names.iter().any(|name| name.contains('='))
    }

    /// Its value is nobody's business.
    pub(super) fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }

    /// What it is if nobody says anything.
    pub(super) fn defaults(&self) -> Vec<String> {
        self.arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
    }

    /// Why a value is refused; `None` if it isn't. Of a secret the value isn't told.
    pub(super) fn refusal(&self, value: &str) -> Option<Refusal> {
        let alone = Arg::new("value")
            .long("value")
            .require_equals(true)
            .value_parser(self.arg.get_value_parser().clone());
        let error = Command::new("check")
            .no_binary_name(true)
            .arg(alone)
            .try_get_matches_from([OsString::from(format!("--value={value}"))])
            .err()?;
        let why = why(&error);
        // A rule says itself what is wrong with it.
        let is_told = !self.is_secret() && !value.starts_with('{');
        let rule = error.source().and_then(|source| source.downcast_ref::<RuleError>());
        Some(Refusal {
            text: if is_told { format!("{value:?}: {why}") } else { why },
            field: rule.and_then(RuleError::field).map(ToOwned::to_owned),
        })
    }
}

/// The reason in a parser's own words.
fn why(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values))
            if error.kind() == ErrorKind::InvalidValue && !values.is_empty() =>
        {
            let suggested = match error.get(ContextKind::SuggestedValue) {
                Some(ContextValue::String(value)) => format!("; did you mean {value:?}?"),
                _ => String::new(),
            };
            format!("must be one of {}{suggested}", values.join(", "))
        }
        _ => match error.kind() {
            ErrorKind::InvalidUtf8 => "is not UTF-8".to_owned(),
            // Of the parser for paths.
            ErrorKind::InvalidValue => "must not be empty".to_owned(),
            _ => "is not a value for it".to_owned(),
        },
    }
}

/// The known name that is most like this one, if one is.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|it| (it, strsim::jaro_winkler(it, name)))
        .filter(|(_, likeness)| *likeness > ALIKE)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(it, _)| it)
}
