//! The environment: the values that variables assign, and variables with misspelt names.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use toml::de::DeValue;

use super::error::{SettingLocation, SettingProblem};
use super::option::{ConfigOption, VARIABLE_PREFIX};
use super::settings::{Setting, SettingSource};
use super::suggestion::nearest;
use super::toml_value::flag_text;

/// The variables of a process.
pub(super) type Environment = BTreeMap<OsString, OsString>;

/// Returns a variable that is set to something: an empty one counts as unset.
pub(super) fn variable<'a>(environment: &'a Environment, name: &str) -> Option<&'a OsStr> {
    environment.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
}

/// Reads the variables of these options, by the options' names.
pub(super) fn read(
    environment: &Environment,
    options: &[&ConfigOption],
    problems: &mut Vec<SettingProblem>,
) -> BTreeMap<String, Setting> {
    let mut settings = BTreeMap::new();
    for option in options {
        let set = option.variables.iter().find_map(|name| Some((name, variable(environment, name)?)));
        let Some((name, value)) = set else { continue };
        let location = SettingLocation::Variable(name.clone());
        let mut refuse = |text| problems.push(SettingProblem { location: location.clone(), text });
        let Some(text) = value.to_str() else {
            refuse("is not UTF-8".to_owned());
            continue;
        };
        let values = if option.is_list() { list(text) } else { Ok(vec![text.to_owned()]) };
        match values {
            Ok(values) => {
                let invalid = values.iter().filter_map(|value| option.check(value).err());
                invalid.for_each(|invalid| refuse(invalid.text));
                let source = SettingSource::Environment;
                let is_secret = option.is_secret();
                let setting = Setting { source, values, is_secret, location: Some(location) };
                settings.insert(option.name.clone(), setting);
            }
            Err(reason) => refuse(reason),
        }
    }
    settings
}

/// Splits the list in a variable: a TOML array, TOML tables with commas between them, or values
/// with commas or line breaks between them; with line breaks only where they begin with a brace,
/// since braces have commas inside.
fn list(text: &str) -> Result<Vec<String>, String> {
    let text = text.trim();
    let split = |separators: &[char]| {
        let values = text.split(separators).map(str::trim).filter(|value| !value.is_empty());
        values.map(ToOwned::to_owned).collect()
    };
    if text.starts_with('{') {
        return array(&format!("[{text}]")).or_else(|_| Ok(split(&['\n'])));
    }
    if text.starts_with('[') { array(text) } else { Ok(split(&[',', '\n'])) }
}

fn array(text: &str) -> Result<Vec<String>, String> {
    let value = DeValue::parse(text).map_err(|error| format!("is no list: {}", error.message()))?;
    value.get_ref().as_array().into_iter().flatten().map(flag_text).collect()
}

/// Returns a message for each variable that is almost named like an option's. Other programs'
/// variables, such as Kubernetes's service links, have the prefix too.
pub(super) fn misspelt_variables(
    environment: &Environment,
    options: &[ConfigOption],
    config_file_variable: &str,
) -> Vec<String> {
    let variables = options.iter().flat_map(|option| &option.variables);
    let names: Vec<&str> = variables.map(|name| &name[VARIABLE_PREFIX.len()..]).collect();
    environment
        .keys()
        .filter_map(|name| name.to_str())
        .filter(|name| *name != config_file_variable)
        .filter_map(|name| {
            let rest = name.strip_prefix(VARIABLE_PREFIX).filter(|rest| !names.contains(rest))?;
            let nearest = nearest(rest, names.iter().copied())?;
            let is_typo = strsim::damerau_levenshtein(rest, nearest) <= 2;
            is_typo.then(|| format!("{name} is no setting: did you mean {VARIABLE_PREFIX}{nearest}?"))
        })
        .collect()
}
