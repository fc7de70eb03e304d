//! The labels that records become, as many of them as a window may have.

use std::collections::HashMap;
use std::sync::Arc;

use super::record::ThreadContextRecord;
use crate::process::ProcessKey;
use crate::profile::aggregate::NamedStack;
use crate::profile::model::{SampleLabel, SampleLabels, label_names};
use crate::types::hex;

/// Different contexts of one window that become labels, at most, and bytes of them.
const MAX_CONTEXTS: usize = 10_000;
const MAX_CONTEXT_BYTES: usize = 8 << 20;
/// Bytes that a context takes beside its record and its values.
const CONTEXT_BYTES: usize = 256;

/// Labels the stacks of samples by the records of their threads.
#[derive(Debug)]
pub(super) struct ContextLabels {
    /// Names of attributes, each with that of its label.
    attributes: Vec<(String, Arc<str>)>,
    /// The names of the two other labels.
    ids: [Arc<str>; 2],
    /// Labels of this window: those that the sample had, and those that it has instead.
    labels: HashMap<ContextKey, [SampleLabels; 2]>,
    /// Bytes that these take.
    bytes: usize,
    /// Samples that were labelled.
    pub(super) labelled: u64,
    /// Samples without labels, since their window has too many different contexts.
    pub(super) left_out: u64,
}

/// A process, how many keys of attributes it has, the address of labels, and a record.
type ContextKey = (ProcessKey, usize, usize, Box<[u8]>);

impl ContextLabels {
    /// Makes the labels of contexts. `attributes`: names of those that become labels, each with
    /// that of its label.
    pub(super) fn new(attributes: Vec<(String, String)>) -> Self {
        Self {
            attributes: attributes.into_iter().map(|(name, label)| (name, label.into())).collect(),
            ids: [label_names::TRACE_ID, label_names::SPAN_ID].map(Arc::from),
            labels: HashMap::new(),
            bytes: 0,
            labelled: 0,
            left_out: 0,
        }
    }

    /// Adds the labels of a record, which has these bytes, to those of a sample's stacks. `keys`:
    /// the names of attributes of its process, by their index.
    pub(super) fn label<'a>(
        &mut self,
        process: ProcessKey,
        keys: &[Box<str>],
        record: &ThreadContextRecord<'_>,
        bytes: &[u8],
        stacks: impl Iterator<Item = &'a mut NamedStack>,
    ) {
        let results = stacks.map(|stack| self.label_stack(process, keys, (record, bytes), stack));
        match results.min() {
            Some(LabelResult::LeftOut) => self.left_out += 1,
            Some(LabelResult::Labelled) => self.labelled += 1,
            Some(LabelResult::Nothing) | None => {}
        }
    }

    fn label_stack(
        &mut self,
        process: ProcessKey,
        keys: &[Box<str>],
        (record, bytes): (&ThreadContextRecord<'_>, &[u8]),
        stack: &mut NamedStack,
    ) -> LabelResult {
        let key = (process, keys.len(), stack.labels.address(), bytes.into());
        if let Some([_, labelled]) = self.labels.get(&key) {
            stack.labels = labelled.clone();
            return LabelResult::Labelled;
        }
        let own = self.labels_of(record, keys);
        if own.is_empty() {
            return LabelResult::Nothing;
        }
        let size = CONTEXT_BYTES + bytes.len() + own.iter().map(|label| label.value.len()).sum::<usize>();
        if self.labels.len() >= MAX_CONTEXTS || self.bytes + size > MAX_CONTEXT_BYTES {
            return LabelResult::LeftOut;
        }
        self.bytes += size;
        let all: Vec<SampleLabel> = stack.labels.iter().cloned().chain(own).collect();
        // The former are kept, so that no others get their address.
        let before = std::mem::replace(&mut stack.labels, SampleLabels::new(all));
        self.labels.insert(key, [before, stack.labels.clone()]);
        LabelResult::Labelled
    }

    fn labels_of(&self, record: &ThreadContextRecord<'_>, keys: &[Box<str>]) -> Vec<SampleLabel> {
        let label =
            |name: &Arc<str>, value: &str| SampleLabel { name: Arc::clone(name), value: value.into() };
        let mut labels = Vec::new();
        if record.has_span() {
            let [trace, span] = &self.ids;
            labels.extend([label(trace, &hex(&record.trace_id)), label(span, &hex(&record.span_id))]);
        }
        for (attribute, name) in &self.attributes {
            let is_it = |key: u8| keys.get(usize::from(key)).is_some_and(|it| **it == **attribute);
            // Of several values the last one counts.
            let value = record.attributes().filter(|(key, _)| is_it(*key)).last();
            if let Some((_, value)) = value.filter(|(_, value)| !value.is_empty()) {
                labels.push(label(name, &String::from_utf8_lossy(value).replace(char::is_control, " ")));
            }
        }
        labels
    }

    /// Begins the next window.
    pub(super) fn begin_window(&mut self) {
        self.labels.clear();
        self.bytes = 0;
    }
}

/// The result of adding labels to a stack; the first one counts for a sample of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LabelResult {
    LeftOut,
    Labelled,
    /// The record says nothing that is to be a label.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels of all attributes that these tests use.
    fn context_labels() -> ContextLabels {
        let attributes = [("http.route", "http_route"), ("query", "query")];
        ContextLabels::new(attributes.map(|(name, label)| (name.to_owned(), label.to_owned())).into())
    }

    /// The record of a span of this number (0: of none), with these attributes.
    fn record(number: u64, attributes: &[(u8, &str)]) -> Vec<u8> {
        let mut encoded = Vec::new();
        for (key, value) in attributes {
            encoded.extend([*key, u8::try_from(value.len()).expect("a short value")]);
            encoded.extend_from_slice(value.as_bytes());
        }
        let size = u16::try_from(encoded.len()).expect("few attributes").to_le_bytes();
        let (trace, span) = (u128::from(number).to_be_bytes(), number.to_be_bytes());
        [&trace[..], &span, &[1, 0], &size, encoded.as_slice()].concat()
    }

    /// Labels a sample of so many stacks, and returns the labels of each.
    fn label(labels: &mut ContextLabels, bytes: &[u8], stacks: usize) -> Vec<SampleLabels> {
        let keys: [Box<str>; 2] = ["http.route", "query"].map(Box::from);
        let record = ThreadContextRecord::parse(bytes).expect("a record");
        let stack = || NamedStack { frames: Arc::default(), labels: SampleLabels::default(), pending: false };
        let mut stacks: Vec<NamedStack> = (0..stacks).map(|_| stack()).collect();
        labels.label(ProcessKey::numbered(1), &keys, &record, bytes, stacks.iter_mut());
        stacks.into_iter().map(|stack| stack.labels).collect()
    }

    fn pairs(labels: &SampleLabels) -> Vec<(&str, &str)> {
        labels.iter().map(|label| (&*label.name, &*label.value)).collect()
    }

    #[test]
    fn equal_contexts_are_the_same_labels_and_take_no_more_room() {
        let mut labels = context_labels();
        let bytes = record(0x1f, &[(0, "/old"), (0, "/route"), (1, ""), (9, "no key")]);
        let first = label(&mut labels, &bytes, 2);
        let (trace, span) = (format!("{:032x}", 0x1f), format!("{:016x}", 0x1f));
        let expected = [("trace_id", &*trace), ("span_id", &*span), ("http_route", "/route")];
        assert_eq!(pairs(&first[0]), expected);
        let taken = labels.bytes;
        let again = label(&mut labels, &bytes, 1);
        assert!(first.iter().all(|it| it.address() == again[0].address()));
        assert_eq!((labels.bytes, labels.labels.len()), (taken, 1));
        assert_eq!((labels.labelled, labels.left_out), (2, 0));
    }

    #[test]
    fn a_record_that_says_nothing_is_neither_labelled_nor_left_out() {
        let mut labels = context_labels();
        let found = label(&mut labels, &record(0, &[(1, "")]), 1);
        assert!(pairs(&found[0]).is_empty());
        assert_eq!((labels.labelled, labels.left_out, labels.bytes), (0, 0, 0));
    }

    #[test]
    fn a_window_has_so_many_contexts_and_the_samples_of_further_ones_are_counted() {
        let (mut labels, most) = (context_labels(), MAX_CONTEXTS as u64);
        for number in 1..=most {
            label(&mut labels, &record(number, &[]), 1);
        }
        assert_eq!((labels.labelled, labels.left_out), (most, 0));
        // A sample of several stacks counts once.
        let beyond = record(most + 1, &[]);
        let left = label(&mut labels, &beyond, 2);
        assert!(left.iter().all(|labels| pairs(labels).is_empty()));
        assert_eq!((labels.labelled, labels.left_out), (most, 1));
        // One that is there already needs no room.
        let known = label(&mut labels, &record(most, &[]), 1);
        assert_eq!(pairs(&known[0]).len(), 2);
        assert_eq!((labels.labelled, labels.left_out), (most + 1, 1));
        // The next window has room again; what was counted stays.
        labels.begin_window();
        assert_eq!(pairs(&label(&mut labels, &beyond, 1)[0]).len(), 2);
        assert_eq!((labels.labelled, labels.left_out), (most + 2, 1));
        assert_eq!(labels.labels.len(), 1);
    }

    #[test]
    fn the_contexts_of_a_window_take_so_many_bytes_and_smaller_ones_may_still_have_room() {
        let (mut labels, long) = (context_labels(), "x".repeat(255));
        let large = |number| record(number, &[(0, &*long), (1, &*long)]);
        // The values are those of the attributes, and two ids in hexadecimal digits.
        let size = CONTEXT_BYTES + large(1).len() + 2 * 255 + 32 + 16;
        let room = (MAX_CONTEXT_BYTES / size) as u64;
        assert!(room < MAX_CONTEXTS as u64, "else that limit would be the one that is met");
        for number in 1..=room + 3 {
            label(&mut labels, &large(number), 1);
        }
        assert_eq!((labels.labelled, labels.left_out), (room, 3));
        assert_eq!(labels.bytes, room as usize * size);
        let small = record(room + 4, &[]);
        let size_of_small = CONTEXT_BYTES + small.len() + 32 + 16;
        let has_capacity = labels.bytes + size_of_small <= MAX_CONTEXT_BYTES;
        assert_eq!(pairs(&label(&mut labels, &small, 1)[0]).is_empty(), !has_capacity);
        assert!(labels.bytes <= MAX_CONTEXT_BYTES);
    }
}
