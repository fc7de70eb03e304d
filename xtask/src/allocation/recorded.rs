//! The allocations of the same program in a recording.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::files;

/// The class of the oracle whose methods are its paths.
const WORKER: &str = "Allocations$Worker.";
/// The name that the JVM gives the class of a lambda, before a number.
const LAMBDA: &str = "$$Lambda";

/// A recording: bytes by class and path.
#[derive(Debug, Default)]
pub(super) struct RecordedAllocations {
    by_path: BTreeMap<(String, String), u64>,
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) effective_events: u64,
    pub(super) censuses: u64,
    pub(super) screened_buffers: u64,
    losses: BTreeMap<String, u64>,
    /// What the recording says of the classes with most bytes.
    classes: BTreeMap<String, ClassRow>,
}

#[derive(Debug, Deserialize)]
struct RecordedSummary {
    allocation: AllocationSummary,
    losses: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct AllocationSummary {
    events: u64,
    effective_events: u64,
    censuses: u64,
    screened_buffers: u64,
    classes: Vec<ClassRow>,
}

#[derive(Debug, Deserialize)]
struct ClassRow {
    name: String,
    counted_bytes: u64,
    error_percent: Option<f64>,
}

impl RecordedAllocations {
    /// Reads the folded stacks of a recording, and its summary.
    ///
    /// # Errors
    /// One of them can't be read.
    pub(super) fn read(folded: &Path, json: &str) -> anyhow::Result<Self> {
        Self::parse(&files::read_text(folded)?, json)
    }

    /// The same of their texts.
    ///
    /// # Errors
    /// One of them can't be understood.
    pub(super) fn parse(folded: &str, json: &str) -> anyhow::Result<Self> {
        let summary: RecordedSummary =
            serde_json::from_str(json).with_context(|| format!("reading {json:?}"))?;
        let mut recorded = Self {
            events: summary.allocation.events,
            effective_events: summary.allocation.effective_events,
            censuses: summary.allocation.censuses,
            screened_buffers: summary.allocation.screened_buffers,
            losses: summary.losses,
            classes: summary
                .allocation
                .classes
                .into_iter()
                .map(|row| (oracle_name(&row.name), row))
                .collect(),
            ..Self::default()
        };
        recorded.add_folded(folded)?;
        Ok(recorded)
    }

    /// Adds folded stacks whose leaves are classes.
    ///
    /// # Errors
    /// A line can't be understood.
    pub(super) fn add_folded(&mut self, text: &str) -> anyhow::Result<()> {
        for line in text.lines() {
            let (stack, bytes) = line.rsplit_once(' ').with_context(|| format!("reading {line:?}"))?;
            let bytes: u64 = bytes.parse().with_context(|| format!("reading {line:?}"))?;
            self.add(stack, bytes);
        }
        Ok(())
    }

    fn add(&mut self, stack: &str, bytes: u64) {
        let mut frames = stack.rsplit(';');
        let class = oracle_name(frames.next().unwrap_or_default());
        let path = frames.find_map(|frame| frame.strip_prefix(WORKER)).unwrap_or_default();
        // Whose class no stack is known of is of no path.
        *self.by_path.entry((class, path.to_owned())).or_default() += bytes;
        self.bytes += bytes;
    }

    pub(super) fn class(&self, class: &str) -> u64 {
        self.by_path.iter().filter(|((of, _), _)| of == class).map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn path(&self, class: &str, path: &str) -> u64 {
        self.by_path.get(&(class.to_owned(), path.to_owned())).copied().unwrap_or(0)
    }

    /// Events of equal weight to be expected of what has this share of all bytes.
    pub(super) fn expected_events(&self, share: f64) -> f64 {
        self.effective_events as f64 * share
    }

    /// The standard error that the recording states of a class, relative to its bytes.
    pub(super) fn deviation(&self, class: &str) -> Option<f64> {
        self.classes.get(class)?.error_percent.map(|percent| percent / 100.0)
    }

    /// Bytes of a class whose objects were each an event, if the recording says them.
    pub(super) fn counted_bytes(&self, class: &str) -> Option<u64> {
        self.classes.get(class).map(|row| row.counted_bytes)
    }

    /// Classes that methods of the oracle allocate, and that it doesn't count.
    pub(super) fn unexpected(&self, expected: &[(String, u64, u64)]) -> BTreeMap<&str, u64> {
        let mut found = BTreeMap::new();
        for ((class, path), bytes) in &self.by_path {
            if !path.is_empty() && !expected.iter().any(|(name, ..)| name == class) {
                *found.entry(class.as_str()).or_default() += bytes;
            }
        }
        found
    }

    pub(super) fn losses_text(&self) -> String {
        let all = self
            .losses
            .iter()
            .filter(|(name, _)| name.starts_with("allocation") || name.starts_with("trunc"));
        all.map(|(name, count)| format!(", {count} {name}")).collect()
    }
}

/// Returns the name that the oracle has for a class: a lambda's is named by the class whose method
/// makes it, and what other profilers add to it is another number in each run.
fn oracle_name(class: &str) -> String {
    let mut name = class.replace("Allocations$Worker$$", "Allocations$$");
    if let Some(at) = name.find(LAMBDA) {
        name.truncate(at + LAMBDA.len());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_oracles_names_and_what_the_recording_says_of_them() {
        let json = r#"{"losses": {}, "allocation": {"events": 1, "effective_events": 1,
            "censuses": 2, "screened_buffers": 0,
            "classes": [{"name": "Allocations$Worker$$Lambda/0x123", "counted_bytes": 5, "error_percent": 1.5},
                {"name": "byte[]", "counted_bytes": 7}]}}"#;
        let folded = "a;Allocations$Worker.lambda;Allocations$Worker$$Lambda/0x123 40\nbyte[] 2\n\
            a;Allocations$Worker.scalarReplaced;Allocations$Escaped 24\n";
        let recorded = RecordedAllocations::parse(folded, json).unwrap();
        let lambda = "Allocations$$Lambda";
        assert_eq!((recorded.class(lambda), recorded.path(lambda, "lambda")), (40, 40));
        assert_eq!((recorded.deviation(lambda), recorded.counted_bytes(lambda)), (Some(0.015), Some(5)));
        assert_eq!((recorded.deviation("byte[]"), recorded.counted_bytes("byte[]")), (None, Some(7)));
        assert_eq!((recorded.deviation("int[]"), recorded.counted_bytes("int[]")), (None, None));
        let unexpected = recorded.unexpected(&[(lambda.to_owned(), 40, 1)]);
        assert_eq!(
            unexpected,
            BTreeMap::from([("Allocations$Escaped", 24)]),
            "the JVM's own aren't the oracle's"
        );
    }
}
