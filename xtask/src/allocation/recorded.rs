//! What a recording says of the same program.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::files;

/// The class of the oracle whose methods are its paths.
const WORKER: &str = "Allocations$Worker.";
/// How the JVM names the class of a lambda, before a number.
const LAMBDA: &str = "$$Lambda";

/// A recording: bytes by class and path.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    by_path: BTreeMap<(String, String), u64>,
    pub(super) bytes: u64,
    pub(super) events: u64,
    pub(super) effective_events: u64,
    pub(super) censuses: u64,
    losses: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct Summary {
    allocation: AllocationSummary,
    losses: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct AllocationSummary {
    events: u64,
    effective_events: u64,
    censuses: u64,
}

/// Bytes of a buffer, about: what a census counts.
const TLAB_BYTES: f64 = 512.0 * 1024.0;

impl Recorded {
    /// Reads the folded stacks of a recording, and its summary.
    ///
    /// # Errors
    /// One of them can't be read.
    pub(super) fn read(folded: &Path, json: &str) -> anyhow::Result<Self> {
        let text = files::read_text(folded)?;
        let summary: Summary = serde_json::from_str(json).with_context(|| format!("reading {json:?}"))?;
        let mut recorded = Self {
            events: summary.allocation.events,
            effective_events: summary.allocation.effective_events,
            censuses: summary.allocation.censuses,
            losses: summary.losses,
            ..Self::default()
        };
        recorded.add_folded(&text)?;
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
        // A lambda's class is named by the class whose method makes it.
        let mut class = frames.next().unwrap_or_default().replace("Allocations$Worker$$", "Allocations$$");
        // What other profilers add to it is another number in each run.
        if let Some(at) = class.find(LAMBDA) {
            class.truncate(at + LAMBDA.len());
        }
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

    /// The part of all objects that the censuses have counted, about.
    pub(super) fn counted_share(&self, bytes: u64) -> f64 {
        (self.censuses as f64 * TLAB_BYTES / bytes.max(1) as f64).min(1.0)
    }

    pub(super) fn losses_text(&self) -> String {
        let all = self
            .losses
            .iter()
            .filter(|(name, _)| name.starts_with("allocation") || name.starts_with("trunc"));
        all.map(|(name, count)| format!(", {count} {name}")).collect()
    }
}
