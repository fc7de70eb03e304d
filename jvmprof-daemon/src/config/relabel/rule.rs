//! A rule as it is written, checked as Prometheus checks it.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::{go_regex, is_label_name};

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Writes the expanded `replacement` to `target_label` where `regex` matches the source.
    Replace,
    /// Drops what doesn't match.
    Keep,
    /// Drops what matches.
    Drop,
    /// Drops where the source isn't `target_label`'s value.
    KeepEqual,
    /// Drops where it is.
    DropEqual,
    /// Writes a hash of the source modulo `modulus` to `target_label`.
    HashMod,
    /// Copies labels whose names match to the name that `replacement` expands to.
    LabelMap,
    /// Removes labels whose names match.
    LabelDrop,
    /// Removes all others.
    LabelKeep,
    Lowercase,
    Uppercase,
}

impl Action {
    const ALL: [(&'static str, Self); 11] = [
        ("replace", Self::Replace),
        ("keep", Self::Keep),
        ("drop", Self::Drop),
        ("keepequal", Self::KeepEqual),
        ("dropequal", Self::DropEqual),
        ("hashmod", Self::HashMod),
        ("labelmap", Self::LabelMap),
        ("labeldrop", Self::LabelDrop),
        ("labelkeep", Self::LabelKeep),
        ("lowercase", Self::Lowercase),
        ("uppercase", Self::Uppercase),
    ];

    /// Writes to `target_label`, or compares with it.
    fn needs_target(self) -> bool {
        !matches!(self, Self::Keep | Self::Drop | Self::LabelMap | Self::LabelDrop | Self::LabelKeep)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, action)| action == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// A checked rule. [`FromStr`] reads it from an inline TOML table with the fields of a Prometheus
/// `relabel_config`.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) action: Action,
    pub(super) source_labels: Vec<String>,
    pub(super) separator: String,
    pub(super) regex: Regex,
    pub(super) modulus: u64,
    pub(super) target_label: String,
    pub(super) replacement: String,
}

/// Why a rule can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error(
        "not a rule: {why}; one looks like {{ source_labels = [\"comm\"], regex = \"java\", action = \"keep\" }}"
    )]
    Syntax { why: String, field: Option<String> },
    #[error("unknown action {given:?}: must be one of {}{}", actions(), suggested(.given))]
    Action { given: String },
    #[error("regex {regex:?}: {why}")]
    Regex { regex: String, why: String },
    #[error("action {action} needs {field}")]
    Missing { action: Action, field: &'static str },
    #[error("action {action} takes no {field}")]
    Superfluous { action: Action, field: &'static str },
    #[error(
        "{} {value:?} is no label name: letters, digits and _ without a digit in front",
        described(field)
    )]
    Name { field: &'static str, value: String },
}

const SOURCE_LABELS: &str = "source_labels";

/// One of several has the name of one.
fn described(field: &str) -> &str {
    if field == SOURCE_LABELS { "source label" } else { field }
}

impl RuleError {
    /// The field that is wrong, if one is.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Syntax { field, .. } => field.as_deref(),
            Self::Action { .. } => Some("action"),
            Self::Regex { .. } => Some("regex"),
            Self::Missing { .. } => None,
            Self::Superfluous { field, .. } | Self::Name { field, .. } => Some(field),
        }
    }

    fn syntax(line: &str, error: &toml::de::Error) -> Self {
        Self::Syntax {
            why: explained(error.message()),
            field: error.span().and_then(|at| field_at(line, at.start)),
        }
    }
}

/// The field of the rule in a line in which this byte stands.
fn field_at(line: &str, at: usize) -> Option<String> {
    let document = DeTable::parse(line).ok()?;
    let DeValue::Table(rule) = document.get_ref().get(RULE)?.get_ref() else { return None };
    let mut fields = rule.iter();
    fields
        .find(|(key, value)| (key.span().start..value.span().end).contains(&at))
        .map(|(key, _)| key.get_ref().to_string())
}

fn actions() -> String {
    Action::ALL.map(|(name, _)| name).join(", ")
}

fn suggested(given: &str) -> String {
    let nearest = crate::config::suggestion::nearest(given, Action::ALL.iter().map(|(name, _)| *name));
    nearest.map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// In one line, with the field that was meant if one isn't known.
fn explained(message: &str) -> String {
    const FIELDS: [&str; 7] =
        ["action", "source_labels", "separator", "regex", "modulus", "target_label", "replacement"];
    let text = message.lines().collect::<Vec<_>>().join(" ");
    let unknown = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    match unknown.and_then(|field| crate::config::suggestion::nearest(field, FIELDS)) {
        Some(nearest) => format!("{text}; did you mean {nearest:?}?"),
        None => text,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    action: Option<String>,
    #[serde(default)]
    source_labels: Option<Vec<String>>,
    #[serde(default)]
    separator: Option<String>,
    #[serde(default)]
    regex: Option<String>,
    #[serde(default)]
    modulus: Option<u64>,
    #[serde(default)]
    target_label: Option<String>,
    #[serde(default)]
    replacement: Option<String>,
}

/// What a rule is called while it is read.
const RULE: &str = "rule";

#[derive(Debug, Deserialize)]
struct Line {
    rule: Written,
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let line = format!("{RULE} = {}", text.trim());
        let line: Line = toml::from_str(&line).map_err(|error| RuleError::syntax(&line, &error))?;
        Self::check(line.rule)
    }
}

/// Where a rule says nothing.
const DEFAULT_REGEX: &str = "(.*)";
const DEFAULT_SEPARATOR: &str = ";";
const DEFAULT_REPLACEMENT: &str = "$1";

impl Rule {
    pub fn action(&self) -> Action {
        self.action
    }

    /// True if what it does may depend on this label's value.
    pub fn reads(&self, label: &str) -> bool {
        let compares = matches!(self.action, Action::KeepEqual | Action::DropEqual);
        self.source_labels.iter().any(|source| source == label) || (compares && self.target_label == label)
    }

    fn check(written: Written) -> Result<Self, RuleError> {
        let action = match &written.action {
            None => Action::Replace,
            // Prometheus doesn't mind the case either.
            Some(given) => {
                let lower = given.to_lowercase();
                let known = Action::ALL.iter().find(|(name, _)| *name == lower);
                known.ok_or_else(|| RuleError::Action { given: given.clone() })?.1
            }
        };
        written.check_fields(action)?;
        let regex = written.regex.as_deref().unwrap_or(DEFAULT_REGEX);
        let refused = |why: String| RuleError::Regex { regex: regex.to_owned(), why };
        let regex = go_regex::anchored(regex).map_err(refused)?;
        let or = |value: Option<String>, default: &str| value.unwrap_or_else(|| default.to_owned());
        Ok(Self {
            action,
            source_labels: written.source_labels.unwrap_or_default(),
            separator: or(written.separator, DEFAULT_SEPARATOR),
            regex,
            modulus: written.modulus.unwrap_or(0),
            target_label: written.target_label.unwrap_or_default(),
            replacement: or(written.replacement, DEFAULT_REPLACEMENT),
        })
    }
}

impl Written {
    fn check_fields(&self, action: Action) -> Result<(), RuleError> {
        let target = self.target_label.as_deref().unwrap_or_default();
        if action.needs_target() && target.is_empty() {
            return Err(RuleError::Missing { action, field: "target_label" });
        }
        if action == Action::HashMod && self.modulus.unwrap_or(0) == 0 {
            return Err(RuleError::Missing { action, field: "a modulus that isn't 0" });
        }
        for (field, default, is_set) in self.set_fields() {
            if superfluous(action).contains(&field) && is_set && !default {
                return Err(RuleError::Superfluous { action, field });
            }
        }
        self.check_names(action, target)
    }

    /// The fields, whether they say the default, and whether they are there.
    fn set_fields(&self) -> [(&'static str, bool, bool); 6] {
        let text =
            |value: &Option<String>, default: &str| (value.as_deref() == Some(default), value.is_some());
        let with = |name, (default, is_set)| (name, default, is_set);
        [
            with(SOURCE_LABELS, (false, self.source_labels.is_some())),
            with("separator", text(&self.separator, DEFAULT_SEPARATOR)),
            with("regex", text(&self.regex, DEFAULT_REGEX)),
            with("modulus", (self.modulus == Some(0), self.modulus.is_some())),
            with("target_label", text(&self.target_label, "")),
            with("replacement", text(&self.replacement, DEFAULT_REPLACEMENT)),
        ]
    }

    fn check_names(&self, action: Action, target: &str) -> Result<(), RuleError> {
        if let Some(name) = self.source_labels.iter().flatten().find(|name| !is_label_name(name)) {
            return Err(RuleError::Name { field: SOURCE_LABELS, value: name.clone() });
        }
        let is_template = action == Action::Replace && target.contains('$');
        let is_good = if is_template { is_name_template(target) } else { is_label_name(target) };
        if action.needs_target() && !is_good {
            return Err(RuleError::Name { field: "target_label", value: target.to_owned() });
        }
        let replacement = self.replacement.as_deref().unwrap_or(DEFAULT_REPLACEMENT);
        if action == Action::LabelMap && !is_name_template(replacement) {
            return Err(RuleError::Name { field: "replacement", value: replacement.to_owned() });
        }
        Ok(())
    }
}

/// What Prometheus refuses instead of ignoring it.
fn superfluous(action: Action) -> &'static [&'static str] {
    match action {
        Action::Lowercase | Action::Uppercase => &["replacement"],
        Action::KeepEqual | Action::DropEqual => &["regex", "modulus", "separator", "replacement"],
        Action::LabelDrop | Action::LabelKeep => {
            &["source_labels", "target_label", "modulus", "separator", "replacement"]
        }
        _ => &[],
    }
}

/// A label name in which parts may be references: `$1`, `${name}`.
pub(super) fn is_name_template(text: &str) -> bool {
    static TEMPLATE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"^(?:(?:[a-zA-Z_]|\$(?:\{[0-9A-Za-z_]+\}|[0-9A-Za-z_]+))+[0-9A-Za-z_]*)+$").ok()
    });
    TEMPLATE.as_ref().is_some_and(|template| template.is_match(text))
}
