//! The ledger that a daemon keeps beside its spool.
//!
//! It is read anew here rather than by the daemon's own reader: what the soak holds against the
//! daemon must not come from its code, and xtask needn't be built with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;

const SLOT_BYTES: usize = 16_384;

/// A number of samples of each event, by its name; those that there are none of are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct SamplesByEvent(BTreeMap<String, u64>);

impl SamplesByEvent {
    pub(super) fn of(&self, event: &str) -> u64 {
        self.0.get(event).copied().unwrap_or(0)
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (event, samples) in &other.0 {
            *sum.0.entry(event.clone()).or_default() += samples;
        }
        sum
    }
}

impl<'a> FromIterator<(&'a str, u64)> for SamplesByEvent {
    fn from_iter<I: IntoIterator<Item = (&'a str, u64)>>(samples: I) -> Self {
        Self(samples.into_iter().map(|(event, samples)| (event.to_owned(), samples)).collect())
    }
}

/// The part of a ledger's entry that is needed here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LedgerEntry {
    pub(super) sequence: u64,
    pub(super) earlier: Counts,
    pub(super) run: Counts,
    pub(super) taken: SamplesByEvent,
    /// The part of them that the daemon has taken itself, so that the kernel's counter hasn't.
    #[serde(default)]
    pub(super) taken_by_daemon: SamplesByEvent,
    pub(super) lost_before: SamplesByEvent,
    /// What the daemon had handed over to sinks that settings have replaced by this one.
    pub(super) handed_over_before: SamplesByEvent,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Counts {
    pub(super) handed_over: SamplesByEvent,
    pub(super) delivered: SamplesByEvent,
    pub(super) delivered_late: SamplesByEvent,
    pub(super) losses: BTreeMap<String, SamplesByEvent>,
    pub(super) spooled: SamplesByEvent,
    pub(super) waiting: SamplesByEvent,
}

impl LedgerEntry {
    /// The last entry of the ledger in the only backend's folder.
    pub(super) fn read(spool: &Path) -> anyhow::Result<Self> {
        let folders = fs::read_dir(spool).with_context(|| format!("reading {}", spool.display()))?;
        for folder in folders.filter_map(Result::ok) {
            let path = folder.path().join("ledger");
            let Ok(bytes) = fs::read(&path) else { continue };
            let entries = bytes.chunks(SLOT_BYTES).filter_map(decode);
            let last = entries.max_by_key(|entry| entry.sequence);
            return last.with_context(|| format!("no entry in {}", path.display()));
        }
        bail!("no ledger below {}", spool.display())
    }

    /// All runs up to this entry.
    pub(super) fn total(&self) -> Counts {
        let mut losses = self.earlier.losses.clone();
        for (reason, samples) in &self.run.losses {
            let sum = losses.entry(reason.clone()).or_default();
            *sum = sum.plus(samples);
        }
        Counts {
            handed_over: self.earlier.handed_over.plus(&self.run.handed_over),
            delivered: self.earlier.delivered.plus(&self.run.delivered),
            delivered_late: self.earlier.delivered_late.plus(&self.run.delivered_late),
            losses,
            ..self.run.clone()
        }
    }
}

/// Four bytes of checksum, four of length, JSON.
fn decode(slot: &[u8]) -> Option<LedgerEntry> {
    let length = u32::from_le_bytes(*slot.get(4..)?.first_chunk()?);
    serde_json::from_slice(slot.get(8..)?.get(..length as usize)?).ok()
}
