//! The file: TOML, flattened to keys.
//!
//! Tables only group: `address` in `[remote-store]` is `remote-store-address`. Underscores count as
//! dashes.

use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::error::{ConfigError, Place, Problem};
use super::keys::{Key, nearest};

/// A setting that the file makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Where the key stands, bytes.
    pub(super) at: usize,
    pub(super) values: Vec<Written>,
    pub(super) is_list: bool,
}

/// A value, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// As the command line has it.
    pub(super) text: String,
    /// Bytes.
    pub(super) at: usize,
    /// Of a table: its keys and where they stand.
    fields: Vec<(String, usize)>,
}

impl Written {
    fn new(text: String, spanned: &Spanned<DeValue<'_>>) -> Self {
        let fields = match spanned.get_ref() {
            DeValue::Table(table) => {
                table.keys().map(|key| (key.get_ref().to_string(), key.span().start)).collect()
            }
            _ => Vec::new(),
        };
        Self { text, at: spanned.span().start, fields }
    }

    /// The place of one of its fields, or its own.
    pub(super) fn place_of(&self, field: Option<&str>) -> usize {
        let named = field.and_then(|field| self.fields.iter().find(|(name, _)| name == field));
        named.map_or(self.at, |(_, at)| *at)
    }
}

/// What a file says, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    keys: &'a [Key],
    pub(super) entries: Vec<Entry>,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Document<'a> {
    pub(super) fn read(path: &'a Path, text: &'a str, keys: &'a [Key]) -> Result<Self, ConfigError> {
        let mut document = Self { path, text, keys, entries: Vec::new(), problems: Vec::new() };
        let (spans, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            document.problem(error.span().unwrap_or_default().start, error.message().to_owned());
        }
        // An error that the recovering parser doesn't see is one all the same.
        match toml::from_str::<Table>(text) {
            Ok(values) if document.problems.is_empty() => document.flatten("", spans.get_ref(), &values),
            Err(error) if document.problems.is_empty() => {
                document.problem(error.span().unwrap_or_default().start, error.message().to_owned());
            }
            _ => {}
        }
        if document.entries.is_empty() && !document.problems.is_empty() {
            return Err(ConfigError { problems: document.problems });
        }
        Ok(document)
    }

    pub(super) fn problem(&mut self, at: usize, text: String) {
        self.problems.push(Problem { place: self.place(at), text });
    }

    /// The place of a byte.
    pub(super) fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::File {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn flatten(&mut self, prefix: &str, spans: &DeTable<'_>, values: &Table) {
        // In the order of the file, which is the one in which people read problems.
        let mut keys: Vec<_> = spans.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, spanned) in keys {
            let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
            let name = format!("{prefix}{}", key.get_ref().replace('_', "-"));
            let at = key.span().start;
            match (self.keys.iter().find(|it| it.name == name), spanned.get_ref(), value) {
                (Some(key), _, _) => {
                    let is_map = key.is_map();
                    self.entry(name, at, is_map, spanned, value);
                }
                (None, DeValue::Table(inner), Value::Table(value)) if self.is_group(&name) => {
                    self.flatten(&format!("{name}-"), inner, value);
                }
                _ => self.unknown(&name, at),
            }
        }
    }

    /// Some keys begin like this.
    fn is_group(&self, name: &str) -> bool {
        self.keys.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
    }

    fn unknown(&mut self, name: &str, at: usize) {
        let nearest = nearest(name, self.keys.iter().map(|key| &*key.name));
        let advice = match nearest {
            Some(nearest) => format!("did you mean {nearest:?}?"),
            None => "`jvmprof daemon --example-config` prints all keys".to_owned(),
        };
        self.problem(at, format!("unknown key {name:?}: {advice}"));
    }

    fn entry(
        &mut self,
        name: String,
        at: usize,
        is_map: bool,
        spanned: &Spanned<DeValue<'_>>,
        value: &Value,
    ) {
        if let Some(other) = self.entries.iter().find(|entry| entry.name == name) {
            let first = other.at;
            let line = self.text[..first].matches('\n').count() + 1;
            return self.problem(at, format!("{name:?} stands in line {line} already"));
        }
        let mut values = Vec::new();
        match (spanned.get_ref(), value) {
            (DeValue::Array(spans), Value::Array(elements)) => {
                for (spanned, element) in spans.iter().zip(elements) {
                    match text_of(element) {
                        Some(text) => values.push(Written::new(text, spanned)),
                        None => self.problem(spanned.span().start, not_a_value(&name, element)),
                    }
                }
                self.entries.push(Entry { name, at, values, is_list: true });
            }
            (DeValue::Table(spans), Value::Table(elements)) if is_map => {
                for (key, spanned) in spans {
                    let key = key.get_ref();
                    let Some(element) = elements.get(key.as_ref()) else { continue };
                    match text_of(element).filter(|_| !element.is_table()) {
                        Some(text) => values.push(Written::new(format!("{key}={text}"), spanned)),
                        None => self.problem(spanned.span().start, not_a_value(&name, element)),
                    }
                }
                self.entries.push(Entry { name, at, values, is_list: true });
            }
            _ => match text_of(value) {
                Some(text) => {
                    values.push(Written::new(text, spanned));
                    self.entries.push(Entry { name, at, values, is_list: false });
                }
                None => self.problem(spanned.span().start, not_a_value(&name, value)),
            },
        }
    }
}

fn not_a_value(name: &str, value: &Value) -> String {
    format!("{name}: a value can't be of type {}", value.type_str())
}

/// A value as the command line has it. Tables are written as inline ones.
pub(super) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Table(_) => Some(value.to_string()),
        Value::Datetime(_) | Value::Array(_) => None,
    }
}
