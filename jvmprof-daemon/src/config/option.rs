//! Options of a command: a flag's names in the file and the environment, and the check of a value.

use std::error::Error as _;
use std::ffi::OsString;

use clap::builder::{BoolishValueParser, ValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};

use super::relabel::RuleError;

/// Prefix of each variable's name.
pub(super) const VARIABLE_PREFIX: &str = "JVMPROF_";

/// A flag that is also a key of the file and an environment variable.
#[derive(Clone, Debug)]
pub(super) struct ConfigOption {
    /// The flag without its dashes; the key in the file.
    pub(super) name: String,
    pub(super) arg: Arg,
    /// Variables that are read: the first that is set and not empty counts.
    pub(super) variables: Vec<String>,
}

/// A value that the flag's parser refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidValue {
    /// The reason, and the value unless it is secret.
    pub(super) text: String,
    /// The field of a rule that is wrong.
    pub(super) field: Option<String>,
}

/// Returns the variable of a flag: `JVMPROF_PUSH_INTERVAL` for `push-interval`.
pub(super) fn variable_of(flag: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// Makes a switch take a value, so that `--switch=false` overrides what a file says.
pub(super) fn with_optional_value(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
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

impl ConfigOption {
    /// Returns the option of a flag; `None` for an argument without a long one.
    pub(super) fn new(arg: &Arg) -> Option<Self> {
        let name = arg.get_long()?.to_owned();
        let mut variables = vec![variable_of(&name)];
        let declared = arg.get_env().and_then(|variable| variable.to_str()).map(ToOwned::to_owned);
        variables.extend(declared.filter(|declared| *declared != variables[0]));
        Some(Self { name, arg: arg.clone(), variables })
    }

    /// Returns true if it may be given several times.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Returns true if its values have the form NAME=VALUE, for which the file has tables.
    pub(super) fn is_map(&self) -> bool {
        let names = self.arg.get_value_names().unwrap_or_default();
        self.is_list() && names.iter().any(|name| name.contains('='))
    }

    /// Returns true if its value must appear in no message.
    pub(super) fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }

    pub(super) fn default_values(&self) -> Vec<String> {
        self.arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
    }

    /// Checks a value with the flag's own parser.
    pub(super) fn check(&self, value: &str) -> Result<(), InvalidValue> {
        let arg = Arg::new("value")
            .long("value")
            .require_equals(true)
            .value_parser(self.arg.get_value_parser().clone());
        let command = Command::new("check").no_binary_name(true).arg(arg);
        let parsed = command.try_get_matches_from([OsString::from(format!("--value={value}"))]);
        parsed.map(|_| ()).map_err(|error| {
            let reason = reason(&error);
            // The error of a rule, which is a table, names what is wrong in it.
            let is_shown = !self.is_secret() && !value.trim_start().starts_with('{');
            let rule = error.source().and_then(|source| source.downcast_ref::<RuleError>());
            InvalidValue {
                text: if is_shown { format!("{value:?}: {reason}") } else { reason },
                field: rule.and_then(RuleError::field).map(ToOwned::to_owned),
            }
        })
    }
}

/// Returns the reason in a value parser's own words.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => {
            let suggested = match error.get(ContextKind::SuggestedValue) {
                Some(ContextValue::String(value)) => format!("; did you mean {value:?}?"),
                _ => String::new(),
            };
            format!("must be one of {}{suggested}", values.join(", "))
        }
        // Without a cause and possible values: from the parser for paths.
        _ => "must not be empty".to_owned(),
    }
}
