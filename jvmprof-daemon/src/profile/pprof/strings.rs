//! pprof's table of strings.

use std::collections::HashMap;

use crate::proto::pprof::Profile;

/// Returns the text at an index of a profile's strings; `""` for any other.
pub fn text_at(profile: &Profile, index: i64) -> &str {
    let index = usize::try_from(index).ok();
    index.and_then(|index| profile.string_table.get(index)).map_or("", String::as_str)
}

/// Each text once; entry 0 is `""`.
#[derive(Debug)]
pub(super) struct PprofStrings {
    indices: HashMap<Box<str>, i64>,
    table: Vec<Box<str>>,
}

impl Default for PprofStrings {
    fn default() -> Self {
        Self { indices: HashMap::from([("".into(), 0)]), table: vec!["".into()] }
    }
}

impl PprofStrings {
    /// The index of the text, which is added if it isn't there.
    pub(super) fn index(&mut self, text: &str) -> i64 {
        if let Some(index) = self.indices.get(text) {
            return *index;
        }
        let index = self.table.len() as i64;
        self.indices.insert(text.into(), index);
        self.table.push(text.into());
        index
    }

    /// The text at an index that this table gave; `""` for any other.
    pub(super) fn get(&self, index: i64) -> &str {
        usize::try_from(index).ok().and_then(|index| self.table.get(index)).map_or("", |text| text)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn into_table(self) -> Vec<String> {
        self.table.into_iter().map(String::from).collect()
    }
}
