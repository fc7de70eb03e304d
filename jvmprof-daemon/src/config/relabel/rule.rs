//! Relabelling rules, parsed and validated as in Prometheus.

use std::str::FromStr;
use std::sync::LazyLock;

use clap::ValueEnum;
use regex::Regex;
use serde::Deserialize;
use toml::de::{DeValue, ValueDeserializer};

use super::{go_regex, is_label_name};
use crate::config::suggestion::nearest;

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum RelabelAction {
    /// Writes the expanded `replacement` to `target_label` where `regex` matches the source.
    Replace,
    /// Drops label sets that don't match.
    Keep,
    /// Drops label sets that match.
    Drop,
    /// Drops label sets whose source isn't `target_label`'s value.
    KeepEqual,
    /// Drops label sets whose source is `target_label`'s value.
    DropEqual,
    /// Writes a hash of the source modulo `modulus` to `target_label`.
    HashMod,
    /// Copies labels whose names match to the name that `replacement` expands to.
    LabelMap,
    /// Removes labels whose names match.
    LabelDrop,
    /// Removes labels whose names don't match.
    LabelKeep,
    Lowercase,
    Uppercase,
}

impl RelabelAction {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns true if it writes to `target_label`, or compares with it.
    fn needs_target(self) -> bool {
        !matches!(self, Self::Keep | Self::Drop | Self::LabelMap | Self::LabelDrop | Self::LabelKeep)
    }

    /// Returns the fields without a meaning to it. Prometheus refuses them instead of ignoring
    /// them.
    fn unused_fields(self) -> &'static [&'static str] {
        match self {
            Self::Lowercase | Self::Uppercase => &["replacement"],
            Self::KeepEqual | Self::DropEqual => &["regex", "modulus", "separator", "replacement"],
            Self::LabelDrop | Self::LabelKeep => {
                &["source_labels", "target_label", "modulus", "separator", "replacement"]
            }
            _ => &[],
        }
    }
}

/// A valid rule. [`FromStr`] reads it from an inline TOML table with the fields of a Prometheus
/// `relabel_config`.
#[derive(Clone, Debug)]
pub struct RelabelRule {
    pub(super) action: RelabelAction,
    pub(super) source_labels: Vec<String>,
    pub(super) separator: String,
    pub(super) regex: Regex,
    pub(super) modulus: u64,
    pub(super) target_label: String,
    pub(super) replacement: String,
}

/// Error of an invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RuleError {
    reason: String,
    /// The invalid field, if the error concerns one.
    field: Option<String>,
}

impl RuleError {
    fn at(field: &str, reason: String) -> Self {
        Self { reason, field: Some(field.to_owned()) }
    }

    /// Makes the error of an invalid label name. `value` is the label with the word for it.
    fn label_name(field: &str, value: &str) -> Self {
        let reason = "is no label name: letters, digits and _ without a digit in front";
        Self::at(field, format!("{value} {reason}"))
    }

    fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let reason = with_suggestion(error.message());
        let example = r#"{ source_labels = ["comm"], regex = "java", action = "keep" }"#;
        Self {
            reason: format!("not a rule: {reason}; one looks like {example}"),
            field: error.span().and_then(|at| field_at(text, at.start)),
        }
    }

    /// Returns the invalid field, if the error concerns one.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }
}

/// Returns the field of a rule that contains this byte.
fn field_at(text: &str, at: usize) -> Option<String> {
    let rule = DeValue::parse(text).ok()?;
    let mut fields = rule.get_ref().as_table()?.iter();
    fields
        .find(|(key, value)| (key.span().start..value.span().end).contains(&at))
        .map(|(key, _)| key.get_ref().to_string())
}

/// Formats a message in one line, with a suggestion for an unknown field.
fn with_suggestion(message: &str) -> String {
    let text = message.lines().collect::<Vec<_>>().join(" ");
    // serde: unknown field `regexp`, expected one of `action`, `source_labels`, ...
    let mut names = text.split('`').skip(1).step_by(2);
    let unknown = names.next().filter(|_| text.starts_with("unknown field"));
    match unknown.and_then(|field| nearest(field, names)) {
        Some(nearest) => format!("{text}; did you mean {nearest:?}?"),
        None => text,
    }
}

/// A rule with the fields of a Prometheus `relabel_config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuleFields {
    action: Option<String>,
    source_labels: Option<Vec<String>>,
    separator: Option<String>,
    regex: Option<String>,
    modulus: Option<u64>,
    target_label: Option<String>,
    replacement: Option<String>,
}

impl FromStr for RelabelRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        let fields = ValueDeserializer::parse(text).and_then(RuleFields::deserialize);
        Self::new(fields.map_err(|error| RuleError::syntax(text, &error))?)
    }
}

const DEFAULT_REGEX: &str = "(.*)";
const DEFAULT_SEPARATOR: &str = ";";
const DEFAULT_REPLACEMENT: &str = "$1";

impl RelabelRule {
    pub fn action(&self) -> RelabelAction {
        self.action
    }

    /// Returns true if its effect may depend on this label's value.
    pub fn reads(&self, label: &str) -> bool {
        let compares = matches!(self.action, RelabelAction::KeepEqual | RelabelAction::DropEqual);
        self.source_labels.iter().any(|source| source == label) || (compares && self.target_label == label)
    }

    fn new(fields: RuleFields) -> Result<Self, RuleError> {
        let action = match &fields.action {
            None => RelabelAction::Replace,
            // Prometheus doesn't mind the case either.
            Some(given) => RelabelAction::from_str(given, true).map_err(|_| unknown_action(given))?,
        };
        fields.check(action)?;
        let regex = fields.regex.as_deref().unwrap_or(DEFAULT_REGEX);
        let regex = go_regex::anchored(regex)
            .map_err(|reason| RuleError::at("regex", format!("regex {regex:?}: {reason}")))?;
        let or = |value: Option<String>, default: &str| value.unwrap_or_else(|| default.to_owned());
        Ok(Self {
            action,
            source_labels: fields.source_labels.unwrap_or_default(),
            separator: or(fields.separator, DEFAULT_SEPARATOR),
            regex,
            modulus: fields.modulus.unwrap_or(0),
            target_label: fields.target_label.unwrap_or_default(),
            replacement: or(fields.replacement, DEFAULT_REPLACEMENT),
        })
    }
}

fn unknown_action(given: &str) -> RuleError {
    let names: Vec<String> = RelabelAction::value_variants().iter().map(|action| action.name()).collect();
    let nearest = nearest(given, names.iter().map(String::as_str));
    let suggested = nearest.map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
    let reason = format!("unknown action {given:?}: must be one of {}{suggested}", names.join(", "));
    RuleError::at("action", reason)
}

impl RuleFields {
    fn check(&self, action: RelabelAction) -> Result<(), RuleError> {
        let name = action.name();
        let needs = |field| Err(RuleError { reason: format!("action {name} needs {field}"), field: None });
        let target = self.target_label.as_deref().unwrap_or_default();
        if action.needs_target() && target.is_empty() {
            return needs("target_label");
        }
        if action == RelabelAction::HashMod && self.modulus.unwrap_or(0) == 0 {
            return needs("a modulus that isn't 0");
        }
        if let Some(field) = action.unused_fields().iter().find(|field| self.is_changed(field)) {
            return Err(RuleError::at(field, format!("action {name} takes no {field}")));
        }
        self.check_label_names(action, target)
    }

    /// Returns true if a field has another value than its default.
    fn is_changed(&self, field: &str) -> bool {
        let text = |value: &Option<String>, default| value.as_deref().is_some_and(|it| it != default);
        match field {
            "source_labels" => self.source_labels.is_some(),
            "separator" => text(&self.separator, DEFAULT_SEPARATOR),
            "regex" => text(&self.regex, DEFAULT_REGEX),
            "modulus" => self.modulus.is_some_and(|modulus| modulus != 0),
            "target_label" => text(&self.target_label, ""),
            _ => text(&self.replacement, DEFAULT_REPLACEMENT),
        }
    }

    fn check_label_names(&self, action: RelabelAction, target: &str) -> Result<(), RuleError> {
        if let Some(name) = self.source_labels.iter().flatten().find(|name| !is_label_name(name)) {
            return Err(RuleError::label_name("source_labels", &format!("source label {name:?}")));
        }
        let is_template = action == RelabelAction::Replace && target.contains('$');
        let is_valid = if is_template { is_name_template(target) } else { is_label_name(target) };
        if action.needs_target() && !is_valid {
            return Err(RuleError::label_name("target_label", &format!("target_label {target:?}")));
        }
        let replacement = self.replacement.as_deref().unwrap_or(DEFAULT_REPLACEMENT);
        if action == RelabelAction::LabelMap && !is_name_template(replacement) {
            return Err(RuleError::label_name("replacement", &format!("replacement {replacement:?}")));
        }
        Ok(())
    }
}

/// Returns true for a label name in which parts may be references: `$1`, `${name}`.
pub(super) fn is_name_template(text: &str) -> bool {
    static TEMPLATE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^(?:(?:[a-zA-Z_]|\$(?:\{[0-9A-Za-z_]+\}|[0-9A-Za-z_]+))+[0-9A-Za-z_]*)+$").ok()
    });
    TEMPLATE.as_ref().is_some_and(|template| template.is_match(text))
}
