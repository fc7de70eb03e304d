//! Attributes of a resource, by the names of OpenTelemetry, within bounds.

use std::collections::BTreeMap;

/// Number of attributes that are kept of one source.
const MAX_ATTRIBUTES: usize = 64;
/// Bytes of names and values that are kept of one source.
const MAX_BYTES: usize = 16 << 10;
/// Bytes of a name, at most.
const MAX_NAME_BYTES: usize = 128;

/// Bytes of a value that are kept: a label of it is cut before that, at 1,024 characters.
pub(crate) const MAX_VALUE_BYTES: usize = 4 * 1025;

/// Attributes of a resource. Of two with the same name the first one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAttributes {
    values: BTreeMap<String, String>,
    bytes: usize,
}

impl ResourceAttributes {
    /// Adds an attribute; false if it isn't kept. An empty one says nothing.
    pub(super) fn insert(&mut self, name: &str, value: &str) -> bool {
        let Some(value) = kept(value) else { return true };
        let bytes = self.bytes + name.len() + value.len();
        let is_kept = !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && self.values.len() < MAX_ATTRIBUTES
            && bytes <= MAX_BYTES
            && !self.values.contains_key(name);
        if is_kept {
            self.values.insert(name.to_owned(), value);
            self.bytes = bytes;
        }
        is_kept
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns these attributes, and of others those that are missing.
    pub(super) fn or(mut self, other: &Self) -> Self {
        for (name, value) in &other.values {
            self.values.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self
    }
}

/// Returns a value as far as it is kept, and `None` for one that says nothing.
pub(super) fn kept(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value[..value.floor_char_boundary(MAX_VALUE_BYTES)].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_bounded_in_number_and_bytes() {
        let mut many = ResourceAttributes::default();
        let kept = (0..1000).filter(|number| many.insert(&format!("key{number}"), "x")).count();
        assert_eq!((kept, many.iter().count()), (MAX_ATTRIBUTES, MAX_ATTRIBUTES));
        let mut long = ResourceAttributes::default();
        let value = "é".repeat(MAX_VALUE_BYTES);
        let kept = (0..10).filter(|number| long.insert(&format!("key{number}"), &value)).count();
        assert_eq!(kept, 3, "three values fill the limit");
        assert!(!long.insert(&"k".repeat(MAX_NAME_BYTES + 1), "x"));
        assert!(!long.insert("", "x"));
    }

    #[test]
    fn the_first_value_of_a_name_counts_and_an_empty_one_says_nothing() {
        let mut attributes = ResourceAttributes::default();
        assert!(attributes.insert("a", " "));
        assert!(attributes.insert("a", " 1 "));
        assert!(!attributes.insert("a", "2"));
        assert_eq!(attributes.iter().collect::<Vec<_>>(), [("a", "1")]);
        let mut other = ResourceAttributes::default();
        other.insert("a", "3");
        other.insert("b", "4");
        assert_eq!(attributes.or(&other).iter().collect::<Vec<_>>(), [("a", "1"), ("b", "4")]);
    }
}
