//! The ledgers of the daemons and the profiles of the backend: the sum of all samples.
//!
//! The ledger is read anew here rather than by the daemon's own reader: what the soak holds against
//! the daemon must not come from its code, and xtask needn't be built with it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;

const SLOT_BYTES: usize = 4096;

/// The part of a ledger's entry that is needed here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LedgerEntry {
    sequence: u64,
    earlier: Counts,
    pub(super) run: Counts,
    pub(super) taken: u64,
    pub(super) lost_before: u64,
    /// What the daemon had handed over to sinks that settings have replaced by this one.
    pub(super) handed_over_before: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Counts {
    pub(super) handed_over: u64,
    pub(super) delivered: u64,
    pub(super) delivered_late: u64,
    pub(super) losses: BTreeMap<String, u64>,
    pub(super) spooled: u64,
    pub(super) waiting: u64,
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
            *losses.entry(reason.clone()).or_default() += samples;
        }
        Counts {
            handed_over: self.earlier.handed_over + self.run.handed_over,
            delivered: self.earlier.delivered + self.run.delivered,
            delivered_late: self.earlier.delivered_late + self.run.delivered_late,
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

/// A daemon from its start to its end.
#[derive(Clone, Debug)]
pub(super) struct DaemonRun {
    /// By the kernel program's counters.
    pub(super) taken: u64,
    /// By its ledger.
    pub(super) recorded: LedgerEntry,
    pub(super) killed: bool,
}

/// What lies in the collector's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredProfiles {
    pub(super) profiles: u64,
    pub(super) samples: u64,
    /// Profiles of a series and a time that another one has.
    pub(super) duplicates: u64,
    /// Values of the label [`SETTINGS_LABEL`].
    pub(super) settings: BTreeSet<String>,
}

/// The label that tells under which settings a sample was taken.
pub(super) const SETTINGS_LABEL: &str = "settings";

impl StoredProfiles {
    /// From the names of the files: `<start>-<duration>-<samples>-<number>.pb.gz`.
    pub(super) fn read(store: &Path) -> anyhow::Result<Self> {
        let root = store.join("series");
        let mut stored = Self::default();
        for series in fs::read_dir(&root).with_context(|| format!("reading {}", root.display()))? {
            let mut starts = HashSet::new();
            let folder = series?.path();
            let labels = fs::read(folder.join("labels.json")).context("reading a series's labels")?;
            let mut labels: BTreeMap<String, String> =
                serde_json::from_slice(&labels).context("a series's labels")?;
            stored.settings.extend(labels.remove(SETTINGS_LABEL));
            for file in fs::read_dir(folder)? {
                let name = file?.file_name();
                let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".pb.gz")) else { continue };
                let mut parts = name.rsplitn(4, '-').skip(1);
                let samples: u64 = parts.next().context("no samples")?.parse().context("samples")?;
                let start = parts.nth(1).context("no start")?.to_owned();
                stored.profiles += 1;
                stored.samples += samples;
                stored.duplicates += u64::from(!starts.insert(start));
            }
        }
        Ok(stored)
    }
}

/// The whole account.
#[derive(Debug)]
pub(super) struct Accounting<'a> {
    pub(super) runs: &'a [DaemonRun],
    pub(super) stored: &'a StoredProfiles,
}

impl Accounting<'_> {
    fn total(&self) -> Counts {
        self.runs.last().map(|run| run.recorded.total()).unwrap_or_default()
    }

    /// Prints it, and says what doesn't add up.
    pub(super) fn discrepancies(&self) -> Vec<String> {
        let total = self.total();
        let sum = |of: fn(&DaemonRun) -> u64| self.runs.iter().map(of).sum::<u64>();
        let taken = sum(|run| run.taken);
        let unrecorded = sum(|run| run.taken.saturating_sub(run.recorded.taken));
        let lost_before = sum(|run| run.recorded.lost_before);
        let possibly = total.losses.get("possibly_lost").copied().unwrap_or(0);
        println!(
            "\n{taken:>9} samples were taken by the kernel program, in {} runs of the daemon",
            self.runs.len()
        );
        println!(
            "{:>9} are in the backend, in {} profiles; {} of them came out of the spool",
            self.stored.samples, self.stored.profiles, total.delivered_late
        );
        println!("{lost_before:>9} were lost before they could be handed over, and counted");
        for (reason, samples) in total.losses.iter().filter(|(_, samples)| **samples > 0) {
            println!("{samples:>9} counted as {reason}");
        }
        println!(
            "{unrecorded:>9} were taken after the last note of a killed daemon: only the kernel knows of them"
        );

        let mut wrong = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                wrong.push(what);
            }
        };
        let losses: u64 = total.losses.values().sum();
        let Counts { handed_over, delivered, spooled, waiting, .. } = total;
        check(
            handed_over == delivered + losses + spooled + waiting,
            format!(
                "{handed_over} handed over are not {delivered} delivered, {losses} lost, {spooled} spooled and {waiting} waiting"
            ),
        );
        check(
            spooled + waiting == 0,
            format!("{spooled} samples are still in the spool, {waiting} in memory"),
        );
        check(
            taken == handed_over + lost_before + unrecorded,
            format!(
                "{taken} taken are not {handed_over} handed over, {lost_before} lost before and {unrecorded} not recorded"
            ),
        );
        for run in self.runs.iter().filter(|run| !run.killed) {
            let (taken, recorded) = (run.taken, &run.recorded);
            let handed_over = recorded.handed_over_before + recorded.run.handed_over;
            check(
                taken == recorded.taken && taken == recorded.lost_before + handed_over,
                format!(
                    "a daemon that ended in good order took {taken}, recorded {} and handed over {handed_over}",
                    recorded.taken
                ),
            );
        }
        let stored = self.stored.samples;
        check(
            (delivered..=delivered + possibly).contains(&stored),
            format!("{stored} samples in the backend, {delivered} delivered and {possibly} possibly lost"),
        );
        check(self.stored.duplicates == 0, format!("{} profiles are there twice", self.stored.duplicates));
        println!(
            "\n{taken} = {stored} stored + {} lost + {} possibly lost and not stored",
            losses - possibly + lost_before + unrecorded,
            (delivered + possibly).saturating_sub(stored)
        );
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(taken: u64, recorded: u64, handed_over: u64, delivered: u64, killed: bool) -> DaemonRun {
        let losses = BTreeMap::from([("refused".to_owned(), handed_over - delivered)]);
        let counts = Counts { handed_over, delivered, losses, ..Counts::default() };
        let recorded = LedgerEntry {
            run: counts,
            taken: recorded,
            lost_before: recorded - handed_over,
            ..LedgerEntry::default()
        };
        DaemonRun { taken, recorded, killed }
    }

    #[test]
    fn an_account_that_adds_up_is_told_from_one_that_does_not() {
        let discrepancies = |run: DaemonRun, samples, duplicates| {
            let stored = StoredProfiles { profiles: 1, samples, duplicates, ..StoredProfiles::default() };
            Accounting { runs: &[run], stored: &stored }.discrepancies().len()
        };
        assert_eq!(discrepancies(run(100, 100, 90, 80, false), 80, 0), 0);
        assert_eq!(
            discrepancies(run(100, 100, 90, 80, false), 81, 0),
            1,
            "more is stored than was delivered"
        );
        assert_eq!(discrepancies(run(100, 100, 90, 80, false), 80, 1), 1, "something is there twice");
        assert_eq!(discrepancies(run(101, 100, 90, 80, false), 80, 0), 1, "one sample is missing");
        assert_eq!(discrepancies(run(101, 100, 90, 80, true), 80, 0), 0, "as it may be if it was killed");
        let mut reopened = run(100, 100, 90, 80, false);
        reopened.recorded.lost_before = 5;
        assert_eq!(discrepancies(reopened.clone(), 80, 0), 2, "5 samples are missing");
        // They were handed over to the sink before.
        (reopened.recorded.handed_over_before, reopened.recorded.earlier) =
            (5, Counts { handed_over: 5, delivered: 5, ..Counts::default() });
        assert_eq!(discrepancies(reopened, 85, 0), 0);
    }
}
