//! Settings: the effective values of options, and their sources.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::error::SettingLocation;

/// The source of a setting, by rising precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingSource {
    Default,
    File,
    Environment,
    CommandLine,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::CommandLine => "command line",
        })
    }
}

/// The value of one option.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    pub source: SettingSource,
    /// Values in the command line's syntax; none if the option is unset.
    pub values: Vec<String>,
    pub is_secret: bool,
    /// Location in the file or the environment.
    pub location: Option<SettingLocation>,
}

impl fmt::Display for Setting {
    /// Formats the values, those of secrets hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values.as_slice() {
            [] => f.write_str("unset"),
            // A table may have headers of its own.
            values if self.is_secret || values.iter().any(|value| has_headers(value)) => {
                f.write_str("(hidden)")
            }
            [one] => f.write_str(one),
            many => write!(f, "{many:?}"),
        }
    }
}

/// Returns true for a TOML table that may have headers, whose values are often secrets.
fn has_headers(value: &str) -> bool {
    value.trim_start().starts_with('{') && value.contains("headers")
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.source)
    }
}

/// The settings of a run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Settings by the option's name.
    pub by_name: BTreeMap<String, Setting>,
    /// Path of the file.
    pub file: Option<PathBuf>,
    /// Messages for variables that are almost named like an option's.
    pub misspelt_variables: Vec<String>,
}

impl Settings {
    /// Returns a message that names flags, with the locations of those that weren't given as flags.
    pub fn with_locations(&self, message: &str) -> String {
        let is_named = |name: &str| {
            let flag = format!("--{name}");
            let mut rests = message.split(&*flag).skip(1);
            rests.any(|rest| !rest.starts_with(|char: char| char.is_alphanumeric() || char == '-'))
        };
        let named = self.by_name.iter().filter(|(name, _)| is_named(name));
        let locations = named.filter_map(|(name, setting)| {
            setting.location.as_ref().map(|location| format!("{location}: says {name}"))
        });
        std::iter::once(message.trim_end().to_owned()).chain(locations).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_headers_is_hidden_and_other_tables_are_shown() {
        let shown = |values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let source = SettingSource::CommandLine;
            Setting { source, values, is_secret: false, location: None }.to_string()
        };
        let table = "{ address = 'a:1', headers = { x-key = 'k' } }";
        assert_eq!(shown(&["http://headers:1"]), "http://headers:1");
        assert_eq!(shown(&["{ address = 'a:1' }"]), "{ address = 'a:1' }");
        assert_eq!(shown(&[table]), "(hidden)");
        assert_eq!(shown(&["http://b:1", table]), "(hidden)");
    }
}
