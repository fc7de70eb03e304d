//! The configuration file: TOML, flattened to options.
//!
//! Tables only group: `address` in `[remote-store]` is `remote-store-address`. Underscores count as
//! dashes.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{SettingLocation, SettingProblem};
use super::option::ConfigOption;
use super::settings::{Setting, SettingSource};
use super::suggestion::nearest;
use super::toml_value::flag_text;

/// Reads a file, by the options' names.
pub(super) fn read(
    path: &Path,
    options: &[ConfigOption],
    problems: &mut Vec<SettingProblem>,
) -> BTreeMap<String, Setting> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let text = format!("the configuration file can't be read: {error}");
            problems.push(SettingProblem { location: SettingLocation::WholeFile(path.to_owned()), text });
            return BTreeMap::new();
        }
    };
    let (table, errors) = DeTable::parse_recoverable(&text);
    let mut reader =
        ConfigFileReader { path, text: &text, options, settings: BTreeMap::new(), problems: vec![] };
    if errors.is_empty() {
        reader.read_table("", table.get_ref());
    }
    for error in errors {
        reader.refuse(error.span().unwrap_or_default().start, error.message().to_owned());
    }
    // In the order in which people read the file. A parser may report one mistake a hundred
    // thousand times.
    reader.problems.sort();
    reader.problems.dedup();
    let located = |(at, text)| SettingProblem { location: location(path, reader.text, at), text };
    problems.extend(reader.problems.into_iter().map(located));
    reader.settings
}

/// Returns the location of a byte.
fn location(path: &Path, text: &str, at: usize) -> SettingLocation {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    SettingLocation::File {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

struct ConfigFileReader<'a> {
    path: &'a Path,
    text: &'a str,
    options: &'a [ConfigOption],
    settings: BTreeMap<String, Setting>,
    /// Problems with their byte offsets.
    problems: Vec<(usize, String)>,
}

impl ConfigFileReader<'_> {
    fn refuse(&mut self, at: usize, text: String) {
        self.problems.push((at, text));
    }

    fn read_table(&mut self, prefix: &str, table: &DeTable<'_>) {
        // In the order of the file, so that the second of two that are the same is the wrong one.
        let mut keys: Vec<_> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = format!("{prefix}{}", key.get_ref().replace('_', "-"));
            let at = key.span().start;
            match (self.options.iter().find(|option| option.name == name), value.get_ref()) {
                (Some(option), DeValue::Table(inner)) if self.contains_option_keys(option, inner) => {
                    let text =
                        format!("{name:?} is a key and no table, and what follows are keys by themselves");
                    self.refuse(at, format!("{text}: write them without a table, above the first one"));
                }
                (Some(option), _) => self.read_option(option, at, value),
                (None, DeValue::Table(inner)) if self.is_group(&name) => {
                    self.read_table(&format!("{name}-"), inner);
                }
                _ => self.refuse_unknown(prefix, &name, value.get_ref(), at),
            }
        }
    }

    /// Returns true if this is the first part of options' names.
    fn is_group(&self, name: &str) -> bool {
        let mut rests = self.options.iter().filter_map(|option| option.name.strip_prefix(name));
        rests.any(|rest| rest.starts_with('-'))
    }

    fn is_option(&self, name: &str) -> bool {
        self.options.iter().any(|option| option.name == name)
    }

    /// Returns true if a table that is named like an option, and that isn't one of its values,
    /// contains keys that are options themselves.
    fn contains_option_keys(&self, option: &ConfigOption, table: &DeTable<'_>) -> bool {
        let mut keys = table.keys().map(|key| key.get_ref().replace('_', "-"));
        !option.is_list() && keys.any(|key| self.is_option(&key))
    }

    fn refuse_unknown(&mut self, prefix: &str, name: &str, value: &DeValue<'_>, at: usize) {
        // A key by itself that stands below a table's heading.
        let alone = name.strip_prefix(prefix).filter(|alone| !prefix.is_empty() && self.is_option(alone));
        if let Some(alone) = alone {
            let table = prefix.trim_end_matches('-');
            let text = format!("unknown key {name:?}: {alone:?} stands below [{table}] and isn't part of it");
            return self.refuse(at, format!("{text}: write it above the first table"));
        }
        let inner = value.as_table().into_iter().flat_map(DeTable::keys);
        let mut inner = inner.map(|key| key.get_ref().replace('_', "-"));
        if let Some(key) = inner.find(|key| self.is_option(key)) {
            let text = format!("unknown table [{name}]: {key:?} is a key by itself");
            return self.refuse(at, format!("{text}: write it without a table, above the first one"));
        }
        let advice = match nearest(name, self.options.iter().map(|option| &*option.name)) {
            Some(nearest) => format!("did you mean {nearest:?}?"),
            None => "`jvmprof daemon --example-config` prints all keys".to_owned(),
        };
        self.refuse(at, format!("unknown key {name:?}: {advice}"));
    }

    fn read_option(&mut self, option: &ConfigOption, at: usize, value: &Spanned<DeValue<'_>>) {
        let name = &option.name;
        let location = location(self.path, self.text, at);
        if let Some(Setting { location: Some(SettingLocation::File { line, .. }), .. }) =
            self.settings.get(name)
        {
            let text = format!("{name:?} stands in line {line} already");
            return self.refuse(at, text);
        }
        // The elements, each with the text that it begins with on the command line.
        let elements: Vec<(String, &Spanned<DeValue<'_>>)> = match value.get_ref() {
            DeValue::Array(_) if !option.is_list() => {
                return self.refuse(at, format!("{name}: takes one value, not a list"));
            }
            DeValue::Array(elements) => elements.iter().map(|element| (String::new(), element)).collect(),
            DeValue::Table(fields) if option.is_map() => {
                fields.iter().map(|(key, value)| (format!("{}=", key.get_ref()), value)).collect()
            }
            _ => vec![(String::new(), value)],
        };
        let is_list = value.get_ref().is_array();
        let mut values = Vec::new();
        for (index, (begin, element)) in elements.into_iter().enumerate() {
            let text = match flag_text(element) {
                Ok(text) => begin + &text,
                Err(reason) => {
                    self.refuse(element.span().start, format!("{name}: {reason}"));
                    continue;
                }
            };
            // As in the environment, an empty text unsets what has no default.
            if text.is_empty() && !option.is_list() && option.default_values().is_empty() {
                continue;
            }
            if let Err(invalid) = option.check(&text) {
                let nth = if is_list { format!("[{index}]") } else { String::new() };
                let at = start_of(element, invalid.field.as_deref());
                self.refuse(at, format!("{name}{nth}: {}", invalid.text));
            }
            values.push(text);
        }
        if !values.is_empty() {
            let (source, is_secret) = (SettingSource::File, option.is_secret());
            let setting = Setting { source, values, is_secret, location: Some(location) };
            self.settings.insert(name.clone(), setting);
        }
    }
}

/// Returns the offset of a table's field, or of the value itself.
fn start_of(value: &Spanned<DeValue<'_>>, field: Option<&str>) -> usize {
    let fields = value.get_ref().as_table();
    let field = field.and_then(|field| fields?.keys().find(|key| key.get_ref() == field));
    field.map_or(value.span().start, |field| field.span().start)
}
