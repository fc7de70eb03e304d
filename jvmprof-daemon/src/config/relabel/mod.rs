//! Relabelling with the semantics of Prometheus (`relabel_configs`, prometheus/prometheus
//! `model/relabel`): rules that are applied in order to a label set, each of which may change it or
//! drop it.
//!
//! A label without a value and a label that isn't there are the same.

mod go_regex;
mod rule;
#[cfg(test)]
mod tests;

use md5::{Digest, Md5};

pub use rule::{RelabelAction, RelabelRule, RuleError};

use crate::profile::model::LabelSet;

/// Applies the rules. Returns false if they drop the label set, whose contents are meaningless
/// then.
#[must_use]
pub fn relabel(rules: &[RelabelRule], labels: &mut LabelSet) -> bool {
    rules.iter().all(|rule| rule.apply(labels))
}

/// Applies the rules to a label set that stands for several which they have kept: they change it
/// and don't drop it.
pub fn relabel_kept(rules: &[RelabelRule], labels: &mut LabelSet) {
    for rule in rules {
        let _is_kept = rule.apply(labels);
    }
}

/// Removes labels that only rules see, empty ones, and those whose names backends refuse.
pub fn retain_public(labels: &mut LabelSet) {
    labels.retain(|name, value| !name.starts_with("__") && is_label_name(name) && !value.is_empty());
}

/// Returns true for a name that backends of the Parca family accept: `[a-zA-Z_][a-zA-Z0-9_]*`.
pub fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl RelabelRule {
    /// Applies one rule. Returns false if it drops the label set.
    fn apply(&self, labels: &mut LabelSet) -> bool {
        match self.action {
            RelabelAction::Keep => return self.regex.is_match(&self.source(labels)),
            RelabelAction::Drop => return !self.regex.is_match(&self.source(labels)),
            RelabelAction::KeepEqual => return self.source(labels) == get(labels, &self.target_label),
            RelabelAction::DropEqual => return self.source(labels) != get(labels, &self.target_label),
            RelabelAction::Replace => self.replace(labels),
            RelabelAction::Lowercase => self.set(labels, each_char(&self.source(labels), char::to_lowercase)),
            RelabelAction::Uppercase => self.set(labels, each_char(&self.source(labels), char::to_uppercase)),
            RelabelAction::HashMod => self.set(labels, self.hash(&self.source(labels)).to_string()),
            RelabelAction::LabelMap => self.map_names(labels),
            RelabelAction::LabelDrop => labels.retain(|name, _| !self.regex.is_match(name)),
            RelabelAction::LabelKeep => labels.retain(|name, _| self.regex.is_match(name)),
        }
        true
    }

    fn source(&self, labels: &LabelSet) -> String {
        let values: Vec<&str> = self.source_labels.iter().map(|name| get(labels, name)).collect();
        values.join(&self.separator)
    }

    fn set(&self, labels: &mut LabelSet, value: String) {
        set(labels, self.target_label.clone(), value);
    }

    fn replace(&self, labels: &mut LabelSet) {
        let source = self.source(labels);
        let Some(captures) = self.regex.captures(&source) else { return };
        let mut target = String::new();
        captures.expand(&self.target_label, &mut target);
        if !is_label_name(&target) {
            return;
        }
        let mut value = String::new();
        captures.expand(&self.replacement, &mut value);
        set(labels, target, value);
    }

    fn map_names(&self, labels: &mut LabelSet) {
        let mut mapped = Vec::new();
        for (name, value) in labels.iter() {
            if let Some(captures) = self.regex.captures(name) {
                let mut target = String::new();
                captures.expand(&self.replacement, &mut target);
                mapped.push((target, value.clone()));
            }
        }
        for (name, value) in mapped {
            set(labels, name, value);
        }
    }

    /// Returns the last eight bytes of MD5 modulo `modulus`, as Prometheus does, so that the shards
    /// of both are the same.
    fn hash(&self, text: &str) -> u64 {
        let sum: [u8; 16] = Md5::digest(text).into();
        let [.., a, b, c, d, e, f, g, h] = sum;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) % self.modulus.max(1)
    }
}

fn get<'a>(labels: &'a LabelSet, name: &str) -> &'a str {
    labels.get(name).map_or("", String::as_str)
}

fn set(labels: &mut LabelSet, name: String, value: String) {
    if value.is_empty() {
        labels.remove(&name);
    } else {
        labels.insert(name, value);
    }
}

/// Maps each character to one, as Go does: a character without a single counterpart stays.
fn each_char<I: Iterator<Item = char>>(text: &str, map: impl Fn(char) -> I) -> String {
    let one = |char| {
        let mut mapped = map(char);
        mapped.next().filter(|_| mapped.next().is_none()).unwrap_or(char)
    };
    text.chars().map(one).collect()
}
