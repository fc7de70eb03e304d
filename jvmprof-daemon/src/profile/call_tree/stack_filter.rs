//! Choice of the stacks that a tree is made of. The page takes stacks out of a tree in the same way
//! (`assets/tree/edits.js`, `activities.js`), but can't see below `[pruned]`.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{CallStep, NodeKind, PathHash, TreeBuilder};
use crate::profile::jvm_activity::{JvmActivity, SampledActivity, ThreadKind};

/// Conditions that all stacks of a tree meet; by default none.
#[derive(Clone, Debug, Default)]
pub struct StackFilter {
    /// They pass through one of these nodes, if there are any.
    pub under: Vec<PathHash>,
    /// They have each of these functions; at most [`MAX_WANTED`].
    pub wanted: Vec<FunctionPattern>,
    /// They have none of these functions.
    pub unwanted: Vec<FunctionPattern>,
    /// Their samples were taken in one of these, if there are any and that is known.
    pub activities: BTreeSet<JvmActivity>,
    /// The same of the kinds of threads.
    pub threads: BTreeSet<ThreadKind>,
}

/// Functions that each stack has, at most.
pub const MAX_WANTED: usize = u64::BITS as usize;

impl StackFilter {
    /// Returns true if each stack is taken.
    pub fn takes_all(&self) -> bool {
        self.under.is_empty() && !self.is_of_functions() && !self.is_of_samples()
    }

    fn is_of_functions(&self) -> bool {
        !self.wanted.is_empty() || !self.unwanted.is_empty()
    }

    /// Returns true if it matters what samples were taken in.
    pub(super) fn is_of_samples(&self) -> bool {
        !self.activities.is_empty() || !self.threads.is_empty()
    }

    /// Returns true if samples are taken that were taken in this.
    pub(super) fn takes_sampled_in(&self, sampled_in: SampledActivity) -> bool {
        let is_of_jvm = sampled_in.activity != JvmActivity::OtherProcess;
        (self.activities.is_empty() || self.activities.contains(&sampled_in.activity))
            && (self.threads.is_empty() || (is_of_jvm && self.threads.contains(&sampled_in.thread)))
    }

    /// Returns which of the patterns match a function.
    pub(super) fn matches(&self, kind: NodeKind, name: &str) -> FunctionMatches {
        if !self.is_of_functions() {
            return FunctionMatches::default();
        }
        let name = &shown_name(name);
        let is_match = |pattern: &FunctionPattern| pattern.matches(kind, name);
        let wanted = self.wanted.iter().zip(0..).filter(|(pattern, _)| is_match(pattern));
        FunctionMatches {
            wanted: wanted.fold(0, |bits, (_, at)| bits | bit(at)),
            is_unwanted: self.unwanted.iter().any(is_match),
        }
    }

    fn all_wanted(&self) -> u64 {
        self.wanted.iter().zip(0..).fold(0, |bits, (_, at)| bits | bit(at))
    }
}

fn bit(at: u32) -> u64 {
    1_u64.checked_shl(at).unwrap_or(0)
}

/// The patterns that match one function: a bit for each that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FunctionMatches {
    wanted: u64,
    is_unwanted: bool,
}

/// A function's name, or with `.*` at its end all of a class or package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPattern {
    text: String,
    takes_groups: bool,
}

impl FunctionPattern {
    /// The functions that a text means.
    pub fn of_code(text: &str) -> Self {
        Self { text: text.to_owned(), takes_groups: false }
    }

    /// The same, and groups of stacks with such a name.
    pub fn of_code_or_group(text: &str) -> Self {
        Self { text: text.to_owned(), takes_groups: true }
    }

    /// Returns true if a node matches. `name` is as the page shows it.
    fn matches(&self, kind: NodeKind, name: &str) -> bool {
        let is_kind = match kind {
            NodeKind::Root | NodeKind::Pruned => false,
            NodeKind::Label => self.takes_groups,
            _ => true,
        };
        is_kind
            && match self.text.strip_suffix('*') {
                Some(start) if start.ends_with('.') => name.starts_with(start),
                _ => name == self.text,
            }
    }
}

/// Returns a function's name as the page shows it (`visible` in `tree.js`): characters that hide or
/// turn around what stands beside them are written out.
fn shown_name(name: &str) -> Cow<'_, str> {
    let is_hidden = |character: char| {
        matches!(
            character,
            '\0'..='\u{1f}'
                | '\u{7f}'..='\u{9f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
        )
    };
    if name.is_empty() {
        return Cow::Borrowed("(no name)");
    }
    if !name.contains(is_hidden) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::new();
    for character in name.chars() {
        if is_hidden(character) {
            let _ = write!(shown, "\\u{:04x}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

impl TreeBuilder {
    /// Makes a builder that counts only stacks that the filter takes.
    pub fn of_stacks(filter: StackFilter) -> Self {
        Self { filter, ..Self::default() }
    }

    /// Returns true if the filter takes a stack, whatever its samples were taken in.
    pub(super) fn takes_path(&self, path: &[CallStep]) -> bool {
        self.is_under(path) && self.has_functions(path)
    }

    fn is_under(&self, path: &[CallStep]) -> bool {
        let mut at = PathHash::ROOT;
        self.filter.under.is_empty()
            || path.iter().any(|step| {
                at = at.child(self.hashes[step.function.0 as usize]);
                self.filter.under.contains(&at)
            })
    }

    fn has_functions(&self, path: &[CallStep]) -> bool {
        if !self.filter.is_of_functions() {
            return true;
        }
        let mut wanted = 0;
        for step in path {
            let matches = self.matches[step.function.0 as usize];
            if matches.is_unwanted {
                return false;
            }
            wanted |= matches.wanted;
        }
        wanted == self.filter.all_wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_the_functions_that_the_page_means_by_it() {
        let java = |text: &str, name: &str| FunctionPattern::of_code(text).matches(NodeKind::Java, name);
        assert!(java("acme.Order.total", "acme.Order.total"));
        assert!(!java("acme.Order.total", "acme.Order.totals") && !java("acme.Order", "acme.Order.total"));
        assert!(java("acme.*", "acme.Order.total") && !java("acme.*", "acmeware.Order.total"));
        assert!(java("operator*", "operator*") && !java("operator*", "operator+"), "no dot before it");
        let of_code = FunctionPattern::of_code("java");
        let kinds = [NodeKind::Root, NodeKind::Label, NodeKind::Pruned, NodeKind::Native, NodeKind::Marker];
        assert_eq!(kinds.map(|kind| of_code.matches(kind, "java")), [false, false, false, true, true]);
        let or_group = FunctionPattern::of_code_or_group("java");
        assert_eq!(kinds.map(|kind| or_group.matches(kind, "java")), [false, true, false, true, true]);
    }

    /// `tests/page/scripts/edits.test.mjs` asks the page's own for the same.
    #[test]
    fn names_are_those_that_the_page_shows() {
        assert_eq!(shown_name("acme.Größe.total"), "acme.Größe.total");
        assert_eq!(shown_name("a\u{202e}b\n\u{feff}"), "a\\u202eb\\u000a\\ufeff");
        assert_eq!(shown_name(""), "(no name)");
    }
}
